"""The `tierdeck` command as a process of its own, with the fake engine behind the interpreter setting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

from app.supervisor.processes import process_table
from tests.integration.supervisor_rig import ROOT, free_port

LIMIT_SECONDS = 60.0
#: Stands where the engine's Python would; `-m vllm...` becomes the fake engine.
INTERPRETER = """#!/bin/sh
shift 2
exec {python} -m tests.fakes.fake_engine "$@" {habits}
"""


@dataclass(frozen=True)
class Home:
    """A data directory, two free ports, and an environment that names them."""

    data_dir: Path
    port: int
    engine_port: int
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            command(*arguments),
            env=self.environment,
            cwd=ROOT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def answer(self, *arguments: str, stdin: str = "") -> Any:
        """The JSON document of a command that succeeds."""
        done = self.run(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli.main", *arguments]


def home(directory: Path, habits: str = "") -> Home:
    interpreter = directory / "python"
    interpreter.write_text(INTERPRETER.format(python=sys.executable, habits=habits))
    interpreter.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERDECK_")}
    port, engine_port = free_port(), free_port()
    environment = kept | {
        "PYTHONPATH": str(ROOT),
        "TIERDECK_DATA_DIR": str(directory / "data"),
        "TIERDECK_PORT": str(port),
        "TIERDECK_ENGINE_PORT": str(engine_port),
        "TIERDECK_ENGINE_PYTHON": str(interpreter),
        "TIERDECK_MODEL": "fake/model",
        "TIERDECK_STOP_GRACE_SECONDS": "2",
    }
    return Home(directory / "data", port, engine_port, environment)


@dataclass
class RunningDeck:
    """A deck in the foreground."""

    process: subprocess.Popen[str]
    welcome: dict[str, Any]

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.welcome["url"],
            headers={"Authorization": f"Bearer {self.welcome['token']}"},
            timeout=LIMIT_SECONDS,
            trust_env=False,
        )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(LIMIT_SECONDS)


@contextmanager
def deck(at: Home, *arguments: str) -> Iterator[RunningDeck]:
    """`tierdeck up --json`, reachable; stopped at the end, its engine with it, if the test did not."""
    log = (at.data_dir.parent / "deck.log").open("a")
    process = subprocess.Popen(
        command("up", "--json", *arguments),
        env=at.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        yield RunningDeck(process, json.loads(_first_line(process.stdout)))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_SECONDS)
        log.close()


def engines_of(at: Home) -> list[int]:
    """Living processes that were started with this home's engine port."""
    return [
        entry.process.pid
        for entry in process_table()
        if entry.marker is not None and entry.alive and _names(entry.process.pid, str(at.engine_port))
    ]


def _names(pid: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _first_line(output: IO[str] | None) -> str:
    line = output.readline() if output is not None else ""
    assert line, "the deck ended before it could be reached; its log is deck.log"
    return line
