"""The door: every request to /v1 enters here and is carried to an engine, or told why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import structlog

from app.config import Settings
from app.errors import EngineFault, TierdeckError, Unavailable
from app.proxy.answers import send_error
from app.proxy.asgi import Receive, Scope, Send
from app.proxy.forward import Forwarder, NotConnected, UpstreamClosed, UpstreamError
from app.proxy.incoming import ClientClosed, Incoming
from app.proxy.inflight import InFlight
from app.proxy.record import Outcome, Record
from app.proxy.routing import Choice, Refuse, Serve, choose
from app.proxy.waiting import Place, WaitingRoom
from app.supervisor.status import EngineStatus

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = 0.5
RETRY_SOON_SECONDS = 5
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


class Door:
    """An ASGI application for /v1. Between a request and its engine stands nothing that may be slow."""

    def __init__(self, settings: Settings, engines: EngineSource) -> None:
        self._settings = settings
        self._engines = engines
        self._line = WaitingRoom(settings.door_wait_limit)
        self._forwarder = Forwarder(settings.door_connect_timeout_seconds, settings.door_keepalive_seconds)
        self._stack = AsyncExitStack()
        self._watcher: asyncio.Task[None] | None = None
        self.open_requests = InFlight()

    async def open(self) -> None:
        """Start watching the engines. Drains count what is open here from now on."""
        await self._stack.enter_async_context(self._forwarder)
        self._engines.in_flight = self.in_flight
        self._engines.idle = self.open_requests.idle
        self._watcher = asyncio.create_task(self._wake_on_change(), name="door")

    async def close(self) -> None:
        """Stop watching and drop the connections to the engines."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        await self._stack.aclose()

    def in_flight(self, engine: str) -> int:
        """Requests open on `engine` now."""
        return self.open_requests.count(engine)

    @property
    def waiting(self) -> int:
        """Requests in line for an engine."""
        return len(self._line)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and leave its record."""
        record = Record(scope["method"], scope["path"])
        try:
            await self._serve(scope, receive, send, record)
        finally:
            record.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        incoming = Incoming(receive, scope["headers"], self._settings.door_body_limit_bytes)
        try:
            await incoming.begin()
            with incoming.watched():
                await self._carry(scope, incoming, send, record)
            record.outcome = Outcome.DONE
        except ClientClosed:
            record.outcome = Outcome.CLIENT_CLOSED
        except UpstreamClosed as error:
            record.outcome = Outcome.UPSTREAM_CLOSED
            await _report(_broke_off(record, error), scope, send, record)
        except UpstreamError as error:
            record.outcome = Outcome.UPSTREAM_ERROR
            await _report(_not_http(record, error), scope, send, record)
        except TierdeckError as error:
            record.outcome = Outcome.REFUSED
            await _report(error, scope, send, record)

    async def _carry(self, scope: Scope, incoming: Incoming, send: Send, record: Record) -> None:
        """Find an engine and relay. Only a connection that was never made is tried again."""
        avoid_until: dict[str, float] = {}
        give_up_at: float | None = None
        while True:
            target = await self._find(avoid_until)
            record.queued(target.engine)
            try:
                with self.open_requests.enter(target.engine):
                    return await self._forwarder.relay(scope, incoming, send, target.base_url, record)
            except NotConnected as error:
                now = time.time()
                give_up_at = give_up_at or now + self._settings.door_connect_timeout_seconds
                if now >= give_up_at:
                    raise _no_connection(target.engine, error) from error
                avoid_until[target.engine] = now + RECONNECT_SECONDS

    async def _find(self, avoid_until: dict[str, float]) -> Serve:
        choice = self._choice(avoid_until)
        if isinstance(choice, Serve):
            return choice
        if isinstance(choice, Refuse):
            raise _refusal(choice)
        with self._line.enter() as place:
            return await self._wait(place, avoid_until)

    async def _wait(self, place: Place, avoid_until: dict[str, float]) -> Serve:
        deadline = time.time() + self._settings.door_wait_seconds
        while True:
            choice = self._choice(avoid_until)
            if isinstance(choice, Serve):
                return choice
            if isinstance(choice, Refuse):
                raise _refusal(choice)
            left_seconds = deadline - time.time()
            if left_seconds <= 0:
                raise Unavailable(
                    f"No engine was ready within {self._settings.door_wait_seconds:g} s. {choice.sentence}",
                    code="engine_not_ready",
                    retry_after_seconds=RETRY_STARTING_SECONDS,
                )
            look_again_seconds = choice.look_again_seconds
            await place.woken(left_seconds if look_again_seconds is None else min(left_seconds, look_again_seconds))

    def _choice(self, avoid_until: dict[str, float]) -> Choice:
        return choose(self._engines.statuses(), self.in_flight, time.time(), avoid_until)

    async def _wake_on_change(self) -> None:
        while True:
            try:
                await self._engines.changed()
            except Exception:  # who waits must not hang on a fault elsewhere: look again now and then
                log.exception("door_watch_failed")
                await asyncio.sleep(RECONNECT_SECONDS)
            self._line.wake()


async def _report(error: TierdeckError, scope: Scope, send: Send, record: Record) -> None:
    """Tell the client, unless an answer has begun: then returning breaks the transfer off, visibly."""
    if record.status is not None:
        return
    record.status = error.status
    await send_error(send, error, scope["path"])


def _refusal(choice: Refuse) -> Unavailable:
    return Unavailable(choice.sentence, code=choice.code, retry_after_seconds=RETRY_GIVEN_UP_SECONDS)


def _no_connection(engine: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"Engine {engine} takes no connection: {error}.",
        code="engine_unreachable",
        retry_after_seconds=RETRY_SOON_SECONDS,
    )


def _broke_off(record: Record, error: Exception) -> EngineFault:
    log.warning("upstream_closed", engine=record.engine, path=record.path, reason=str(error))
    return EngineFault(
        f"Engine {record.engine} closed the connection before it answered.", code="engine_closed_connection"
    )


def _not_http(record: Record, error: Exception) -> EngineFault:
    log.warning("upstream_error", engine=record.engine, path=record.path, reason=str(error))
    return EngineFault(f"Engine {record.engine} gave an answer that breaks HTTP's rules.", code="engine_answer_invalid")
