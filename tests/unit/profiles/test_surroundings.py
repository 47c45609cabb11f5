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
from tests.unit.planner.models import QWEN36_27B
from tests.unit.profiles.drafts import GIB, OURS, config
from tests.unit.web.conftest import BEARER, running

API = "/api/v1/profiles"
HYBRID_FLAGS = {"enable-prefix-caching": True, "mamba-cache-mode": "align", "prefix-cache-retention-interval": 0}


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """A machine of 100 GiB with a fleet of a hybrid model, and a second fleet of two engines."""
    for name, value in (("memory_bytes", 100 * GIB), ("group_limit", None), ("shared_bytes", 100 * GIB)):
        monkeypatch.setattr(machine, name, lambda value=value: value)
    application = fake_deck.build(tmp_path / "deck", "idle")
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
        application.state.deck.engines.set("main-2", fleet="chat")
        for address in ("/profiles/agents", "/new-profile"):
            assert '<option value="chat">' in (await client.get(address, headers=headers)).text
