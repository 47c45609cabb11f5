"""Deeper than the text: an interpreter is asked once and kept, and what it cannot say is said."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.profiles.context import ModelFacts
from app.profiles.engine_checks import check_connector, check_dry_run, check_engine
from app.services.engine_probe import EngineProbe, ProbeFailed
from tests.fakes import fake_deck
from tests.unit.profiles.drafts import HYBRID, OURS, checked, config, document, patched
from tests.unit.web.conftest import BEARER, running

API = "/api/v1/profiles"
VALUE = {"takes_value": True, "choices": None}
SWITCH = {"takes_value": False, "choices": None}
FLAGS: dict[str, Any] = {
    "max-model-len": VALUE,
    "kv-cache-dtype": {"takes_value": True, "choices": ["auto", "fp8"]},
    "enforce-eager": SWITCH,
    "no-enforce-eager": SWITCH,
    "headless": SWITCH,
}


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every request that a child got, one a line."""
    log = tmp_path / "requests"
    monkeypatch.setenv("FAKE_PROBE_LOG", str(log))
    return log


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(fake_deck.build(tmp_path / "deck", "busy")) as client:
        client.headers.update(BEARER)
        yield client


def probe(tmp_path: Path, **options: Any) -> EngineProbe:
    directory = tmp_path / "deck" / "probes"
    directory.parent.mkdir(exist_ok=True)
    return EngineProbe(directory, entry=fake_deck.PROBE, **options)


def asked(requests: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in requests.read_text().splitlines()]


@pytest.mark.parametrize(
    ("flags", "words", "mended"),
    [
        ({"max-model-length": 1}, "max-model-len", {"max-model-len": 1}),
        ({"max-model-length": 1, "max-model-len": 2}, "max-model-len", {"max-model-len": 2}),
        ({"speculate-wildly": 1}, "no flag", {}),
        ({"headless": False}, "cannot be turned off", {}),
        ({"max-model-len": True}, "needs a value", None),
        ({"enforce-eager": "yes"}, "takes no value", {"enforce-eager": True}),
        ({"kv-cache-dtype": "fp7"}, "auto, fp8", {"kv-cache-dtype": "fp8"}),
    ],
)
def test_flags_that_the_engine_does_not_know(flags: dict[str, Any], words: str, mended: dict[str, Any] | None) -> None:
    """One error each, with the nearest flag and the change that makes the engine start."""
    (finding,) = check_engine(checked(flags=flags), FLAGS, None, None, None)
    assert finding.severity == "error"
    assert words in finding.message
    if mended is not None:
        assert patched(document(config(), flags), finding.fixes[0])["flags"] == mended


def test_flags_that_it_knows_are_quiet() -> None:
    """False where there is a no- flag, and null anywhere."""
    flags = {"max-model-len": 1, "enforce-eager": False, "kv-cache-dtype": "fp8", "anything": None}
    assert check_engine(checked(flags=flags), FLAGS, None, None, None) == []


def test_connector_and_architecture_are_looked_up() -> None:
    """Unknown ones are errors; a connector with a module of its own is not judged by its name."""
    found = check_engine(checked(config(connector="OfloadingConnector")), None, ["OffloadingConnector"], None, None)
    assert "OffloadingConnector" in found[0].message
    own = config(connector="Mine", kv_connector_module_path="my.module")
    assert check_engine(checked(own), None, ["OffloadingConnector"], None, None) == []
    model = ModelFacts("m", is_hybrid=False, architectures=("NewForCausalLM",))
    assert "NewForCausalLM" in check_engine(checked(), None, None, ["OldForCausalLM"], model)[0].message
    assert check_engine(checked(), None, None, ["NewForCausalLM"], model) == []


def test_what_came_of_importing_the_connector() -> None:
    """A failed import and missing hybrid support are errors; a missing plug-in is a warning."""
    good = {"connector": "m.C", "hybrid": True, "spec": "engine.spec.X", "error": None}
    assert check_connector(checked(), good, HYBRID) == []
    assert check_connector(checked(), {**good, "error": "ImportError: no lmcache"}, None)[0].severity == "error"
    assert check_connector(checked(), {**good, "hybrid": False}, HYBRID)[0].severity == "error"
    assert check_connector(checked(), {**good, "spec": "vllm.x.Y"}, HYBRID)[0].severity == "warning"


def test_dry_run_tells_refusals_apart_from_what_cannot_be_told() -> None:
    """Too little memory is an error; a version of vLLM that cannot be asked is a note."""
    step = {"name": "kv_sizing", "ok": False, "error": "ValueError: KV cache is too small."}
    assert [one.severity for one in check_dry_run({"steps": [step]})] == ["error"]
    assert [one.severity for one in check_dry_run({"steps": [{**step, "error": "TypeError: x"}]})] == ["note"]
    assert [one.severity for one in check_dry_run({"steps": [{**step, "ok": None}]})] == ["note"]
    assert [one.severity for one in check_dry_run({"steps": [{**step, "name": "arguments"}]})] == ["error"]


