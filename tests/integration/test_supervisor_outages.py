"""The deck's own database or disk fails for a while: engines are supervised all the same, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from app.store import owed
from app.store.models import EngineRow, RunRow
from app.supervisor import logwatch, processes, runrecord
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.databases import away, fallible, kinds
from tests.integration.supervisor_rig import (
    LIMIT,
    READY,
    STOPPED,
    Engine,
    Rig,
    create_database,
    deck,
    is_alive,
    settings,
    supervising,
)

BACKOFF = frozenset({EngineState.BACKOFF})


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed, "AGAIN_SECONDS", 0.2)
    monkeypatch.setattr("app.services.engines.AGAIN_SECONDS", 0.2)


async def written(rig: Rig, is_there: Callable[[EngineRow], bool]) -> EngineRow:
    """Wait until the row of engine `one` says so."""
    async with asyncio.timeout(LIMIT):
        while True:
            async with rig.database.session() as session:
                row = await session.get_one(EngineRow, 1)
            if is_there(row):
                return row
            await asyncio.sleep(0.05)


async def tried(rig: Rig, times: int) -> EngineStatus:
    """Wait until engine `one` has been tried so often, and waits for the next time."""
    async with asyncio.timeout(LIMIT):
        while (status := rig.engines.status("one")).restarts < times or status.state is not EngineState.BACKOFF:
            await rig.engines.changed()
    return status


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("kind", kinds())
async def test_a_life_without_the_database_is_written_afterwards(tmp_path: Path, kind: str) -> None:
    """A crash, the wait after it, and a stop while nothing can be written: they happen, and the history has them."""
    with fallible(kind, tmp_path) as (url, outage):
        config = settings(tmp_path, engines_outlive_deck=False, database_url=url, restart_wait_seconds=60.0)
        database = await create_database(config, Engine({}, wanted="running"))
        async with supervising(config, database) as rig:
            first = await rig.until(READY)
            with outage(database):
                os.kill(first.pid, signal.SIGKILL)
                waiting = await rig.until(BACKOFF)
                assert "SIGKILL" in waiting.cause and waiting.pid is None
                await rig.engines.stop("one")
                await rig.until(STOPPED)
                assert not is_alive(first.pid)
            row = await written(rig, lambda one: one.state == "stopped" and one.marker is None)
            moves = [(move.old_state.value, move.new_state.value) for move in await rig.engines.transitions("one", 4)]
            async with database.session() as session:
                runs = (await session.scalars(select(RunRow))).all()
        assert (row.pid, row.wanted) == (None, "stopped")
        assert moves == [("stopping", "stopped"), ("backoff", "stopping"), ("ready", "backoff"), ("starting", "ready")]
        assert [run.ended_at is not None for run in runs] == [True]
        await database.close()


async def test_a_start_waits_for_the_database(tmp_path: Path) -> None:
    """Nothing is launched that could not be found again; it says why, is not given up, and comes up afterwards."""
    async with deck(tmp_path, Engine({}), restart_wait_cap_seconds=0.2) as rig:
        with away(rig.database):
            await rig.engines.start("one")
            waiting = await tried(rig, 5)
            assert "database is locked" in waiting.cause and waiting.error_code == "internal"
        ready = await rig.until(READY)
        await written(rig, lambda one: (one.pid, one.state) == (ready.pid, "ready"))


async def test_a_process_that_could_not_be_written_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database goes away in the moment of the launch: the engine comes up, and its process is written later."""
    async with deck(tmp_path, Engine({})) as rig:
        spawn, outage = processes.spawn, away(rig.database)

        def spawn_and_lose(*arguments: Any) -> processes.Process:
            outage.__enter__()
            return spawn(*arguments)

        monkeypatch.setattr(processes, "spawn", spawn_and_lose)
        await rig.engines.start("one")
        ready = await rig.until(READY)
        assert ready.restarts == 0
        outage.__exit__(None, None, None)
        await written(rig, lambda one: (one.pid, one.state) == (ready.pid, "ready"))


