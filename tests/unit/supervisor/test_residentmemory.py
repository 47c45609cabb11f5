"""Host memory that outlives its engine, as the deck sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.supervisor import residentmemory
from app.supervisor.command import EngineSpec, Profile
from engine.residency_place import directory_of, open_private

TIER = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 20, "eviction_policy": "lru"}


def spec(**extra: Any) -> EngineSpec:
    profile = Profile("p", 1, 1, {"kv_connector_extra_config": {**TIER, **extra}}, {}, {})
    return EngineSpec(1, "main-1", 1, "main", "model", "model", "python", "127.0.0.1", 1, profile)


def fill(mount: Path, name: str, size: int = 1 << 20) -> Path:
    directory = directory_of(name, mount)
    directory.mkdir(mode=0o700)

    descriptor = open_private(directory / "worker-0.token")
    os.write(descriptor, b"x" * size)
    os.close(descriptor)
    return directory


def test_memory_is_found_by_deck_and_engine(tmp_path: Path) -> None:
    """The same name for every start of the deck on its data directory; another one for everybody else."""
    names = [residentmemory.identifier(tmp_path / deck, engine) for deck in "ab" for engine in ("one", "ö/ne", "one.")]
    assert len(set(names)) == len(names)
    assert names[0] == residentmemory.identifier(tmp_path / "c" / ".." / "a", "one")
    assert all(directory_of(name, tmp_path).parent == tmp_path for name in names)


def test_what_does_not_fit_is_a_fault_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine has there already is room for itself; a tier that is not kept needs none."""
    monkeypatch.setattr("engine.residency_place.free_bytes", lambda mount: 100_000)
    fault = residentmemory.check_space(spec(), "e", tmp_path)
    assert fault is not None
    assert (fault.code, fault.fatal) == ("shared_memory_full", False)
    assert "1048576 bytes are wanted" in fault.sentence
    assert "only 100000 are free" in fault.sentence
    fill(tmp_path, "e")
    assert residentmemory.check_space(spec(), "e", tmp_path) is None
    assert residentmemory.check_space(spec(residency="off"), "other", tmp_path) is None
    bare = replace(spec(), profile=Profile("p", 1, 1, {}, {}, {}))
    assert residentmemory.check_space(bare, "other", tmp_path) is None


@pytest.mark.parametrize(
    ("config", "flags", "fate"),
    [
        ({"kv_connector_extra_config": TIER}, {}, "kept"),
        ({"kv_connector_extra_config": {**TIER, "residency": "off"}}, {}, "lost"),
        ({}, {"kv-offloading-size": 1}, "lost"),
        (None, {}, "none"),
    ],
)
def test_what_a_stop_does_with_the_host_tier(config: dict[str, Any] | None, flags: dict[str, Any], fate: str) -> None:
    """Kept by Tierdeck's tier, lost where that is told not to keep it or another one has it; or there is none."""
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", **config} if config else {}
    assert residentmemory.fate(replace(spec(), profile=Profile("p", 1, 1, transfer, flags, {}))) == fate


def test_forgetting_gives_back_what_it_says(tmp_path: Path) -> None:
    """Bytes really held, not the length of files with holes; twice is once."""
    directory = fill(tmp_path, "e")
    descriptor = open_private(directory / "worker-0.state", 1 << 30)
    assert descriptor > 0
    assert 1 << 20 <= residentmemory.forget("e", tmp_path) < 2 << 20
    assert list(tmp_path.iterdir()) == []
    assert residentmemory.forget("e", tmp_path) == 0


def test_memory_in_use_is_never_taken(tmp_path: Path) -> None:
    """Whoever holds the lease has it, also an engine that the deck knows nothing of."""
    directory = fill(tmp_path, "e")
    program = (
        "import sys; from pathlib import Path; from engine.residency_place import Lease\n"
        "lease = Lease(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(directory / "worker-0.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    assert residentmemory.forget("e", tmp_path) == 0
    assert (directory / "worker-0.token").exists()
    holder.kill()
    holder.communicate()
    assert residentmemory.forget("e", tmp_path) > 0


def test_left_overs_are_told_by_owner(tmp_path: Path) -> None:
    """Of this deck's engines those that no longer exist; another deck's memory stays, however old."""
    mine, others = tmp_path / "mine", tmp_path / "others"
    known = residentmemory.identifier(mine, "one")
    names = [known, residentmemory.identifier(mine, "gone"), residentmemory.identifier(others, "gone")]
    mount = tmp_path / "mount"
    mount.mkdir()
    for name in names:
        fill(mount, name)
    residentmemory.forget_all(mine, frozenset({known}), mount)
    assert {path.name for path in mount.iterdir()} == {f"tierdeck-{names[0]}", f"tierdeck-{names[2]}"}
