"""Processes that are killed, a port that is stolen: recovered within the documented limits, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from app.store.models import EngineRow
from app.supervisor.processes import find_tree, names_of
from app.supervisor.states import EngineState
from tests.integration.supervisor_rig import (
    LIMIT,
    READY,
    STOPPED,
    Engine,
    deck,
    free_port,
    free_ports,
    give_range,
    is_alive,
    marker_of,
    port_is_open,
    processes_of,
    taken,
)

FAILED = frozenset({EngineState.FAILED})
#: From the end of a process to the next launch, on a first failure: 10 s are documented, and this machine may be busy.
RESTART_SECONDS = 15.0


def of_us(pids: list[int]) -> list[str]:
    """Shared-memory files of these processes."""
    return [f"psm_fake{pid:x}" for pid in pids if Path(f"/dev/shm/psm_fake{pid:x}").exists()]


@pytest.mark.parametrize("victim", ["front end", "VLLM::EngineCor", "VLLM::Worker_TP"])
async def test_killed_process_of_the_tree(tmp_path: Path, victim: str) -> None:
    """Whichever is killed: a new engine soon, no process and no shared memory of the old one."""
    flags = {"fake-core": True, "fake-shared-memory": 65536}
    async with deck(tmp_path, Engine(flags, wanted="running"), stop_grace_seconds=30) as rig:
        first = await rig.until(READY)
        names = names_of(find_tree(await marker_of(rig), None))
        assert len(names) == 3
        (pid,) = [first.pid] if victim == "front end" else [pid for pid, name in names.items() if name == victim]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await rig.until(frozenset({EngineState.BACKOFF}))
        second = await rig.until(READY)
        assert time.monotonic() - began < RESTART_SECONDS
        assert second.pid != first.pid and second.restarts == 1
        assert not any(is_alive(old) for old in names) and of_us(list(names)) == []
        assert len(await processes_of(rig)) == 3


async def test_leftovers_that_ignore_sigterm(tmp_path: Path) -> None:
    """Without a front end nobody waits out the whole grace: what is left is shown, then killed."""
    flags = {"fake-orphan": True, "fake-shared-memory": 65536}
    async with deck(tmp_path, Engine(flags, wanted="running"), stop_grace_seconds=60) as rig:
        first = await rig.until(READY)
        old = await processes_of(rig)
        began = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while not (status := rig.engines.status("one")).leftover_processes:
                await rig.engines.changed()
        assert status.leftover_processes == 1 and (status.leftover_bytes or 0) > 1_000_000
        second = await rig.until(frozenset({EngineState.STARTING}))
        assert time.monotonic() - began < RESTART_SECONDS
        await rig.until(READY)
        assert not any(is_alive(pid) for pid in old) and of_us(old) == []
        assert second.restarts == 1


async def test_port_stolen_between_stop_and_start(tmp_path: Path) -> None:
    """Told with pid and name of who has it, and started as soon as it is given back."""
    async with deck(tmp_path, Engine({}, port=free_port(), wanted="running")) as rig:
        ready = await rig.until(READY)
        await rig.engines.stop("one", now=True)
        await rig.until(STOPPED)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", ready.port))
            thief.listen()
            await rig.engines.start("one")
            failed = await rig.until(FAILED)
            assert failed.error_code == "port_in_use"
            assert failed.cause.startswith(f"Port {ready.port} is in use by another program (pid {os.getpid()}, ")
            assert "free again" in failed.cause
        began = time.monotonic()
        again = await rig.until(READY)
        assert time.monotonic() - began < RESTART_SECONDS
        assert again.error_code is None
        moves = await rig.engines.transitions("one")
        assert [move.cause for move in moves if move.old_state is EngineState.FAILED] == ["Its port is free again."]


async def test_a_port_that_stays_stolen(tmp_path: Path) -> None:
    """Told, and after the wait the engine serves on the first free port of its fleet, which it keeps."""
    first, second, third = free_ports(3)
    async with deck(tmp_path, Engine({}, port=first), port_wait_seconds=0.5) as rig:
        await give_range(rig, first, third)
        with taken(first, second):
            await rig.engines.start("one")
            lost = await rig.until(FAILED)
            assert lost.error_code == "port_in_use" and f"pid {os.getpid()}" in lost.cause and lost.port == first
            ready = await rig.until(READY)
            assert (ready.port, ready.base_url) == (third, f"http://127.0.0.1:{third}")
        assert port_is_open(third)
        moved = next(m for m in await rig.engines.transitions("one") if m.old_state is EngineState.FAILED)
        assert moved.cause == f"Port {first} was still in use after 0.5 s; moved to port {third}."
        assert moved.evidence == {"old_port": first, "new_port": third}
        await rig.engines.restart("one")
        async with asyncio.timeout(LIMIT):
            while not (again := rig.engines.status("one")).serves or again.pid == ready.pid:
                await rig.engines.changed()
        assert again.port == third, "it does not go back and forth"


async def test_two_engines_that_lose_their_ports_get_two(tmp_path: Path) -> None:
    """Whichever looks first."""
    ports = free_ports(4)
    async with deck(tmp_path, Engine({}, port=ports[0]), port_wait_seconds=0.3) as rig:
        await give_range(rig, ports[0], ports[3])
        async with rig.database.begin() as session:
            first = await session.get_one(EngineRow, 1)
            same = {"fleet_id": first.fleet_id, "profile_version_id": first.profile_version_id}
            session.add(EngineRow(name="two", port=ports[1], wanted="stopped", created_at=1.0, **same))
        await rig.engines.load()
        with taken(*ports[:2]):
            for name in ("one", "two"):
                await rig.engines.start(name)
            for name in ("one", "two"):
                await rig.engines.wait_for(name, READY, LIMIT)
        assert {one.port for one in rig.engines.statuses()} == set(ports[2:])


@pytest.mark.parametrize("seconds", [0.3, 0.0])
async def test_a_stolen_port_without_another(tmp_path: Path, seconds: float) -> None:
    """The range has no free one, or the settings say that it waits: it waits for its own."""
    first, other = free_ports(2)
    async with deck(tmp_path, Engine({}, port=first), port_wait_seconds=seconds) as rig:
        await give_range(rig, first, first if seconds else other)
        with taken(first):
            await rig.engines.start("one")
            await rig.until(FAILED)
            with pytest.raises(TimeoutError):
                await rig.engines.wait_for("one", READY, 2.5)
            assert (rig.engines.status("one").state, rig.engines.status("one").port) == (EngineState.FAILED, first)
        assert (await rig.until(READY)).port == first


async def test_a_lost_port_that_nobody_waits_for_any_more(tmp_path: Path) -> None:
    """An engine that is stopped meanwhile does not come up by itself."""
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        port = thief.getsockname()[1]
        async with deck(tmp_path, Engine({}, port=port, wanted="running")) as rig:
            await rig.until(FAILED)
            await rig.engines.stop("one")
            await rig.until(STOPPED)
            thief.close()
            await asyncio.sleep(1.5)
            assert rig.engines.status("one").state is EngineState.STOPPED


async def test_stopped_core_is_stopped_with_the_rest(tmp_path: Path) -> None:
    """A core under SIGSTOP hears no SIGTERM; a stop of the engine ends it within grace and kill."""
    async with deck(tmp_path, Engine({"fake-core": True}, wanted="running"), stop_grace_seconds=1) as rig:
        await rig.until(READY)
        names = names_of(find_tree(await marker_of(rig), None))
        (core,) = (pid for pid, name in names.items() if name == "VLLM::EngineCor")
        os.kill(core, signal.SIGSTOP)
        began = time.monotonic()
        await rig.engines.stop("one", now=True)
        await rig.until(STOPPED)
        assert time.monotonic() - began < RESTART_SECONDS
        assert not any(is_alive(pid) for pid in names)
