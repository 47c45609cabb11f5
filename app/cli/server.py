"""Running the deck in the foreground: the port, the banner, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import structlog
import uvicorn

from app.cli.client import base_url
from app.config import Settings
from app.errors import Conflict, InvalidInput
from app.proxy.heads import bounded_heads
from app.services.signin import admin_token, admin_token_path

if TYPE_CHECKING:
    from fastapi import FastAPI

#: How long requests in flight may still run when the deck is told to end. In the foreground their
#: engine ends too.
FOREGROUND_GRACE_SECONDS = 2.0
SERVICE_GRACE_SECONDS = 30.0
SLACK_SECONDS = 3


def serve(settings: Settings, *, as_json: bool) -> None:
    """Serve until told to end. Raises Conflict when the port or the data directory is taken."""
    with _bound(settings) as listener, _only_deck(settings.data_dir):
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        _check_database(settings)
        _log_lines()
        from app.main import create_app  # a second of imports, after what can be refused was refused

        app = create_app(settings)
        grace_seconds = SERVICE_GRACE_SECONDS if settings.engines_outlive_deck else FOREGROUND_GRACE_SECONDS
        config = uvicorn.Config(
            app,
            http=bounded_heads(app.state.deck.door.refused_head),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=int(grace_seconds) + SLACK_SECONDS,
        )
        server = DeckServer(config, app, settings, grace_seconds, as_json=as_json)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once everything is closed
            server.run(sockets=[listener])


class DeckServer(uvicorn.Server):
    """uvicorn, but a second Ctrl-C never skips the shutdown: that would orphan the engines."""

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, settings: Settings, grace_seconds: float, *, as_json: bool
    ) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._grace_seconds = grace_seconds
        self._as_json = as_json

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where the deck is as soon as it can be reached."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            # A terminal that is closed hangs up on its programs: the same as Ctrl-C.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.handle_exit, signal.SIGHUP, None)
        await super().startup(sockets)
        if self.started and not self.should_exit:
            welcome = await welcome_of(self._app, self._settings)
            print(json.dumps(welcome) if self._as_json else banner(welcome), flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End once; say what is still being done when asked again."""
        told = "Still stopping; nothing is left behind if you wait." if self.should_exit else self._farewell()
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"\n{told}\n".encode())  # print() may be interrupted in itself by this very signal
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Pages' event streams end at once; requests at the door get a little time, then are hung up on."""
        for connection in list(self.server_state.connections):
            if _path(connection).startswith("/events"):
                _hang_up(connection)
        hang_up = asyncio.get_running_loop().call_later(self._grace_seconds, self._hang_up_on_all)
        try:
            await super().shutdown(sockets)
        finally:
            hang_up.cancel()

    def _hang_up_on_all(self) -> None:
        for connection in list(self.server_state.connections):
            _hang_up(connection)

    def _farewell(self) -> str:
        if self._settings.engines_outlive_deck:
            return "Stopping the deck; the engines go on."
        return f"Stopping the deck and its engines (at most {self._settings.stop_grace_seconds:g} s)."


def _path(connection: Any) -> str:
    cycle = getattr(connection, "cycle", None)
    return str(cycle.scope["path"]) if cycle is not None else ""


def _hang_up(connection: Any) -> None:
    # To every application this is a client that left, which each already handles: nothing is logged
    # as a fault, unlike for a task that uvicorn cancels.
    transport = getattr(connection, "transport", None)
    if transport is not None:
        transport.close()


async def welcome_of(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """What a newcomer needs to know, for the banner and for programs."""
    from app.store.queries import fleets

    async with app.state.deck.database.session() as session:
        served = [fleet.served_model_name for fleet in await fleets.all_fleets(session)]
    kept = settings.admin_token is None
    return {
        "url": base_url(settings),
        "token": admin_token(settings) if kept else None,
        "token_from": str(admin_token_path(settings)) if kept else "TIERDECK_ADMIN_TOKEN",
        "curl": curl_line(settings, served[0]) if served else None,
        "next": f"{_variables(settings)}.venv/bin/tierdeck demo-traffic",
        "pid": os.getpid(),
    }


def curl_line(settings: Settings, model: str) -> str:
    """A request that works as it stands; while the engine starts, it waits."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 16})
    quoted = body.replace("'", "'\\''")
    sign_in = "" if settings.is_loopback else ' -H "Authorization: Bearer $(.venv/bin/tierdeck token)"'
    return f"curl {base_url(settings)}/v1/completions -H 'Content-Type: application/json'{sign_in} -d '{quoted}'"


def _variables(settings: Settings) -> str:
    """What a second terminal must be told to find this deck, where it is not the default one."""
    usual = Settings.model_fields
    asked = {"host": settings.host, "port": settings.port, "data_dir": settings.data_dir}
    differing = {name: value for name, value in asked.items() if value != usual[name].default}
    return "".join(f"TIERDECK_{name.upper()}={shlex.quote(str(value))} " for name, value in differing.items())


def banner(welcome: dict[str, Any]) -> str:
    """The same in words."""
    token = welcome["token"]
    sign_in = f"token {token}\n            (kept in {welcome['token_from']})" if token else "the token you set in "
    lines = [
        "",
        f"  Tierdeck  {welcome['url']}",
        f"  sign in   {sign_in if token else sign_in + welcome['token_from']}",
    ]
    if welcome["curl"]:
        lines += ["  try       (it waits until the engine is ready)", f"            {welcome['curl']}"]
    lines += [f"  then      {welcome['next']}", "  stop      Ctrl-C", ""]
    return "\n".join(lines)


@contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """The port, taken before anything is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(2048)  # two listeners on one port would both succeed in binding
        except OSError as error:
            raise Conflict(_why_not(settings, error), code="port_in_use", path="TIERDECK_PORT") from error
        yield listener


def _why_not(settings: Settings, error: OSError) -> str:
    address = f"{settings.host}:{settings.port}"
    if _is_a_deck(settings):
        return f"A deck already runs at {base_url(settings)}."
    reason = (error.strerror or str(error)).lower()
    return f"The deck cannot listen on {address}: {reason}. Choose another port with TIERDECK_PORT."


def _is_a_deck(settings: Settings) -> bool:
    import httpx

    with suppress(httpx.HTTPError, ValueError):
        health = httpx.get(f"{base_url(settings)}/healthz", timeout=1.0, trust_env=False).json()
        return isinstance(health, dict) and "loops_recovering" in health
    return False


def _lock_file(data_dir: Path) -> IO[str]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (data_dir / "deck.lock").open("a+")
    except OSError as error:
        raise InvalidInput(
            f"The data directory {data_dir} cannot be used: {error.strerror}. Name one that can be written to.",
            path="TIERDECK_DATA_DIR",
        ) from error


@contextmanager
def _only_deck(data_dir: Path) -> Iterator[None]:
    """One deck for each data directory: two would both supervise the same engines."""
    with _lock_file(data_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"Another deck already uses {data_dir}.", code="data_dir_in_use") from error
        yield


def _check_database(settings: Settings) -> None:
    from app.first_run import fleets_of_file
    from app.store.database import Database
    from app.store.queries import fleets

    async def check() -> None:
        database = Database(settings.resolved_database_url)
        try:
            await database.check()
            async with database.session() as session:
                is_new = await fleets.is_new(session)
            if is_new and settings.fleets_file is not None:
                fleets_of_file(settings, settings.fleets_file)  # a mistake in it is told before anything is written
        finally:
            await database.close()

    asyncio.run(check())


def _log_lines() -> None:
    """The deck's own log: one line an event, on standard error, without colours."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
