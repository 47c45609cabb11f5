"""Host memory that outlives an engine, through the verbs of the deck, with a fake engine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from app.supervisor import residentmemory
from engine.residency_place import ID_VARIABLE, directory_of, open_private
from tests.integration.supervisor_rig import READY, SETTLED, STOPPED, Engine, deck, prepared, supervising

TIER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1 << 20,
        "eviction_policy": "lru",
    },
}


@pytest.fixture(autouse=True)
def mount(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /dev/shm."""
    directory = tmp_path_factory.mktemp("mount")
    monkeypatch.setattr(residentmemory, "MOUNT", directory)
    return directory


def memory(mount: Path, data_dir: Path, engine: str = "one") -> Path:
    """As the connector would have made it."""
    directory = directory_of(residentmemory.identifier(data_dir, engine), mount)
    directory.mkdir(mode=0o700, exist_ok=True)
    os.close(open_private(directory / "worker-0.token", 4096))
    return directory


async def test_memory_outlives_its_engine_and_goes_when_asked(tmp_path: Path, mount: Path) -> None:
    """A stop and a restart keep it; a stop that forgets gives it back, once the engine has ended."""
    async with deck(tmp_path, Engine({}, kv_transfer_config=TIER)) as rig:
        await rig.engines.start("one")
        ready = await rig.until(READY)
        environment = Path(f"/proc/{ready.pid}/environ").read_bytes().split(b"\0")
        assert f"{ID_VARIABLE}={residentmemory.identifier(tmp_path, 'one')}".encode() in environment
        kept = memory(mount, tmp_path)
        await rig.engines.restart("one")
        await rig.engines.wait_for("one", SETTLED - READY | STOPPED | {ready.state}, 20)
        await rig.engines.stop("one", now=True)
        await rig.until(STOPPED)
        assert kept.exists()
        await rig.engines.stop("one", forget=True)
        async with asyncio.timeout(10):
            while kept.exists():
                await asyncio.sleep(0.01)


async def test_a_deck_that_takes_its_engines_along_takes_their_memory_along(tmp_path: Path, mount: Path) -> None:
    """Nothing of a foreground deck is left; another deck's memory is."""
    async with deck(tmp_path, Engine({}, kv_transfer_config=TIER)) as rig:
        await rig.engines.start("one")
        await rig.until(READY)
        own, others = memory(mount, tmp_path), memory(mount, tmp_path / "other deck")
    assert (own.exists(), others.exists()) == (False, True)


async def test_a_deck_finds_what_its_former_engines_left(tmp_path: Path, mount: Path) -> None:
    """Memory of an engine that is in no database any more is given back at the start; of one that is, it stays."""
    async with prepared(tmp_path, Engine({})) as (config, database):
        known, gone = memory(mount, tmp_path), memory(mount, tmp_path, "gone")
        async with supervising(config, database):
            assert (known.exists(), gone.exists()) == (True, False)


async def test_too_little_shared_memory_is_told_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both numbers; no process is started."""
    monkeypatch.setattr("engine.residency_place.free_bytes", lambda mount: 5000)
    async with deck(tmp_path, Engine({}, kv_transfer_config=TIER), restart_equal_failures=1) as rig:
        await rig.engines.start("one")
        failed = await rig.until(SETTLED)
        assert failed.error_code == "shared_memory_full"
        assert "1048576 bytes are wanted" in failed.cause and "only 5000 are free" in failed.cause
        assert failed.pid is None


async def test_a_profile_without_host_tier_gives_the_memory_back(tmp_path: Path, mount: Path) -> None:
    """Nobody would ever use it again."""
    async with deck(tmp_path, Engine({})) as rig:
        kept = memory(mount, tmp_path)
        await rig.engines.start("one")
        await rig.until(READY)
        assert not kept.exists()
