"""Finding the engine for a request: where its session is, who serves its model, and the wait for one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from app.config import Settings
from app.errors import Unavailable
from app.proxy.facts import Facts
from app.proxy.forward import Sink
from app.proxy.inflight import InFlight
from app.proxy.routing import Choice, Refuse, Serve, Session, choose, serving
from app.proxy.sessions import Homes
from app.proxy.waiting import Place, WaitingRoom
from app.supervisor.status import EngineStatus

RETRY_STARTING_SECONDS = 15
RETRY_GIVEN_UP_SECONDS = 60


class EngineSource(Protocol):
    """What the door needs of `Engines`."""

    in_flight: Callable[[str], int]
    idle: Callable[[str], Awaitable[None]]

    def statuses(self) -> Sequence[EngineStatus]:
        """Every engine, now."""
        ...

    async def changed(self) -> None:
        """Return when any status changed."""
        ...


class Client(Sink, Protocol):
    """A sink that can be told of the way to the engine."""

    async def routed(self, engine: EngineStatus, request_id: str) -> None:
        """An engine was found, and what it will call the request."""
        ...

    def in_line(self) -> None:
        """There is none yet."""
        ...

    def seconds_to_sign(self) -> float | None:
        """After so much silence `sign` has something to do."""
        ...

    async def sign(self) -> None:
        """Give a sign of life if one is due."""
        ...


class Dispatcher:
    """Chooses engines, keeps the line of those who wait for one, and knows where sessions are at home."""

    def __init__(self, settings: Settings, engines: EngineSource) -> None:
        self._engines = engines
        self._wait_seconds = settings.door_wait_seconds
        self.line = WaitingRoom(settings.door_wait_limit)
        self.homes = Homes()
        self.open_requests = InFlight()

    def candidates(self, facts: Facts) -> Sequence[EngineStatus]:
        """The engines that may serve a request. Raises InvalidInput or NotFound when it names no fleet's model."""
        home = self.homes.of(facts.session) if facts.session else None
        return serving(self._engines.statuses(), facts.model, home)

    async def find(self, facts: Facts, avoid_until: dict[str, float], client: Client) -> tuple[EngineStatus, bool]:
        """The engine to go to, and whether a new session got its home there; waits in line while there is none.

        `avoid_until`: engines that just took no connection, and when to try them again. Raises Unavailable
        when there will be no engine.
        """
        choice = self._choice(facts, avoid_until)
        if isinstance(choice, Refuse):
            raise _refusal(choice)
        if not isinstance(choice, Serve):
            with self.line.enter() as place:
                choice = await self._wait(place, facts, avoid_until, client)
        is_new = bool(facts.session) and self.homes.settle(facts.session or "", choice.engine.name)
        return choice.engine, is_new

    async def _wait(self, place: Place, facts: Facts, avoid_until: dict[str, float], client: Client) -> Serve:
        deadline = time.time() + self._wait_seconds
        client.in_line()
        while True:
            choice = self._choice(facts, avoid_until)
            if isinstance(choice, Serve):
                return choice
            if isinstance(choice, Refuse):
                raise _refusal(choice)
            left_seconds = deadline - time.time()
            if left_seconds <= 0:
                raise Unavailable(
                    f"No engine was ready within {self._wait_seconds:g} s. {choice.sentence}",
                    code="engine_not_ready",
                    retry_after_seconds=RETRY_STARTING_SECONDS,
                )
            waits = (left_seconds, choice.look_again_seconds, client.seconds_to_sign())
            await place.woken(min(seconds for seconds in waits if seconds is not None))
            await client.sign()

    def _choice(self, facts: Facts, avoid_until: dict[str, float]) -> Choice:
        candidates, session = self.candidates(facts), None
        if facts.session and all(engine.routing == "sticky" for engine in candidates):
            session = Session(facts.session, self.homes.of(facts.session), self.homes.count)
        return choose(candidates, self.open_requests.count, time.time(), avoid_until, session)


def _refusal(choice: Refuse) -> Unavailable:
    return Unavailable(choice.sentence, code=choice.code, retry_after_seconds=RETRY_GIVEN_UP_SECONDS)