async def test_a_start_waits_for_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is told that never was; with room it starts."""
    async with deck(tmp_path, Engine({}), restart_wait_cap_seconds=0.2) as rig:
        with monkeypatch.context() as patched:
            patched.setattr(runrecord, "write", full)
            await rig.engines.start("one")
            waiting = await tried(rig, 5)
            assert "No space left on device" in waiting.cause and waiting.error_code == "internal"
            row = await written(rig, lambda one: one.state == "backoff")
            assert (row.marker, row.running_version_id) == (None, None)
        assert (await rig.until(READY)).error_code is None


async def test_a_full_disk_stops_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the run cannot be written any more: every process is ended, its shared memory given back."""
    async with deck(tmp_path, Engine({"fake-shared-memory": 65536}, wanted="running")) as rig:
        ready = await rig.until(READY)
        monkeypatch.setattr(runrecord, "write", full)
        await rig.engines.stop("one")
        stopped = await rig.until(frozenset({EngineState.STOPPED, EngineState.FAILED}))
        assert (stopped.state, is_alive(ready.pid)) == (EngineState.STOPPED, False)
        assert not Path(f"/dev/shm/psm_fake{ready.pid:x}").exists()


async def test_a_log_that_cannot_be_rotated_is_still_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for the copy: its lines are still read, its end is still noticed, and with room it is rotated."""
    monkeypatch.setattr(logwatch, "ROTATE_AGAIN_SECONDS", 0.1)
    tries = asyncio.Event()
    loop = asyncio.get_running_loop()

    def no_room(_log: object) -> bool:
        loop.call_soon_threadsafe(tries.set)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("app.supervisor.logfile.LogFile.rotate_if_large", no_room)
    async with deck(tmp_path, Engine({}, wanted="running"), restart_wait_seconds=60.0) as rig:
        ready = await rig.until(READY)
        for _ in range(2):
            tries.clear()
            await asyncio.wait_for(tries.wait(), LIMIT)
        os.kill(ready.pid, signal.SIGKILL)
        assert "SIGKILL" in (await rig.until(BACKOFF)).cause


async def test_an_end_is_noticed_though_it_cannot_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file descriptor is free for a while."""
    monkeypatch.setattr("app.supervisor.run._AGAIN_SECONDS", 0.05)
    wait_exit, tried = processes.wait_exit, 0

    async def wait(process: processes.Process) -> Any:
        nonlocal tried
        tried += 1
        if tried <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return await wait_exit(process)

    monkeypatch.setattr(processes, "wait_exit", wait)
    async with deck(tmp_path, Engine({}, wanted="running"), restart_wait_seconds=60.0) as rig:
        ready = await rig.until(READY)
        os.kill(ready.pid, signal.SIGKILL)
        assert "SIGKILL" in (await rig.until(BACKOFF)).cause


async def test_engines_of_a_fleet_that_could_not_be_taken_up_at_once(tmp_path: Path) -> None:
    """Written, then the database went away: they are taken up, and seen off, as soon as it answers."""
    async with deck(tmp_path, Engine({}, wanted="running")) as rig:
        await rig.until(READY)
        async with rig.database.begin() as session:
            first = await session.get_one(EngineRow, 1)
            session.add(
                EngineRow(
                    fleet_id=first.fleet_id,
                    name="two",
                    port=1,
                    profile_version_id=first.profile_version_id,
                    wanted="stopped",
                    created_at=1.0,
                )
            )
            first.retired_at = 2.0
        with away(rig.database):
            for attempt in (rig.engines.load(), rig.engines.see_off("one")):
                with pytest.raises(SQLAlchemyError):
                    await attempt
            assert [one.name for one in rig.engines.statuses()] == ["one"]
        async with asyncio.timeout(LIMIT):
            while [one.name for one in rig.engines.statuses()] != ["two"]:
                await asyncio.sleep(0.05)
        assert (await rig.engines.stop("two")).state is EngineState.STOPPED, "it hears commands"
