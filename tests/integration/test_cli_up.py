"""`tierdeck up`: what it says, what it refuses, and that nothing is left behind."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.integration.cli_rig import Home, RunningDeck, deck, engines_of, home
from tests.integration.supervisor_rig import free_port, port_is_open


@pytest.fixture
def at(tmp_path: Path) -> Home:
    return home(tmp_path)


def nothing_is_left(at: Home) -> bool:
    return not engines_of(at) and not port_is_open(at.port) and not port_is_open(at.engine_port)


def until_ready(running: RunningDeck) -> None:
    """The door answers as soon as the engine is ready, so asking it is waiting for it."""
    with running.client() as client:
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_the_curl_line_answers_while_the_engine_still_starts(tmp_path: Path) -> None:
    """What the banner prints works as it stands, at once: the door waits for the engine."""
    at = home(tmp_path, habits="--fake-start-seconds 1.5")
    with deck(at) as running:
        with running.client() as client:
            assert client.get("/readyz").status_code == 503
        arguments = shlex.split(running.welcome["curl"])
        done = subprocess.run([*arguments, "-s", "-w", "\n%{http_code}"], capture_output=True, text=True, timeout=30)
        body, status = done.stdout.rsplit("\n", 1)
        assert status == "200" and json.loads(body)["choices"]
        assert running.welcome["token"] == (at.data_dir / "admin-token").read_text().strip()
        running.send(signal.SIGINT)
        assert running.wait() == 0
    assert nothing_is_left(at)


def test_impatient_ctrl_c_leaves_nothing(at: Home) -> None:
    """Two Ctrl-C in a row, an open event stream and an unfinished completion: over soon, no process left."""
    with deck(at) as running, running.client() as client:
        until_ready(running)
        begun = threading.Barrier(3)

        def read(method: str, path: str, **how: object) -> None:
            try:
                with client.stream(method, path, **how) as response:  # type: ignore[arg-type]
                    chunks = response.iter_raw()
                    next(chunks)
                    begun.wait()
                    for _ in chunks:
                        pass
            except Exception:  # noqa: BLE001 - hung up on, as intended
                return

        endless = {"model": "model", "prompt": "x", "max_tokens": 1_000_000, "stream": True}
        readers = [
            threading.Thread(target=read, args=("GET", "/events")),
            threading.Thread(target=read, args=("POST", "/v1/completions"), kwargs={"json": endless}),
        ]
        for reader in readers:
            reader.start()
        begun.wait(30)
        running.send(signal.SIGINT)
        running.send(signal.SIGINT)
        assert running.wait() == 0
        for reader in readers:
            reader.join(10)
    assert nothing_is_left(at)
    assert "Traceback" not in (at.data_dir.parent / "deck.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_every_polite_end_stops_the_engine_too(at: Home, number: signal.Signals) -> None:
    """A closed terminal and a `kill` are a Ctrl-C; also while the engine is still starting."""
    with deck(at) as running:
        running.send(number)
        assert running.wait() == 0
    assert nothing_is_left(at)


def test_as_a_service_the_engine_outlives_the_deck(at: Home) -> None:
    """The next deck adopts the very same process; run in the foreground, it ends it."""
    with deck(at, "--service") as running:
        until_ready(running)
        (first,) = at.answer("status")["engines"]
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert port_is_open(at.engine_port)
    with deck(at) as running:
        until_ready(running)
        (adopted,) = at.answer("status")["engines"]
        assert adopted["pid"] == first["pid"]
        running.send(signal.SIGINT)
        assert running.wait() == 0
    assert nothing_is_left(at)


def test_a_port_in_use_is_one_sentence(at: Home) -> None:
    """Exit status 1, before anything was started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", at.port))
        taken.listen()
        done = at.run("up")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and f"127.0.0.1:{at.port}" in done.stderr and "TIERDECK_PORT" in done.stderr
    assert not engines_of(at)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TIERDECK_DATABASE_URL", "foo://x", "postgresql+asyncpg://"),
        ("TIERDECK_DATABASE_URL", "postgresql+asyncpg://a:secret@127.0.0.1:1/x", "cannot be reached"),
        ("TIERDECK_DATA_DIR", "/proc/nowhere", "/proc/nowhere"),
    ],
)
def test_a_setting_that_cannot_work_is_one_sentence(at: Home, variable: str, value: str, words: str) -> None:
    """It says what to write instead of a traceback, and no secret of it."""
    at.environment[variable] = value
    done = at.run("up")
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_the_engine_takes_over_a_changed_port(at: Home) -> None:
    """A port that turned out to be taken is changed by its setting; the next start uses it."""
    for port in (at.engine_port, free_port()):
        at.environment["TIERDECK_ENGINE_PORT"] = str(port)
        with deck(at) as running:
            until_ready(running)
            (engine,) = at.answer("status")["engines"]
            assert engine["port"] == port
            running.send(signal.SIGINT)
            assert running.wait() == 0


def test_a_second_deck_is_refused(at: Home) -> None:
    """On the same port it says that a deck runs there; on another port, that the data directory is in use."""
    with deck(at) as running:
        same = at.run("up")
        assert same.returncode == 1 and same.stderr == f"A deck already runs at {at.url}.\n"
        at.environment["TIERDECK_PORT"] = "0"
        other = at.run("up", "--json")
        assert other.returncode == 1 and json.loads(other.stdout)["error"]["code"] == "data_dir_in_use"
        running.send(signal.SIGINT)
        assert running.wait() == 0
