"""The planner over REST: what was sent, what lies on the machine, and the fleet's own."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.planner.wish import NAMES
from app.scrape.names import SeriesKey
from app.services import surroundings
from app.store.models import EngineRow, FleetRow
from app.store.queries import samples
from app.store.queries.samples import Row
from app.web.api.plan import PlanBody
from tests.fakes import fake_deck
from tests.unit.planner.models import MODELS, QWEN36_27B
from tests.unit.planner.test_asked import MALFORMED
from tests.unit.web.conftest import BEARER, running

GIB = 1 << 30
ADDRESS = "/api/v1/plan"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(fake_deck.build(tmp_path / "deck")) as client:
        client.headers.update(BEARER)
        yield client


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"text_config": QWEN36_27B}))
    return tmp_path / "model"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    told = answer.json()["error"]
    assert set(told) == {"code", "message", "path"}
    return dict(told)


async def test_text_object_and_path_are_three_ways_to_say_it(client: httpx.AsyncClient, model: Path) -> None:
    """With the same answer."""
    config = {"text_config": QWEN36_27B}
    bodies = ({"config": config}, {"config": json.dumps(config)}, {"model": str(model)})
    told = [(await client.post(ADDRESS, json={**body, "host_bytes": "64GiB"})).json() for body in bodies]
    assert told[0] == told[1] == told[2]
    assert told[0]["bytes_per_token"] == 65_536 and len(told[0]["slots"]) == 7


async def test_what_is_no_config_is_told_by_its_place(client: httpx.AsyncClient) -> None:
    """422 with a sentence, whatever was pasted; on the page in place of the plan."""
    for name, text in MALFORMED.items():
        answer = await client.post(ADDRESS, json={"config": text})
        assert answer.status_code == 422, name
        assert error_of(answer)["path"], name
        page = await client.post("/planner", data={"config": text}, headers={"accept": "text/html"})
        assert page.status_code == 200 and ("data-fault" in page.text or not text.strip()), name


async def test_a_body_that_is_no_json_is_told_too(client: httpx.AsyncClient) -> None:
    """Never a fault of the deck's own."""
    deep = '{"config": ' + '{"a":' * 50_000
    for body in ("", "{", "[]", "null", '{"config": NaN}', deep, '{"config": {}', "<html>"):
        answer = await client.post(ADDRESS, content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, body[:20]
        assert error_of(answer)["message"], body[:20]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "host_bytes"),
        ({"config": {}}, "num_hidden_layers"),
        ({"config": "{}", "model": "/m"}, "config"),
        ({"config": 3}, "config"),
        ({"config": MODELS["Qwen3-4B"].config, "host_bytes": "2g"}, "host_bytes"),
        ({"config": MODELS["Qwen3-4B"].config, "gpu_bytes": "80GB"}, "weights_bytes"),
        ({"config": MODELS["Qwen3-4B"].config, "world_size": 5}, "world_size"),
        ({"model": "/no/such/place"}, "model"),
        ({"model": "/etc/passwd"}, "model"),
        ({"model": "\0"}, "model"),
        ({"hots_bytes": 1}, "hots_bytes"),
    ],
)
async def test_errors_name_the_field(client: httpx.AsyncClient, body: dict[str, Any], path: str) -> None:
    """As it is written in the request."""
    answer = await client.post(ADDRESS, json=body)
    assert answer.status_code == 422
    assert (error_of(answer)["path"] or "").startswith(path)


def test_the_body_has_every_field_of_the_planner() -> None:
    """What the command can ask, REST can."""
    assert set(PlanBody.model_fields) == NAMES | {"config", "model"}


async def test_more_than_the_machine_has_is_a_warning(client: httpx.AsyncClient) -> None:
    """With both numbers."""
    body = {"config": QWEN36_27B, "host_bytes": "900 TiB"}
    findings = (await client.post(ADDRESS, json=body)).json()["findings"]
    assert "beyond_memory" in [finding["code"] for finding in findings]


async def test_a_plan_needs_a_sign_in(tmp_path: Path) -> None:
    """It reads files of the machine."""
    async with running(fake_deck.build(tmp_path)) as client:
        assert (await client.post(ADDRESS, json={"model": "/"})).status_code == 401


