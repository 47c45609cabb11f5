"""The commands against a running deck, as people and programs call them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_rig import Home, command, deck, home
from tests.integration.supervisor_rig import ROOT

PROFILE = json.dumps(
    {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 30},
    }
)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One deck for all of this module, its engine ready."""
    place = home(tmp_path_factory.mktemp("deck"))
    with deck(place) as running, running.client() as client:
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
        yield place


def test_without_a_deck_every_command_says_so(tmp_path: Path) -> None:
    """One sentence, exit status 1; as JSON in the deck's error shape."""
    nowhere = home(tmp_path)
    for arguments in (["status"], ["engine", "stop"], ["profile", "show"], ["demo-traffic"]):
        done = nowhere.run(*arguments)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr == f"No deck answers at {nowhere.url}. Start one with: tierdeck up\n"
    assert json.loads(nowhere.run("status", "--json").stdout)["error"]["code"] == "no_deck"


def test_a_setting_that_is_wrong_is_named(tmp_path: Path) -> None:
    """No traceback: the variable and what is wrong with it."""
    place = home(tmp_path)
    place.environment["TIERDECK_PORT"] = "many"
    done = place.run("status")
    assert done.returncode == 1 and done.stderr.startswith("TIERDECK_PORT: ") and done.stderr.count("\n") == 1


def test_status_shows_the_engine(at: Home) -> None:
    """A line for people, the whole status for programs."""
    (engine,) = at.answer("status")["engines"]
    assert engine["state"] == "ready" and engine["port"] == at.engine_port
    assert "ready since" in at.run("status").stdout


def test_an_engine_is_stopped_started_and_restarted(at: Home) -> None:
    """Its name is not needed while there is only one."""
    name = at.answer("status")["engines"][0]["name"]
    for verb in ("restart", "stop", "start"):
        assert at.answer("engine", verb)["name"] == name
    done = at.run("engine", "stop", "nobody")
    assert done.returncode == 1 and "nobody" in done.stderr


def test_a_fleet_gets_an_engine_more_and_one_less(at: Home) -> None:
    """Its name is not needed while there is only one; what it is set to is shown field by field."""
    added = at.answer("fleet", "add-engine")
    assert added["name"] == "main-2"
    assert "main-1, main-2" in at.run("fleet", "list").stdout
    assert at.answer("fleet", "show")["engines"] == ["main-1", "main-2"]
    assert "sticky" in at.run("fleet", "show", "main").stdout
    assert at.answer("fleet", "remove-engine")["leaving"] is True
    assert at.answer("fleet", "list")["fleets"][0]["engines"] == ["main-1"]
    done = at.run("fleet", "remove-engine", "main", "--engine", "main-1")
    assert done.returncode == 1 and "the only engine" in done.stderr


def test_the_log_is_printed(at: Home) -> None:
    """As many lines as asked for, as the engine wrote them, each with its time."""
    done = at.run("engine", "logs", "--lines", "3")
    assert done.returncode == 0 and 1 <= len(done.stdout.splitlines()) <= 3
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in done.stdout.splitlines()), done.stdout
    assert {"number", "text"} <= set(at.answer("engine", "logs")["lines"][0])


def test_profiles_are_listed_shown_and_checked(at: Home) -> None:
    """From standard input too; broken JSON is told with its place, and ends with status 1."""
    (profile,) = at.answer("profile", "show")["profiles"]
    assert "main-1 v1" in at.run("profile", "show").stdout
    shown = at.answer("profile", "show", profile["name"])
    assert shown["number"] == 1 and shown["kv_transfer_config"]
    assert at.answer("profile", "validate", "-", stdin=PROFILE)["valid"] is True
    broken = at.run("profile", "validate", "-", stdin='{"cpu_bytes_to_use": 2g}')
    assert broken.returncode == 1 and "line 1" in broken.stdout


def test_the_same_findings_wherever_a_profile_is_told(at: Home, tmp_path: Path) -> None:
    """Checked, shown and applied: nearest key, fix and host memory stand in the text as in the JSON."""
    transfer = json.loads(PROFILE)
    transfer["kv_connector_extra_config"] = {"cpu_bytes_to_use": 10, "evict_policy": "lru"}
    flags = tmp_path / "flags.json"
    flags.write_text('{"tensor-parallel-size": 2}')
    done = at.run("profile", "validate", "-", "--flags", str(flags), stdin=json.dumps(transfer))
    assert done.returncode == 1
    assert "did you mean eviction_policy?" in done.stdout and "[Rename it to eviction_policy]" in done.stdout
    assert "was 10 GiB meant?" in done.stdout and "5 B x 2 = 10 B" in done.stdout
    (profile,) = at.answer("profile", "show")["profiles"]
    assert "findings now" in at.run("profile", "show", profile["name"]).stdout
    exported = {"format": "tierdeck-profile/1", "name": "x", "kv_transfer_config": transfer}
    assert "eviction_policy" in at.run("profile", "validate", "-", stdin=json.dumps(exported)).stdout
    applied = at.answer("profile", "apply", profile["name"])
    told = at.answer("profile", "validate", "-", stdin=json.dumps(profile["latest"]["kv_transfer_config"]))
    assert {one["path"] for one in told["findings"]} <= {one["path"] for one in applied["findings"]}


def test_a_version_is_applied_and_followed_to_its_end(at: Home) -> None:
    """The command ends when the engine runs it."""
    (profile,) = at.answer("profile", "show")["profiles"]
    done = at.run("profile", "apply", profile["name"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for step in ("check", "drain", "stop", "memory", "start", "ready", "canary", "release"):
        assert any(f"main-1: {step} ended" in line for line in lines), done.stdout
    assert lines[-1].endswith(": done.")


def test_the_token_opens_the_deck(at: Home) -> None:
    """The value alone on standard output, so that it can be used in a command; its place beside it."""
    done = at.run("token")
    assert done.stdout.strip() == (at.data_dir / "admin-token").read_text().strip()
    assert str(at.data_dir) in done.stderr
    assert at.answer("token")["token"] == done.stdout.strip()


def test_the_demo_traffic_plays_and_tells(at: Home) -> None:
    """Requests go through the door, none fails, and the deck's own count of their origin comes with it."""
    told = at.answer("demo-traffic", "--minutes", "0.05", "--seed", "3")
    assert told["seed"] == 3 and told["summary"]["requests"] > 3 and told["summary"]["failed"] == 0
    assert {"vram_tokens", "host_tokens", "recomputed_tokens"} <= set(told["token_origin"])


def test_the_demo_traffic_stops_when_asked(at: Home) -> None:
    """Ctrl-C: no traceback, and what was seen until then is still told."""
    process = subprocess.Popen(
        command("demo-traffic"), env=at.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "turn 2" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0, rest + errors
    assert errors == "Stopped.\n"
    assert "input tokens, 0 failed" in rest
