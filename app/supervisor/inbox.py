"""The one door to an engine's owner: commands from people, reports from its own tasks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.supervisor.decide import Command, Message
from app.supervisor.status import EngineStatus


@dataclass(frozen=True)
class Envelope:
    """`token` names the task or the run that a report is about; reports of earlier ones are void."""

    message: Message
    token: object = None
    reply: asyncio.Future[EngineStatus] | None = None

    def answer(self, status: EngineStatus) -> None:
        """Tell whoever asked how the engine is now."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(status)

    def fail(self, error: Exception) -> None:
        """Tell whoever asked that it was refused, or went wrong."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)


class Inbox:
    """Messages in the order in which they came."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Envelope] = asyncio.Queue()

    def report(self, message: Message, token: object) -> None:
        """Something happened."""
        self._queue.put_nowait(Envelope(message, token))

    async def command(self, command: Command) -> EngineStatus:
        """Ask for something; the status right after it was taken up. Raises Conflict."""
        reply: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Envelope(command, reply=reply))
        return await reply

    async def next(self) -> Envelope:
        """Wait for the next message."""
        return await self._queue.get()
