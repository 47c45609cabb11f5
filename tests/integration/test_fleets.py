"""Fleets of several engines: added, changed and taken away while requests flow. Engines are the fake program."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.proxy.inflight import InFlight
from app.store.models import EngineRow, RolloutRow, TransitionRow
from app.supervisor.states import EngineState
from app.web.api.engines import router as engines_router
from app.web.api.fleets import router
from app.web.errors import install_error_handlers
from tests.integration.supervisor_rig import (
    LIMIT,
    READY,
    Engine,
    Rig,
    create_database,
    deck,
    free_port,
    is_alive,
    settings,
    supervising,
)

FLEETS = "/api/v1/fleets"


@asynccontextmanager
async def client_of(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    """The routes alone, on a deck that has engines and fleets."""
    app = FastAPI()
    app.include_router(router)
    app.include_router(engines_router)
    install_error_handlers(app)
    app.state.deck = SimpleNamespace(engines=rig.engines, fleets=rig.fleets, rollouts=rig.rollouts)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://deck") as client:
        yield client


def body(**changes: Any) -> dict[str, Any]:
    low = free_port()
    content = {
        "name": "agents",
        "model": "fake/other",
        "interpreter": sys.executable,
        "port_from": low,
        "port_to": min(low + 50, 65535),
        "profile": "demo",
    }
    return content | changes


async def gone(rig: Rig, name: str) -> None:
    """Wait until an engine is no longer supervised."""
    async with asyncio.timeout(LIMIT):
        while name in {status.name for status in rig.engines.statuses()}:
            await rig.engines.changed()


async def test_two_engines_side_by_side_and_one_leaves_under_load(tmp_path: Path) -> None:
    """Both become ready on ports of their own; the one taken away finishes what it has, and its history stays."""
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        made = await client.post(FLEETS, json=body(engines=2, base_flags={"fake-token-seconds": 0.02}))
        assert made.status_code == 201, made.text
        assert made.json()["engines"] == ["agents-1", "agents-2"]
        for name in ("agents-1", "agents-2"):
            await rig.engines.wait_for(name, READY, LIMIT)
        one, two = rig.engines.statuses("agents")
        assert one.port != two.port and one.served_model_name == "other"
        assert (await client.get(f"{FLEETS}/agents")).json()["ready"] == 2

        door = InFlight()
        rig.engines.in_flight, rig.engines.idle = door.count, door.idle

        async def answer() -> int:
            with door.enter("agents-2"):
                asked = {"model": "other", "prompt": "hello", "max_tokens": 50}
                async with httpx.AsyncClient(trust_env=False, timeout=LIMIT) as direct:
                    return (await direct.post(f"{two.base_url}/v1/completions", json=asked)).status_code

        requests = [asyncio.create_task(answer()) for _ in range(4)]
        await asyncio.sleep(0)
        left = await client.delete(f"{FLEETS}/agents/engines/agents-2")
        assert left.status_code == 202 and left.json()["leaving"] and left.json()["state"] == "draining"
        told = (await client.get(f"{FLEETS}/agents")).json()
        assert told["engines"] == ["agents-1"] and told["leaving"] == ["agents-2"]
        refused = await client.post("/api/v1/engines/agents-2/start")
        assert refused.status_code == 409 and "out of service" in refused.json()["error"]["message"]
        assert await asyncio.gather(*requests) == [200] * 4, "what it had begun it finished"
        await gone(rig, "agents-2")
        assert two.pid is not None and not is_alive(two.pid)
        assert rig.engines.status("agents-1").state is EngineState.READY
        assert (await client.get("/api/v1/engines/agents-2")).status_code == 404
        async with rig.database.session() as session:
            row = await session.get(EngineRow, 3)
            moves = (await session.scalars(TransitionRow.__table__.select().where(TransitionRow.engine_id == 3))).all()
        assert row is not None and row.retired_at is not None and len(moves) >= 4


async def test_an_engine_that_comes_back_keeps_its_history(tmp_path: Path) -> None:
    """The number that came free is given again, the same row with it; the newest leaves when none is named."""
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        await client.post(FLEETS, json=body())
        added = await client.post(f"{FLEETS}/agents/engines")
        assert added.status_code == 202 and added.json()["name"] == "agents-2"
        await rig.engines.wait_for("agents-2", READY, LIMIT)
        await client.delete(f"{FLEETS}/agents/engines")
        await gone(rig, "agents-2")
        assert (await client.post(f"{FLEETS}/agents/engines")).json()["name"] == "agents-2"
        await rig.engines.wait_for("agents-2", READY, LIMIT)
        assert len(await rig.engines.transitions("agents-2")) >= 4, "of its first life too"
        async with rig.database.session() as session:
            row = await session.get(EngineRow, 3)
        assert row is not None and row.name == "agents-2" and row.retired_at is None


async def test_what_is_changed_and_when_it_is_in_force(tmp_path: Path) -> None:
    """How requests are dealt is in force at once; flags and devices with the next start, which the fleet says."""
    dump = tmp_path / "dump"
    async with deck(tmp_path, Engine({"fake-dump": str(dump)})) as rig, client_of(rig) as client:
        await client.post(FLEETS, json=body())
        await rig.engines.wait_for("agents-1", READY, LIMIT)
        change = {"routing": "least_busy", "drain_timeout_seconds": 0.5, "base_flags": {"max-num-seqs": 3}}
        told = (
            await client.patch(f"{FLEETS}/agents", json=change | {"devices": [5], "environment": {"A": "x"}})
        ).json()
        assert told["routing"] == "least_busy" and told["restart_for"] == ["base_flags", "environment", "devices"]
        assert told["drain_timeout_seconds"] == 0.5
        status = rig.engines.status("agents-1")
        assert (status.routing, status.devices, status.serves) == ("least_busy", (), True)
        door = InFlight()
        rig.engines.in_flight, rig.engines.idle = door.count, door.idle
        with door.enter("agents-1"):
            await client.post("/api/v1/engines/agents-1/restart")
            async with asyncio.timeout(LIMIT):
                while not (now := rig.engines.status("agents-1")).serves or now.pid == status.pid:
                    await rig.engines.changed()
        moves = {move.old_state: move.at for move in reversed(await rig.engines.transitions("agents-1"))}
        assert 0.4 < moves[EngineState.DRAINING] - moves[EngineState.READY] < 4, "the fleet's limit, not the deck's"
        started = json.loads(dump.read_text())
        assert started["argv"][started["argv"].index("--max-num-seqs") + 1] == "3"
        assert started["environment"]["CUDA_VISIBLE_DEVICES"] == "5" and started["environment"]["A"] == "x"
        told = (await client.get(f"{FLEETS}/agents")).json()
        assert told["restart_for"] == [] and rig.engines.status("agents-1").devices == ("5",)


async def test_a_deleted_fleet_leaves_nothing_running(tmp_path: Path) -> None:
    """All its engines end; others go on; a fleet of the same name may be made again."""
    async with deck(tmp_path, Engine({}, wanted="running")) as rig, client_of(rig) as client:
        made = body(engines=2)
        await client.post(FLEETS, json=made)
        await rig.engines.wait_for("agents-2", READY, LIMIT)
        await rig.until(READY)
        left = await client.delete(f"{FLEETS}/agents")
        assert left.status_code == 202 and len(left.json()["leaving"]) == 2
        assert [fleet["name"] for fleet in (await client.get(FLEETS)).json()] == ["fleet"]
        for name in ("agents-1", "agents-2"):
            await gone(rig, name)
        assert rig.engines.status("one").serves
        assert (await client.post(FLEETS, json=made)).status_code == 201
        assert [status.name for status in rig.engines.statuses("agents")] == ["agents-1", "agents-2"]


async def test_a_deck_that_ends_meanwhile_goes_on_seeing_it_off(tmp_path: Path) -> None:
    """Taken out of service, then the deck is gone before the engine is: the next deck ends what is left of it."""
    config = settings(tmp_path)
    database = await create_database(config, Engine({}))
    async with supervising(config, database) as rig:
        await rig.fleets.create("agents", {"model": "fake/other", "interpreter": sys.executable}, "demo", engines=2)
        await rig.engines.wait_for("agents-2", READY, LIMIT)
        pid = rig.engines.status("agents-2").pid
        rig.engines.idle = lambda _name: asyncio.Event().wait()  # type: ignore[assignment,return-value]
        assert (await rig.fleets.remove_engine("agents", "agents-2")).state is EngineState.DRAINING
    assert pid is not None and is_alive(pid), "engines outlive this deck"
    async with supervising(settings(tmp_path, engines_outlive_deck=False), database) as rig:
        await gone(rig, "agents-2")
        assert not is_alive(pid)
        assert [status.name for status in rig.engines.statuses("agents")] == ["agents-1"]
    await database.close()


@pytest.mark.parametrize(
    ("change", "status", "path", "said"),
    [
        ({"name": "a b"}, 422, "name", "letters, digits"),
        ({"name": "fleet"}, 409, "name", "already"),
        ({"model": "/no/such"}, 422, "model", "does not exist"),
        ({"interpreter": "/no/python"}, 422, "interpreter", "does not exist"),
        ({"served_model_name": "fake"}, 422, "served_model_name", "serves this name already"),
        ({"profile": "none"}, 404, "profile", "no profile"),
        ({"version": 9}, 404, "version", "no version 9"),
        ({"engines": 0}, 422, "engines", "from 1 to 64"),
        ({"engines": 3, "port_from": 1, "port_to": 2}, 409, "port_to", "No port from 1 to 2"),
        ({"engines": 2, "devices": [0]}, 409, "devices", "has its engine"),
        ({"base_flags": {"host": "x"}}, 422, "base_flags.host", "the deck sets"),
        ({"colour": "red"}, 422, "colour", "no field"),
    ],
)
async def test_refused_and_nothing_half_done(
    tmp_path: Path, change: dict[str, Any], status: int, path: str, said: str
) -> None:
    """The error names the field and what to write; no fleet and no engine is left of it."""
    if path == "port_to":
        change = change | dict.fromkeys(("port_from", "port_to"), free_port())
        said = f"No port from {change['port_from']}"
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        answer = await client.post(FLEETS, json=body(**change))
        error = answer.json()["error"]
        assert (answer.status_code, error["path"]) == (status, path) and said in error["message"]
        assert [fleet["name"] for fleet in (await client.get(FLEETS)).json()] == ["fleet"]
        assert [engine.name for engine in rig.engines.statuses()] == ["one"]


async def test_what_forbids_changes(tmp_path: Path) -> None:
    """The only engine stays, what is unknown is told, and a rollout is not disturbed but by itself."""
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        for method, address, status in (
            ("GET", f"{FLEETS}/none", 404),
            ("PATCH", f"{FLEETS}/none", 404),
            ("DELETE", f"{FLEETS}/none", 404),
            ("POST", f"{FLEETS}/none/engines", 404),
            ("DELETE", f"{FLEETS}/fleet/engines/two", 404),
            ("DELETE", f"{FLEETS}/fleet/engines/one", 409),
        ):
            answer = await client.request(method, address, json={} if method != "DELETE" else None)
            assert answer.status_code == status and answer.json()["error"]["message"].endswith("."), address
        async with rig.database.begin() as session:
            rollout = RolloutRow(
                fleet_id=1, version_id=1, strategy="rolling", state="running", author="ann", started_at=1.0
            )
            session.add(rollout)
        for method, address in (("POST", f"{FLEETS}/fleet/engines"), ("DELETE", f"{FLEETS}/fleet")):
            answer = await client.request(method, address)
            assert answer.status_code == 409 and "started by ann" in answer.json()["error"]["message"]
        changed = await client.patch(f"{FLEETS}/fleet", json={"base_flags": {"max-num-seqs": 2}})
        assert changed.status_code == 409, "half of the engines would be started with it"
        assert (await client.patch(f"{FLEETS}/fleet", json={"routing": "least_busy"})).status_code == 200
        beside = await rig.fleets.add_engine("fleet", rollout_id=rollout.id)
        assert (await rig.fleets.remove_engine("fleet", beside.name, rollout_id=rollout.id)).leaving


async def test_a_new_engine_is_told_before_it_is_made(tmp_path: Path) -> None:
    """Name, port and profile are those that adding it then has; without room the sentence says why."""
    low = free_port()
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        await client.patch(f"{FLEETS}/fleet", json={"port_from": low, "port_to": low})
        told = (await client.get(f"{FLEETS}/fleet/new-engine")).json()
        assert (told["name"], told["port"], told["profile"], told["why_not"]) == ("fleet-1", low, "demo", "")
        added = (await client.post(f"{FLEETS}/fleet/engines")).json()
        assert (added["name"], added["port"]) == ("fleet-1", low)
        told = (await client.get(f"{FLEETS}/fleet/new-engine")).json()
        assert told["why_not"] == f"No port from {low} to {low} is free; give the fleet a wider range."


async def test_the_interface_is_described_with_examples_that_work(tmp_path: Path) -> None:
    """Every route says what it does; what is given as an example is taken as it stands."""
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        schema = (await client.get("/openapi.json")).json()
        routes = [told for path, ways in schema["paths"].items() if path.startswith(FLEETS) for told in ways.values()]
        assert len(routes) == 9 and all(route["description"] for route in routes)
        bodies = schema["components"]["schemas"]
        [new], [change] = bodies["NewFleetBody"]["examples"], bodies["FleetBody"]["examples"]
        assert (await client.patch(f"{FLEETS}/fleet", json=change)).json()["routing"] == change["routing"]
        here = {"model": "fake/example", "profile": "demo", "interpreter": sys.executable}
        made = await client.post(FLEETS, json=new | here)
        assert made.status_code == 201, made.text
        told = made.json()
        assert told["devices"] == [["0", "1"], ["2", "3"]] and told["engines"] == ["agents-1", "agents-2"]


async def test_a_refusal_is_told_in_the_language_asked_for(tmp_path: Path) -> None:
    """A page in Chinese has no English sentence in it; programs that ask for none get English."""
    async with deck(tmp_path, Engine({})) as rig, client_of(rig) as client:
        answer = await client.delete(f"{FLEETS}/fleet/engines/one", headers={"accept-language": "zh-CN"})
        assert answer.json()["error"]["message"] == "one 是 fleet 唯一的引擎；请改为删除机群。"
        answer = await client.delete(f"{FLEETS}/fleet/engines/one")
        assert answer.json()["error"]["message"] == "one is the only engine of fleet; delete the fleet instead."
