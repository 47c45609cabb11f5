"""Watches one serving run: takes readings, asks for a token where `liveness` says so, and tells what comes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.supervisor.decide import Serves, Stalled
from app.supervisor.liveness import (
    AskToken,
    Fine,
    Life,
    Limits,
    Reading,
    answered,
    asked,
    follow,
    judge,
    judge_stalled,
    refused,
)
from app.supervisor.readiness import Answer, Probe

End = TypeVar("End")


class LifeWatch:
    """The life of one run. `ask` asks it for one token; it is asked by one question at a time."""

    def __init__(self, limits: Limits, ask: Callable[[], Awaitable[Probe]]) -> None:
        self.life = Life(alive_at=time.time())
        self._limits = limits
        self._ask = ask
        self._asked_tokens = 0
        self._question_tokens = 1
        self._change = asyncio.Event()

    def take(self, reading: Reading) -> None:
        """One more look at it."""
        self.life = follow(self.life, reading)
        self._change.set()

    async def ask(self, question: Callable[[], Awaitable[Probe]]) -> Probe:
        """Put a question for one token, and take account of what comes of it."""
        expected = self._question_tokens
        self._asked_tokens += expected
        try:
            probe = await question()
        finally:
            self._asked_tokens -= expected
        if probe.answer is Answer.SERVES:
            self.life = answered(self.life, time.time())
            self._asked_tokens += probe.prompt_tokens
            self._question_tokens = probe.prompt_tokens
        else:
            self.life = refused(self.life, probe.detail)
        return probe

    def take_asked_tokens(self) -> int:
        """Input tokens of the deck's own questions since the last call: traffic of nobody.

        They are told when a question is put, as many as the one before had, since the engine counts before it
        answers; a negative number takes back what was told too much.
        """
        tokens, self._asked_tokens = self._asked_tokens, 0
        return tokens

    async def until_it_stalls(self) -> Stalled:
        """Of an engine that serves."""
        dead = await self._watch(lambda life, now: judge(life, now, self._limits))
        return Stalled(dead.fault, dead.evidence)

    async def until_it_serves(self, since: float) -> Serves:
        """Of an engine that is stalled since `since`."""
        moves = await self._watch(lambda life, now: judge_stalled(life, now, since))
        return Serves(moves.sentence)

    async def _watch(self, verdict_on: Callable[[Life, float], Fine | AskToken | End]) -> End:
        """Until there is a verdict that ends the watch; a new one is formed with each reading and answer."""
        question: asyncio.Task[None] | None = None
        try:
            while True:
                newest = self.life.newest
                verdict = verdict_on(self.life, newest.at) if newest else Fine()
                if not isinstance(verdict, Fine | AskToken):
                    return verdict
                if question is not None and question.done():
                    await question
                    question = None
                if isinstance(verdict, AskToken) and question is None:
                    question = asyncio.create_task(self._question(), name="question")
                await self._change.wait()
                self._change.clear()
        finally:
            if question is not None:
                question.cancel()

    async def _question(self) -> None:
        self.life = asked(self.life, time.time())
        await self.ask(self._ask)
        self._change.set()
