"""Memory before a start: what the machine, or the control group around the deck, has."""

from __future__ import annotations

from pathlib import Path

from app.supervisor.checks import check_memory
from app.supervisor.machine import group_limit
from tests.unit.supervisor.test_command import spec

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_lowest_limit_around_counts(tmp_path: Path) -> None:
    """Version 2: of the own group and of all around it; "max" is no limit."""
    own, root = tmp_path / "own", tmp_path / "fs"
    own.write_text("0::/a/b\n")
    write(root / "a/b/memory.max", "max\n")
    write(root / "a/memory.max", f"{8 * GIB}\n")
    assert group_limit(root, own) == 8 * GIB
    write(root / "a/b/memory.max", f"{4 * GIB}\n")
    assert group_limit(root, own) == 4 * GIB


def test_version_1_has_a_tree_of_its_own(tmp_path: Path) -> None:
    """And writes a huge number where there is no limit."""
    own, root = tmp_path / "own", tmp_path / "fs"
    own.write_text("5:cpu,memory:/docker/x\n1:name=systemd:/y\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert group_limit(root, own) is None
    write(root / "memory/docker/x/memory.limit_in_bytes", f"{2 * GIB}\n")
    assert group_limit(root, own) == 2 * GIB


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    """Other systems have none."""
    assert group_limit(tmp_path, tmp_path / "missing") is None


def test_a_start_that_asks_for_more_than_there_is_ends_before_it_begins() -> None:
    """The host total counts: the same 50 GiB are 50 for one connector and 100 for another."""
    flags = {"tensor-parallel-size": 2}
    ours = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 50 * GIB}}
    other = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"max_local_cpu_size": 50}}
    assert check_memory(spec(ours, flags), 64 * GIB) is None
    fault = check_memory(spec(other, flags), 64 * GIB)
    assert fault is not None
    assert "100 GiB" in fault.sentence
    assert "64 GiB" in fault.sentence
    assert check_memory(spec({}, flags), 0) is None
