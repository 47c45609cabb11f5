"""Engines outlive the deck, and the next deck knows them again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from app.store.models import EngineRow
from app.supervisor.states import EngineState
from tests.integration.supervisor_rig import (
    READY,
    ROOT,
    STOPPED,
    Engine,
    is_alive,
    marked,
    prepared,
    supervising,
)

DECK = """
import asyncio, sys
from pathlib import Path
from app.store.database import Database
from tests.integration.supervisor_rig import READY, settings, supervising

async def main() -> None:
    config = settings(Path(sys.argv[1]))
    async with supervising(config, Database(config.resolved_database_url)) as rig:
        for phase in sys.argv[2:]:
            while rig.engines.status("one").phase != phase:
                await rig.engines.changed()
        if not sys.argv[2:]:
            await rig.until(READY)
        ready = await rig.engines.start("one")  # changes nothing; answered once the state is written
        print(ready.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def killed_deck(data_dir: Path, *phases: str) -> int:
    """A deck in a process of its own, killed by SIGKILL once its engine was ready, or was starting and had got to the
    last of these phases; the engine's pid.
    """
    deck = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DECK, str(data_dir), *phases), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert deck.stdout is not None
    while not (line := await asyncio.wait_for(deck.stdout.readline(), 30)).strip().isdigit():
        assert line, "the deck ended"
    deck.kill()
    await deck.wait()
    return int(line)


async def test_killed_deck_and_its_successor(tmp_path: Path) -> None:
    """A new deck adopts the engine of a killed one: same process, still answering, stopped as any other."""
    async with prepared(tmp_path, Engine({"fake-orphan": True}, wanted="running")) as (config, database):
        pid = await killed_deck(tmp_path)
        assert is_alive(pid)
        async with supervising(config, database) as rig:
            ready = await rig.until(READY)
            assert ready.pid == pid and ready.restarts == 0 and "served before" in ready.cause
            assert ready.started_at is not None and ready.started_at < ready.since
            assert ready.running_version == 1
            assert any("startup complete" in line.text for line in rig.engines.log_tail("one"))
            async with database.session() as session:
                row = await session.get(EngineRow, 1)
            assert row is not None and row.marker is not None
            assert len(marked(row.marker)) == 2
            await rig.engines.stop("one")
            await rig.until(STOPPED)
            assert marked(row.marker) == [] and not is_alive(pid)


async def test_an_engine_that_was_starting_goes_on_where_it_was(tmp_path: Path) -> None:
    """The next deck reads from its log how far it is, and is told what comes."""
    loading = "Loading the weights"
    async with prepared(tmp_path, Engine({"fake-start-seconds": 3600}, wanted="running")) as (config, database):
        pid = await killed_deck(tmp_path, loading)
        async with supervising(config, database) as rig:
            async with asyncio.timeout(30):
                while (status := rig.engines.status("one")).phase != loading:
                    await rig.engines.changed()
            assert (status.state, status.pid) == (EngineState.STARTING, pid)
            assert status.progress is not None and 0.3 < status.progress < 0.5
            await rig.engines.stop("one")
            await rig.until(STOPPED)
            assert not is_alive(pid)


async def test_adopted_engine_is_watched(tmp_path: Path) -> None:
    """The end of a process that is not our child is seen at once, too."""
    async with prepared(tmp_path, Engine({}, wanted="running")) as (config, database):
        pid = await killed_deck(tmp_path)
        async with supervising(config, database) as rig:
            await rig.until(READY)
            os.kill(pid, signal.SIGKILL)
            after = await rig.until(frozenset({EngineState.BACKOFF}))
            assert after.cause == "The engine exited while it served." and after.pid is None
            again = await rig.until(READY)
            assert again.pid != pid
            await rig.engines.stop("one")
            await rig.until(STOPPED)


@pytest.mark.parametrize("wanted", ["running", "stopped"])
async def test_engine_vanished_between_two_decks(tmp_path: Path, wanted: str) -> None:
    """The next deck says so, ends what is left of it, and acts by what the operator wants."""
    async with prepared(tmp_path, Engine({"fake-orphan": True}, wanted="running")) as (config, database):
        pid = await killed_deck(tmp_path)
        async with database.begin() as session:
            row = await session.get(EngineRow, 1)
            assert row is not None
            row.wanted = wanted
        os.kill(pid, signal.SIGKILL)
        (left_over,) = (other for other in marked(str(row.marker)) if other != pid)
        async with supervising(config, database) as rig:
            after = await rig.until(READY if wanted == "running" else STOPPED)
            assert not is_alive(left_over)
            causes = [transition.cause for transition in await rig.engines.transitions("one")]
            assert any(f"(pid {pid}) ended while no deck was running" in cause for cause in causes)
            if wanted == "running":
                assert after.pid not in {None, pid}
                await rig.engines.stop("one")
                await rig.until(STOPPED)


async def test_reused_pid_is_not_ours(tmp_path: Path) -> None:
    """A recorded pid that now is another program is neither adopted nor signalled."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    async with prepared(tmp_path, Engine({}, wanted="stopped")) as (config, database):
        try:
            async with database.begin() as session:
                row = await session.get(EngineRow, 1)
                assert row is not None
                row.state, row.pid, row.pid_started_at, row.marker = "ready", stranger.pid, 1.0, "gone"
            async with supervising(config, database) as rig:
                await rig.until(STOPPED)
            assert is_alive(stranger.pid)
        finally:
            stranger.kill()
            await stranger.wait()


async def test_deck_closed_during_a_start(tmp_path: Path) -> None:
    """A start goes on without the deck; the next one follows it to its end, with the log from its beginning."""
    flags = {"fake-start-seconds": 1.5}
    async with prepared(tmp_path, Engine(flags, wanted="running")) as (config, database):
        async with supervising(config, database) as rig:
            while (first := rig.engines.status("one")).phase != "Loading the weights":
                await asyncio.wait_for(rig.engines.changed(), 20)
        assert first.pid is not None and is_alive(first.pid)
        async with supervising(config, database) as rig:
            second = await rig.until(READY)
            assert second.pid == first.pid and "a first token came" in second.cause
            await rig.engines.stop("one")
            await rig.until(STOPPED)


async def test_deck_closed_with_engines_left_running(tmp_path: Path) -> None:
    """A deck that ends in order leaves its engines alone, and finds them where it left them."""
    async with prepared(tmp_path, Engine({}, wanted="running")) as (config, database):
        async with supervising(config, database) as rig:
            first = await rig.until(READY)
        assert is_alive(first.pid)
        async with supervising(config, database) as rig:
            second = await rig.until(READY)
            assert second.pid == first.pid
            await rig.engines.stop("one")
            await rig.until(STOPPED)