async def test_an_interpreter_is_asked_once(tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept over a restart of the deck; asked again when its packages changed."""
    first = await probe(tmp_path).facts(sys.executable)
    later = probe(tmp_path)
    assert later.known(sys.executable).engine_version == (0, 32)
    assert (await later.facts(sys.executable)) == first
    assert sum("facts" in one for one in asked(requests)) == 1
    monkeypatch.setenv("FAKE_VLLM", "0.33.0")
    assert (await later.facts(sys.executable)).engine_version == "0.33.0"
    assert sum("facts" in one for one in asked(requests)) == 2


async def test_an_answer_with_gaps_is_not_kept_for_the_next_deck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed today may work tomorrow."""
    monkeypatch.setenv("FAKE_PROBE", "gaps")
    facts = await probe(tmp_path).facts(sys.executable)
    assert facts.flags is None
    assert "flags" in facts.unanswered
    monkeypatch.delenv("FAKE_PROBE")
    assert (await probe(tmp_path).facts(sys.executable)).flags is not None


async def test_an_answer_that_cannot_be_kept_is_told_all_the_same(tmp_path: Path, requests: Path) -> None:
    """No file can be made there, as on a full disk; this deck still asks once."""
    (tmp_path / "probes").touch()
    asks = EngineProbe(tmp_path / "probes", entry=fake_deck.PROBE)
    for _ in range(2):
        assert (await asks.facts(sys.executable)).engine_version == "0.32.0"
    assert sum("facts" in one for one in asked(requests)) == 1


async def test_a_silent_interpreter_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit, with everything it started."""
    monkeypatch.setenv("FAKE_PROBE", "silent")
    began = time.monotonic()
    with pytest.raises(ProbeFailed, match="did not answer within"):
        await probe(tmp_path, limit_seconds=0.5).facts(sys.executable)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("interpreter", "words"), [("/no/such/python", "cannot be run"), (sys.executable, "no module named vllm")]
)
async def test_an_interpreter_without_an_answer_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str, words: str
) -> None:
    """Missing, or without vLLM."""
    monkeypatch.setenv("FAKE_PROBE", "noise")
    with pytest.raises(ProbeFailed, match=words):
        await probe(tmp_path).facts(interpreter)


async def validated(client: httpx.AsyncClient, depth: int, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"{API}/validate", json={"depth": depth, **body})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_second_depth_by_rest(client: httpx.AsyncClient) -> None:
    """Findings of the interpreter stand with those of the text; what was asked is named."""
    told = await validated(client, 2, kv_transfer_config=config(), flags={"max-model-length": 32768})
    assert [one["path"] for one in told["findings"] if one["severity"] == "error"] == ["flags.max-model-length"]
    assert not told["valid"]
    assert told["against"]["engine_version"] == "0.32.0"
    assert told["against"]["interpreter"] == sys.executable
    assert "0.32.0" in told["depth"]["summary"]


async def test_dry_run_by_rest_and_with_a_version(client: httpx.AsyncClient) -> None:
    """The numbers that the engine told become part of what is known of the version; the version stays as it was."""
    told = await validated(client, 3, kv_transfer_config=config(), flags={"max-model-len": 32768})
    assert told["valid"]
    assert told["depth"]["numbers"]["kv_tokens"] == 54138
    refused = await validated(client, 3, kv_transfer_config=config(), flags={"max-model-len": 2_000_000})
    assert any("too small for one request" in one["message"] for one in refused["findings"])
    assert not refused["valid"]
    before = (await client.get(f"{API}/agents/versions/3")).json()
    answer = await client.post(f"{API}/agents/versions/3/validate", json={"depth": 3})
    assert answer.status_code == 200, answer.text
    (deepest, *_) = answer.json()["validations"]
    assert (deepest["depth"], deepest["numbers"]["block_size"]) == (3, 384)
    after = (await client.get(f"{API}/agents/versions/3")).json()
    for part in ("kv_transfer_config", "flags", "environment", "created_at", "comment"):
        assert after[part] == before[part]
    page = (await client.get("/profiles/agents?version=3", headers={"accept": "text/html"})).text
    assert "54138 tokens in VRAM" in page


async def test_no_dry_run_with_errors_and_no_engine_without_a_word(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are findings, not faults of the deck."""
    told = await validated(client, 3, kv_transfer_config=config({**OURS, "cpu_bytes_to_use": -1}))
    assert any("correct them first" in one["message"] for one in told["findings"])
    monkeypatch.setitem(os.environ, "FAKE_PROBE", "noise")
    told = await validated(client, 2, kv_transfer_config=config())
    assert any("no module named vllm" in one["message"] for one in told["findings"])
    assert not told["valid"]


async def test_depths_beyond_are_refused(client: httpx.AsyncClient) -> None:
    """There are three."""
    assert (await client.post(f"{API}/validate", json={"depth": 4})).status_code == 422