async def test_a_fleet_is_planned_as_it_runs(client: httpx.AsyncClient, model: Path) -> None:
    """Its model, its profile's sizes and lengths; its engine's slots while there are numbers."""
    database = client._transport.app.state.deck.database  # type: ignore[attr-defined]
    async with database.begin() as session:
        (await session.scalars(select(FleetRow))).one().model = str(model)
    told = (await client.get(ADDRESS, params={"fleet": "main"})).json()
    (current,) = [row for row in told["slots"] if row["is_current"]]
    assert current["reference_tokens"] == 65_536 and told["longest_tokens"] == 262_144
    assert told["host"]["host_bytes"] == 64 * GIB and told["host"]["layout_from"] == "model"
    assert told["host"]["retention_interval"] is None, "the profile does not set the flag"
    async with database.begin() as session:
        engine = (await session.scalars(select(EngineRow.id).order_by(EngineRow.name))).first()
        numbers = {("host_slots", "token"): 1000, ("host_slots", "state"): 50}
        numbers |= {("host_bytes", "token"): 40_000_000_000, ("host_bytes", "state"): 6_000_000_000}
        keys = {SeriesKey(name, (("pool", pool),)): value for (name, pool), value in numbers.items()}
        keys[SeriesKey("cache_config", (("block_size", "800"),))] = 1
        ids = await samples.add_series(session, engine, dict.fromkeys(keys, "gauge"))
        await samples.write(session, [Row(ids[key], time.time(), value, value) for key, value in keys.items()])
    told = (await client.get(ADDRESS)).json()
    host = told["host"]
    assert host["layout_from"] == "engine"
    assert (host["token_slot_bytes"], host["state_slot_bytes"], host["chunk_tokens"]) == (40_000_000, 120_000_000, 800)
    sentences = [one["message"] for one in told["findings"] if one["code"].startswith("engine_")]
    assert any("blocks of 800 tokens" in one and f"have {told['block_tokens']}" in one for one in sentences)
    assert any("38.1 MiB" in one for one in sentences) and len(sentences) == 3


async def test_an_engine_with_slots_of_another_size_is_not_asked(client: httpx.AsyncClient, model: Path) -> None:
    """What runs tells nothing of a draft with another type of KV; of one with another reference length it does."""
    deck = client._transport.app.state.deck  # type: ignore[attr-defined]
    async with deck.database.begin() as session:
        (await session.scalars(select(FleetRow))).one().model = str(model)
        engine = (await session.scalars(select(EngineRow.id).order_by(EngineRow.name))).first()
        keys = {
            SeriesKey("host_slots", (("pool", "token"),)): 1000,
            SeriesKey("host_bytes", (("pool", "token"),)): 4e10,
        }
        ids = await samples.add_series(session, engine, dict.fromkeys(keys, "gauge"))
        await samples.write(session, [Row(ids[key], time.time(), value, value) for key, value in keys.items()])
    version = await deck.profiles.version("agents", 3)
    for change, source in (({"kv-cache-dtype": "fp8"}, "model"), ({"max-model-len": 131_072}, "engine")):
        body = {"kv_transfer_config": version.kv_transfer_config, "flags": {**version.flags, **change}}
        told = (await client.post("/api/v1/profiles/plan", json=body)).json()
        assert told["host"]["layout_from"] == source


async def test_a_draft_is_planned_while_it_is_typed(client: httpx.AsyncClient, model: Path) -> None:
    """For the fleet's model; each reference length with its slots, this one marked. Sizes with units too."""
    async with client._transport.app.state.deck.database.begin() as session:  # type: ignore[attr-defined]
        (await session.scalars(select(FleetRow))).one().model = str(model)
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": "64 GiB", "eviction_policy": "lru"}
    extra |= {"mamba_state_slots_reference_tokens": 16_384}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    flags = {"max-model-len": 131_072, "prefix-cache-retention-interval": 0, "tensor-parallel-size": 4}
    body = {"kv_transfer_config": json.dumps(config), "flags": json.dumps(flags)}
    told = (await client.post("/api/v1/profiles/plan", json=body)).json()
    assert [row["reference_tokens"] for row in told["slots"]] == [4096, 8192, 16384, 32768, 65536, 131072]
    assert [row["reference_tokens"] for row in told["slots"] if row["is_current"]] == [16_384]
    longer = (await client.post("/api/v1/profiles/plan", json={**body, "session_tokens": 65_536})).json()
    assert longer["host"]["session_tokens"] == 65_536
    for wrong in ({"kv_transfer_config": "{"}, {"flags": '{"max-model-len": "x"}'}):
        answer = await client.post("/api/v1/profiles/plan", json={**body, **wrong})
        assert answer.status_code == 422 and error_of(answer)["path"]
    assert (await client.post("/api/v1/profiles/plan", json={**body, "fleet": "nobody"})).status_code == 404


async def test_a_fleet_whose_model_is_elsewhere_says_so(client: httpx.AsyncClient) -> None:
    """And an unknown fleet is not found."""
    assert error_of(await client.get(ADDRESS))["path"] == "model"
    assert (await client.get(ADDRESS, params={"fleet": "other"})).status_code == 404


@pytest.mark.parametrize(("flags", "layer_bytes"), [("avx512f avx512_bf16", 1_592_832), ("avx2", 806_400)])
async def test_a_cpu_without_fast_kernels_keeps_states_as_the_model_has_them(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, layer_bytes: int
) -> None:
    """vLLM keeps float32 only where its kernels want it; what is planned for this machine follows the machine."""
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Granite-4.0-H-Tiny"].config))
    monkeypatch.setattr(surroundings, "CPU_FACTS", tmp_path / "cpuinfo")
    surroundings.has_fast_states.cache_clear()
    async with client._transport.app.state.deck.database.begin() as session:  # type: ignore[attr-defined]
        (await session.scalars(select(FleetRow))).one().model = str(tmp_path)
    host = (await client.get(ADDRESS)).json()["host"]
    surroundings.has_fast_states.cache_clear()
    assert host["state_slot_bytes"] == 36 * layer_bytes
