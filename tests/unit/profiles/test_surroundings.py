"""What a profile is checked against on this machine: the fleet's model, and what other fleets already ask for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.store.models import EngineRow, FleetRow
from app.supervisor import machine
from tests.fakes import fake_deck
from tests.unit.planner.models import GPT_OSS, QWEN36_27B, plain
from tests.unit.profiles.drafts import GIB, OURS, config
from tests.unit.web.conftest import BEARER, running

API = "/api/v1/profiles"
HYBRID_FLAGS = {"enable-prefix-caching": True, "mamba-cache-mode": "align", "prefix-cache-retention-interval": 0}


@pytest.fixture
def application(tmp_path: Path) -> FastAPI:
    """A played deck."""
    return fake_deck.build(tmp_path / "deck", "idle")


@pytest.fixture
async def client(
    application: FastAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A machine of 100 GiB with a fleet of a hybrid model, and a second fleet of two engines."""
    for name, value in (("memory_bytes", 100 * GIB), ("group_limit", None), ("shared_bytes", 100 * GIB)):
        monkeypatch.setattr(machine, name, lambda value=value: value)
    async with running(application) as client:
        client.headers.update(BEARER)
        await client.post(
            f"{API}/other/versions", json={"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 30 * GIB})}
        )
        await add_fleets(application, tmp_path)
        yield client


async def add_fleets(application: FastAPI, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN36_27B))
    async with application.state.deck.database.begin() as session:
        (await session.get_one(FleetRow, 1)).model = str(tmp_path)
        session.add(FleetRow(name="chat", model="hub/chat", served_model_name="c", interpreter="python", created_at=0))
        await session.flush()
        for number in (1, 2):
            session.add(
                EngineRow(fleet_id=2, name=f"chat-{number}", port=8800 + number, profile_version_id=4, created_at=0)
            )


async def told(client: httpx.AsyncClient, **body: Any) -> dict[str, str]:
    """Path -> what is said there."""
    answer = await client.post(f"{API}/validate", json=body)
    assert answer.status_code == 200, answer.text
    return {one["path"].rpartition(".")[2]: one["message"] for one in answer.json()["findings"]}


async def test_the_fleet_s_model_decides_what_is_asked_for(client: httpx.AsyncClient) -> None:
    """A hybrid wants align and, on the CPU, its block size; a hub name tells nothing, so nothing is judged by it."""
    body = {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 4 * GIB})}
    found = await told(client, fleet="main", **body)
    assert "align" in found["mamba-cache-mode"]
    assert "block-size" in found
    assert "mamba-cache-mode" not in await told(client, fleet="chat", **body)


async def test_what_other_fleets_ask_for_counts(client: httpx.AsyncClient) -> None:
    """Two engines of 30 GiB leave 40 of 100; their own profile is not held against itself."""
    body = {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 50 * GIB}), "flags": HYBRID_FLAGS}
    found = await told(client, fleet="main", **body)
    assert "chat (other v1) 30 GiB, chat (other v1) 30 GiB" in found["cpu_bytes_to_use"]
    fits = {**body, "kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 40 * GIB})}
    assert "cpu_bytes_to_use" not in await told(client, fleet="main", **fits)
    again = {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 30 * GIB})}
    assert "cpu_bytes_to_use" not in await told(client, fleet="chat", **again)


async def test_a_comparison_says_what_the_change_means(client: httpx.AsyncClient) -> None:
    """In bytes over all ranks, slots, tokens held and sessions, by the planner and the fleet's model."""
    for reference in (262_144, 65_536):
        transfer = config(
            {
                **OURS,
                "cpu_bytes_to_use": 32 * GIB,
                "eviction_policy": "lru",
                "mamba_state_slots_reference_tokens": reference,
            }
        )
        body = {"kv_transfer_config": transfer, "flags": HYBRID_FLAGS, "fleet": "main"}
        assert (await client.post(f"{API}/split/versions", json=body)).status_code == 201
    async with client.stream("GET", f"{API}/split/compare", params={"old": 1, "new": 2}) as answer:
        compared = json.loads(await answer.aread())
    means = {one["name"]: (one["old"], one["new"]) for one in compared["consequences"]}
    assert "host_total" not in means
    assert means["token_slots"][0] > means["token_slots"][1]
    assert means["state_slots"][0] < means["state_slots"][1]
    other = (await client.get(f"{API}/compare", params={"old": "split@2", "new": "other"})).json()["consequences"]
    assert (32 * GIB, 30 * GIB) in [(one["old"], one["new"]) for one in other]


