"""Prompts that are in flight already: counted always, answered together where the fleet says so.

A retry that reaches the deck while its first try is still in prefill would start that prefill again.
Joined, it is given the first one's answer from the first byte on, and the engine goes on until the last
of those who share it has left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from app.proxy.headers import RawHeaders
from app.proxy.outgoing import Outgoing
from app.supervisor.status import EngineStatus

#: An answer that has grown beyond this is not joined any more, and waits for its slowest reader.
MAX_SHARED_BYTES = 8 * 1024 * 1024
#: What tells one caller from another, beside its address.
CALLER_HEADERS = (b"authorization", b"x-api-key", b"idempotency-key")


@dataclass(frozen=True)
class Prompt:
    """What makes two requests the same."""

    path: str
    query: bytes
    digest: bytes


@dataclass(frozen=True)
class Try:
    """What makes two requests tries of one: the same prompt in the same session from the same caller."""

    prompt: Prompt
    session: str | None
    caller: tuple[object, ...]


def prompt_of(path: str, query: bytes, body: memoryview) -> Prompt:
    """The identity of a request's prompt and parameters."""
    return Prompt(path, query, sha256(body).digest())


def caller_of(client: tuple[str, int] | None, headers: RawHeaders) -> tuple[object, ...]:
    """Who asks, as far as it shows. Kept in memory only, for as long as the request runs."""
    given = dict(headers)
    return (client[0] if client else None, *(given.get(name) for name in CALLER_HEADERS))


class InFlightPrompts:
    """How often each prompt is in flight."""

    def __init__(self) -> None:
        self._counts: Counter[Prompt] = Counter()

    @contextmanager
    def enter(self, prompt: Prompt) -> Iterator[bool]:
        """Count `prompt` for the length of the `with` block; True when it was in flight already."""
        self._counts[prompt] += 1
        try:
            yield self._counts[prompt] > 1
        finally:
            self._counts[prompt] -= 1
            if not self._counts[prompt]:
                del self._counts[prompt]


Said = Callable[[Outgoing], Awaitable[None]]
Carry = Callable[["SharedAnswer"], Coroutine[Any, Any, None]]


class SharedAnswer:
    """One exchange with an engine, in a task of its own. What it is given, every reader is told."""

    def __init__(self, carry: Carry) -> None:
        self._said: list[Said] = []
        self._forgotten = 0
        """How many entries were told to everybody and given up."""
        self._positions: dict[int, int] = {}
        """How many entries each reader was told."""
        self._arrivals = 0
        self._bytes = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(carry(self), name="shared-answer")
        self.task.add_done_callback(lambda _: self._wake())

    @property
    def is_open(self) -> bool:
        """True while its beginning is still there for one more reader."""
        return self._bytes <= MAX_SHARED_BYTES and not self.task.done()

    async def routed(self, engine: EngineStatus, request_id: str) -> None:
        """An engine was found."""
        self._add(lambda out: out.routed(engine, request_id))

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """Take the status and the headers."""
        self._add(lambda out: out.begin(status, headers))

    async def piece(self, piece: bytes, more: bool) -> None:
        """Take some of the body; wait for the slowest reader once much has come."""
        self._bytes += len(piece)
        self._add(lambda out: out.piece(piece, more))
        while self._bytes > MAX_SHARED_BYTES and self._forgotten + len(self._said) > self._slowest():
            await self._changed.wait()

    async def comment(self) -> None:
        """Take a sign of life."""
        self._add(lambda out: out.comment())

    def in_line(self) -> None:
        """Readers count their silence themselves."""

    def seconds_to_sign(self) -> float | None:
        """None: readers give their clients a sign themselves."""
        return None

    async def sign(self) -> None:
        """Nothing to do here."""

    async def tell(self, out: Outgoing) -> None:
        """Say everything to one client, as it comes; the last client to leave ends the exchange.

        Raises what ended it badly.
        """
        self._arrivals += 1
        number = self._arrivals
        self._positions[number] = 0
        try:
            await self._tell(number, out)
        finally:
            del self._positions[number]
            self._wake()
            if not self._positions:
                await self._end()

    async def _tell(self, number: int, out: Outgoing) -> None:
        out.in_line()
        while True:
            while self._positions[number] < self._forgotten + len(self._said):
                await self._said[self._positions[number] - self._forgotten](out)
                self._positions[number] += 1
                self._forget()
            if self.task.done():
                return self.task.result()
            with suppress(TimeoutError):
                async with asyncio.timeout(out.seconds_to_sign()):
                    await self._changed.wait()
            await out.sign()

    def _add(self, say: Said) -> None:
        self._said.append(say)
        self._wake()

    def _forget(self) -> None:
        """Give up what everybody was told, once nobody can join any more."""
        if self._bytes > MAX_SHARED_BYTES and (told := self._slowest() - self._forgotten):
            del self._said[:told]
            self._forgotten += told
            self._wake()

    def _slowest(self) -> int:
        return min(self._positions.values(), default=self._forgotten + len(self._said))

    async def _end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # whoever was there has been told

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


class SharedAnswers:
    """The answers that may be joined now."""

    def __init__(self) -> None:
        self._answers: dict[Try, SharedAnswer] = {}

    def join(self, asked: Try) -> SharedAnswer | None:
        """The answer that another try of the same is being given; None when there is none, or it is far on."""
        found = self._answers.get(asked)
        return found if found is not None and found.is_open else None

    def start(self, asked: Try, carry: Carry) -> SharedAnswer:
        """Begin an exchange that later tries may join."""
        answer = SharedAnswer(carry)
        self._answers[asked] = answer
        answer.task.add_done_callback(lambda _: self._forget(asked, answer))
        return answer

    def _forget(self, asked: Try, answer: SharedAnswer) -> None:
        if self._answers.get(asked) is answer:
            del self._answers[asked]
