"""`tierdeck up` with a real engine, for the tests that meet the deck as its users do."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.config import inherited_environment
from tests.integration.cli_rig import command
from tests.integration.streaming_clients import LIMIT_SECONDS
from tests.integration.supervisor_rig import ROOT, free_port

MODEL = "tierdeck-demo"


@dataclass(frozen=True)
class Deck:
    """A deck that runs; `ports` are its own and its first engine's."""

    process: subprocess.Popen[str]
    welcome: dict[str, Any]
    ports: tuple[int, int]
    data_dir: Path

    @property
    def url(self) -> str:
        return str(self.welcome["url"])

    def client(self) -> httpx.AsyncClient:
        """Signed in, and patient."""
        headers = {"Authorization": f"Bearer {self.welcome['token']}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LIMIT_SECONDS, trust_env=False)

    def end(self) -> int:
        """Ctrl-C; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(LIMIT_SECONDS)


@contextmanager
def running_deck(directory: Path, **settings: str) -> Iterator[Deck]:
    """A deck with nothing configured but a directory, two ports, and `settings` by the names of their variables."""
    ports, data_dir = (free_port(), free_port()), directory / "data"
    environment = inherited_environment() | {
        "TIERDECK_DATA_DIR": str(data_dir),
        "TIERDECK_PORT": str(ports[0]),
        "TIERDECK_ENGINE_PORT": str(ports[1]),
        **settings,
    }
    with (directory / "deck.log").open("w") as log:
        process = subprocess.Popen(
            command("up", "--json"), env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        )
        line = process.stdout.readline() if process.stdout else ""
        assert line, (directory / "deck.log").read_text()[-4000:]
        deck = Deck(process, json.loads(line), ports, data_dir)
        try:
            yield deck
        finally:
            deck.end()


def shared_memory() -> frozenset[str]:
    """Names in /dev/shm, without those of database servers, which may belong to other tests."""
    names = (path.name for path in Path("/dev/shm").iterdir())
    return frozenset(name for name in names if not name.startswith("PostgreSQL."))
