"""The door: every request to /v1 enters here and is carried to an engine, or told why not."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from app.config import Settings
from app.errors import EngineFault, HeadTooLarge, TierdeckError, Unavailable
from app.proxy import models
from app.proxy.asgi import Receive, Scope, Send
from app.proxy.dispatch import Client, Dispatcher, EngineSource
from app.proxy.facts import PROMPT_PATHS, Facts, facts_of, facts_of_head
from app.proxy.forward import Forwarder
from app.proxy.headers import with_request_id
from app.proxy.incoming import ClientClosed, Incoming
from app.proxy.keepalive import has_opted_out
from app.proxy.metrics import DoorMetrics
from app.proxy.outgoing import Outgoing
from app.proxy.record import Outcome, Record
from app.proxy.routes import is_door
from app.proxy.sessions import Answers
from app.proxy.sharing import InFlightPrompts, Prompt, SharedAnswers, Try, caller_of, prompt_of
from app.proxy.upstream import NotConnected, UpstreamClosed, UpstreamError
from app.proxy.usage import response_id_in
from app.supervisor.status import EngineStatus

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = 0.5
RETRY_SOON_SECONDS = 5


class Ledger(Protocol):
    """Where records of requests are kept."""

    def keep(self, record: Record) -> None:
        """Take a record of a request that ended; must not wait."""
        ...

    async def homes(self) -> Sequence[tuple[str, str]]:
        """Sessions and the engines that served them, newest first."""
        ...


@dataclass(frozen=True)
class Asked:
    """One request, read as far as the door reads it."""

    scope: Scope
    incoming: Incoming
    facts: Facts
    record: Record


class Door:
    """An ASGI application for /v1. Between a request and its engine stands nothing that may be slow."""

    def __init__(self, settings: Settings, engines: EngineSource, ledger: Ledger) -> None:
        self._settings = settings
        self._engines = engines
        self._ledger = ledger
        self._dispatcher = Dispatcher(settings, engines)
        self._forwarder = Forwarder(settings.door_connect_timeout_seconds, settings.door_keepalive_seconds)
        self._stack = AsyncExitStack()
        self._watcher: asyncio.Task[None] | None = None
        self._answers = Answers()
        self._prompts, self._shared = InFlightPrompts(), SharedAnswers()
        self.open_requests = self._dispatcher.open_requests
        self.metrics = DoorMetrics()

    async def open(self) -> None:
        """Start watching the engines. Drains count what is open here from now on."""
        await self._stack.enter_async_context(self._forwarder)
        self._dispatcher.homes.restore(await self._ledger.homes())
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
        return len(self._dispatcher.line)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and leave its record."""
        record = Record(scope["method"], scope["path"])
        try:
            await self._serve(scope, receive, send, record)
        finally:
            self._keep(record)

    def refused_head(self, method: str, path: str) -> None:
        """Leave the record of a request whose head was too large to be read."""
        if is_door(path):
            self._keep(Record(method, path, outcome=Outcome.REFUSED, status=HeadTooLarge.status))

    def _keep(self, record: Record) -> None:
        record.close()
        self.metrics.count(record)
        self._ledger.keep(record)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        incoming = Incoming(receive, scope["headers"], self._settings.door_body_limit_bytes)
        out = Outgoing(send, scope["path"], record, self._settings.door_keepalive_seconds)
        try:
            asked = await self._read(scope, incoming, record)
            self._allow_early(out, asked)
            with incoming.watched(lambda: out.is_complete):
                await self._answer(asked, out)
        except ClientClosed:
            record.outcome = Outcome.CLIENT_CLOSED
        except UpstreamClosed as error:
            record.outcome = Outcome.UPSTREAM_CLOSED
            await out.fail(_broke_off(record, error))
        except UpstreamError as error:
            record.outcome = Outcome.UPSTREAM_ERROR
            await out.fail(_not_http(record, error))
        except TierdeckError as error:
            record.outcome = Outcome.REFUSED
            await out.fail(error)
        except Exception as error:
            await out.fail(_our_fault(record, error))
            raise
        finally:
            if out.is_complete:  # whatever went wrong after that
                record.outcome = Outcome.DONE
            record.usage = out.tail.usage()
            self._remember_answer(record, out)

    async def _read(self, scope: Scope, incoming: Incoming, record: Record) -> Asked:
        """Read what routing needs: the body, unless it is very large and there is nothing to choose."""
        await incoming.begin()
        if incoming.whole() is None and len(self._engines.statuses()) > 1:
            await incoming.rest()
        body, path, headers = incoming.whole(), scope["path"], scope["headers"]
        facts = facts_of_head(path, headers) if body is None else facts_of(path, headers, body)
        session = self._answers.session_of(facts.previous_response) if facts.previous_response else None
        facts = replace(facts, session=session) if session else facts
        record.model, record.session, record.streams = facts.model, facts.session, facts.streams
        return Asked(scope, incoming, facts, record)

    def _allow_early(self, out: Outgoing, asked: Asked) -> None:
        """A beginning before the engine's own is for streams, and for clients that want signs of life."""
        is_wanted = asked.facts.streams and not has_opted_out(asked.scope["headers"])
        if is_wanted and self._settings.door_keepalive_seconds and self._settings.door_early_stream_seconds:
            out.early_after_seconds = self._settings.door_early_stream_seconds

    async def _answer(self, asked: Asked, out: Outgoing) -> None:
        body, path = asked.incoming.whole(), asked.scope["path"]
        if path == models.PATH and models.is_for_the_deck(asked.scope, self._engines.statuses()):
            await self._list_models(self._engines.statuses(), out)
        elif body is None or path not in PROMPT_PATHS:
            await self._carry(asked, out)
        else:
            await self._answer_prompt(asked, prompt_of(path, asked.scope["query_string"], body), out)

    async def _answer_prompt(self, asked: Asked, prompt: Prompt, out: Outgoing) -> None:
        """Join another try of the same, where the fleet says so; else go to an engine."""
        facts, scope = asked.facts, asked.scope
        with self._prompts.enter(prompt) as asked.record.is_identical:
            if facts.repeatable and any(engine.join_identical for engine in self._dispatcher.candidates(facts)):
                same = Try(prompt, facts.session, caller_of(scope.get("client"), scope["headers"]))
                answer = self._shared.join(same)
                asked.record.is_joined = answer is not None
                answer = answer or self._shared.start(same, partial(self._carry, asked))
                await answer.tell(out)
            else:
                await self._carry(asked, out)

    async def _carry(self, asked: Asked, client: Client) -> None:
        """Find an engine and relay. Only a connection that was never made is tried again."""
        headers, request_id = with_request_id(asked.scope["headers"])
        scope = {**asked.scope, "headers": headers}
        avoid_until: dict[str, float] = {}
        give_up_at: float | None = None
        while True:
            engine, is_new = await self._dispatcher.find(asked.facts, avoid_until, client)
            await client.routed(engine, request_id)
            try:
                with self.open_requests.enter(engine.name):
                    return await self._forwarder.relay(scope, asked.incoming, client, engine.base_url)
            except NotConnected as error:
                if is_new and asked.facts.session:
                    self._dispatcher.homes.leave(asked.facts.session)
                now = time.time()
                give_up_at = give_up_at or now + self._settings.door_connect_timeout_seconds
                if now >= give_up_at:
                    raise _no_connection(engine.name, error) from error
                avoid_until[engine.name] = now + RECONNECT_SECONDS

    def _remember_answer(self, record: Record, out: Outgoing) -> None:
        response = response_id_in(out.tail.head) if record.path == "/v1/responses" else None
        if response:
            record.request_id = response  # vLLM knows it by that, whatever it was sent
        if response and record.session:
            self._answers.remember(response, record.session)

    async def _list_models(self, engines: Sequence[EngineStatus], out: Outgoing) -> None:
        chosen = models.one_of_each(engines)
        body = models.merged(list(zip(chosen, await asyncio.gather(*map(self._models_of, chosen)), strict=True)))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await out.begin(200, headers)
        await out.piece(body, False)

    async def _models_of(self, engine: EngineStatus) -> bytes | None:
        try:
            if not engine.serves:
                return None
            return await self._forwarder.fetch(engine.base_url, models.PATH, models.PATIENCE_SECONDS)
        except UpstreamError as error:
            log.warning("models_not_listed", engine=engine.name, reason=str(error))
            return None

    async def _wake_on_change(self) -> None:
        while True:
            try:
                await self._engines.changed()
            except Exception:  # who waits must not hang on a fault elsewhere: look again now and then
                log.exception("door_watch_failed")
                await asyncio.sleep(RECONNECT_SECONDS)
            self._dispatcher.line.wake()


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


def _our_fault(record: Record, error: Exception) -> TierdeckError:
    reference = secrets.token_hex(4)
    log.error("unexpected_error", reference=reference, path=record.path, exc_info=error)
    return TierdeckError(f"The deck made an error. Its log has it under {reference}.")


def _not_http(record: Record, error: Exception) -> EngineFault:
    log.warning("upstream_error", engine=record.engine, path=record.path, reason=str(error))
    return EngineFault(f"Engine {record.engine} gave an answer that breaks HTTP's rules.", code="engine_answer_invalid")