async def test_host_memory_is_compared_as_the_fleet_starts_it(client: httpx.AsyncClient, application: FastAPI) -> None:
    """Ranks that the fleet's own flags set take memory each."""
    async with application.state.deck.database.begin() as session:
        (await session.get_one(FleetRow, 1)).base_flags = {"tensor-parallel-size": 2}
    for size in (4, 5):
        body = {"kv_transfer_config": config({"max_local_cpu_size": size}, "LMCacheConnectorV1"), "fleet": "main"}
        assert (await client.post(f"{API}/ranks/versions", json=body)).status_code == 201
    told = (await client.get(f"{API}/ranks/compare", params={"old": 1, "new": 2})).json()["consequences"]
    assert [(one["name"], one["old"], one["new"]) for one in told] == [("host_total", 8 * GIB, 10 * GIB)]


async def test_versions_are_compared_at_the_same_length_of_sessions(client: httpx.AsyncClient) -> None:
    """Counted for both lengths on both sides; another type of KV shows in a token, a block and in VRAM."""
    tier = {**OURS, "cpu_bytes_to_use": 32 * GIB, "eviction_policy": "lru"}
    sized = {**HYBRID_FLAGS, "kv-cache-memory-bytes": 60 * GIB, "max-model-len": 131_072}
    for reference, flags in ((16_384, sized), (65_536, {**sized, "kv-cache-dtype": "fp8"})):
        transfer = config({**tier, "mamba_state_slots_reference_tokens": reference})
        body = {"kv_transfer_config": transfer, "flags": flags, "fleet": "main"}
        assert (await client.post(f"{API}/lengths/versions", json=body)).status_code == 201
    told = (await client.get(f"{API}/lengths/compare", params={"old": 1, "new": 2})).json()["consequences"]
    sessions = {one["session_tokens"]: (one["old"], one["new"]) for one in told if one["session_tokens"]}
    assert set(sessions) == {16_384, 65_536}
    assert all(old and new for old, new in sessions.values())
    numbers = {one["name"]: (one["old"], one["new"]) for one in told}
    assert numbers["bytes_per_token"] == (65_536, 32_768)
    assert numbers["block_tokens"][1] > numbers["block_tokens"][0]
    assert numbers["vram_sequences"][1] > numbers["vram_sequences"][0]


async def test_runs_are_told_with_their_numbers(client: httpx.AsyncClient) -> None:
    """Nothing has run here yet; an unknown profile is not found."""
    assert (await client.get(f"{API}/agents/runs")).json() == {"runs": []}
    assert (await client.get(f"{API}/nobody/runs")).status_code == 404


async def test_with_several_fleets_the_page_asks_for_which(tmp_path: Path) -> None:
    """With one there is nothing to choose."""
    application = fake_deck.build(tmp_path, "busy")
    async with running(application) as client:
        headers = BEARER | {"accept": "text/html"}
        assert 'id="for-fleet"' not in (await client.get("/profiles/agents", headers=headers)).text
        application.state.deck.engines.set("main-2", fleet="zeta")
        assert '<option value="zeta">' in (await client.get("/new-profile", headers=headers)).text
        page = (await client.get("/profiles/agents", headers=headers)).text
        assert '<option value="main" selected>' in page and '<option value="zeta">' in page


async def test_the_planner_s_rules_on_the_model_hold_while_typing(
    client: httpx.AsyncClient, application: FastAPI, tmp_path: Path
) -> None:
    """Ranks that cannot share its heads; and a model that is not there is said to be so."""
    body = {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 4 * GIB}), "flags": {"tensor-parallel-size": 3}}
    assert "cannot be shared evenly" in (await told(client, fleet="main", **body))["tensor-parallel-size"]
    assert "model" not in await told(client, fleet="main", **body)
    async with application.state.deck.database.begin() as session:
        (await session.get_one(FleetRow, 1)).model = str(tmp_path / "lost")
    assert str(tmp_path / "lost") in (await told(client, fleet="main", **body))["model"]


async def test_chunks_of_a_model_with_sliding_windows_are_refused_while_typing(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """As the plan refuses them."""
    (tmp_path / "config.json").write_text(
        json.dumps(plain(24, 64, 8, 2880, layer_types=["sliding_attention", "full_attention"] * 12, **GPT_OSS))
    )
    extra = {**OURS, "cpu_bytes_to_use": 4 * GIB, "blocks_per_chunk": 2}
    found = await told(client, fleet="main", kv_transfer_config=config(extra))
    assert "sliding windows" in found["blocks_per_chunk"]
