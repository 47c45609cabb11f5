"""Starts and stops on GPUs whose memory comes and goes, with a driver that tests play."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.store.models import EngineRow
from app.supervisor.devices import Device, Holder
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.integration.supervisor_rig import (
    READY,
    SETTLED,
    STOPPED,
    Engine,
    Rig,
    create_database,
    free_port,
    is_alive,
    settings,
    supervising,
)

GIB = 1 << 30


@dataclass
class Driver:
    """What the driver says: free bytes of each device, and who holds some."""

    free: list[int] = field(default_factory=lambda: [78 * GIB])
    held: list[Holder] = field(default_factory=list)

    def devices(self) -> list[Device]:
        return [Device(index, f"GPU-{index}", 80 * GIB, free) for index, free in enumerate(self.free)]

    def holders(self) -> list[Holder]:
        return self.held


@asynccontextmanager
async def deck(
    data_dir: Path, driver: Driver, flags: dict[str, Any], engines: int = 1, wanted: str = "running", **changes: Any
) -> AsyncIterator[Rig]:
    """Engines `one`, `two`, ... with the same profile."""
    config = settings(data_dir, engines_outlive_deck=False, **changes)
    database = await create_database(config, Engine(flags, wanted=wanted))
    async with database.begin() as session:
        for name in ("two", "three")[: engines - 1]:
            row = EngineRow(
                fleet_id=1, name=name, port=free_port(), profile_version_id=1, wanted=wanted, created_at=1.0
            )
            session.add(row)
    try:
        async with supervising(config, database, driver) as rig:
            yield rig
    finally:
        await database.close()


async def phase_of(rig: Rig, name: str, part: str) -> EngineStatus:
    """Wait until a starting engine says that it is at `part`."""
    async with asyncio.timeout(20):
        while part not in ((status := rig.engines.status(name)).phase or ""):
            await rig.engines.changed()
    return status


async def test_a_start_waits_for_memory(tmp_path: Path) -> None:
    """Nothing is launched while the memory of the last engine is not back; what is waited for is told with numbers."""
    driver = Driver(free=[int(0.4 * GIB)])
    async with deck(tmp_path, driver, {"gpu-memory-utilization": 0.9}) as rig:
        waiting = await phase_of(rig, "one", "Waiting for GPU memory: 0.4 of 72.0 GiB free on GPU 0")
        assert waiting.state is EngineState.STARTING and waiting.pid is None
        assert rig.engines.log_tail("one") == []
        driver.free[0] = 78 * GIB
        assert (await rig.until(READY)).restarts == 0


async def test_every_device_of_the_engine_counts(tmp_path: Path) -> None:
    """One of two that is full holds the start back; a third that it does not use does not."""
    driver = Driver(free=[78 * GIB, GIB, 0])
    async with deck(tmp_path, driver, {"tensor-parallel-size": 2}) as rig:
        await phase_of(rig, "one", "on GPU 1")
        driver.free[1] = 78 * GIB
        await rig.until(READY)


async def test_memory_that_does_not_come_back(tmp_path: Path) -> None:
    """Given up after the time that the settings allow, with both numbers and who holds it; not tried again."""
    driver = Driver(free=[GIB], held=[Holder(4711, "GPU-0", 77 * GIB)])
    async with deck(tmp_path, driver, {}, device_wait_seconds=1.5) as rig:
        failed = await rig.until(SETTLED)
        assert failed.error_code == "device_memory_busy" and failed.restarts == 0
        assert failed.cause == ("After 2 s there was still only 1.0 of 73.6 GiB free on GPU 0, held by pid 4711.")


async def test_a_start_that_waits_can_be_called_off(tmp_path: Path) -> None:
    driver = Driver(free=[0])
    async with deck(tmp_path, driver, {}) as rig:
        await phase_of(rig, "one", "Waiting for GPU memory")
        await rig.engines.stop("one")
        await rig.until(STOPPED)
        await rig.engines.start("one")
        driver.free[0] = 80 * GIB
        await rig.until(READY)


async def test_engines_on_one_device_load_one_after_the_other(tmp_path: Path) -> None:
    """The second is launched when the first has told the size of its KV cache, not when both are told to start."""
    async with deck(tmp_path, Driver(), {"fake-start-seconds": 1.5}, engines=2) as rig:
        first, second = "one", "two"
        async with asyncio.timeout(20):
            while rig.engines.status(first).pid is None and rig.engines.status(second).pid is None:
                await rig.engines.changed()
        if rig.engines.status(first).pid is None:
            first, second = second, first
        waiting = await phase_of(rig, second, f"Waiting for {first}, which loads on the same GPU")
        assert waiting.pid is None
        ready = [await rig.engines.wait_for(name, READY, 30) for name in (first, second)]
        started = [status.started_at or 0.0 for status in ready]
        assert started[1] >= started[0] + 1.5


async def test_a_start_that_fails_lets_the_next_one_go(tmp_path: Path) -> None:
    """Nobody waits for an engine that has ended."""
    flags = {"fake-die-with": "ValueError: No available memory for the cache blocks"}
    async with deck(tmp_path, Driver(), flags, engines=3) as rig:
        for name in ("one", "two", "three"):
            assert (await rig.engines.wait_for(name, SETTLED, 30)).error_code == "kv_memory"


async def test_a_stop_waits_for_the_driver(tmp_path: Path) -> None:
    """No process is left and the driver still counts its memory: that is shown, and it is not stopped yet."""
    driver = Driver()
    async with deck(tmp_path, driver, {}) as rig:
        ready = await rig.until(READY)
        assert ready.pid is not None
        driver.held = [Holder(ready.pid, "GPU-0", 70 * GIB), Holder(1, "GPU-0", GIB)]
        await rig.engines.stop("one", now=True)
        async with asyncio.timeout(20):
            while (status := rig.engines.status("one")).leftover_bytes != 70 * GIB or status.leftover_processes:
                await rig.engines.changed()
        assert status.state is EngineState.STOPPING and not is_alive(ready.pid)
        driver.held = driver.held[1:]
        began = time.monotonic()
        assert (await rig.until(STOPPED)).leftover_bytes is None
        assert time.monotonic() - began < 10
