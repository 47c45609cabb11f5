"""What an engine told of its sessions, or why nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.scrape.residents import read_residents
from engine.snapshot import SNAPSHOT_NAME, ResidentSession, Snapshot, write_snapshot


def told(directory: Path, rank: int, at: float, *ids: str) -> Path:
    place = directory / f"engine-{rank}"
    place.mkdir(mode=0o700)
    sessions = tuple(ResidentSession(one, 800, 784, 50.0, 1 << 20, False, at) for at, one in enumerate(ids))
    write_snapshot(place / SNAPSHOT_NAME, Snapshot(at, len(ids), sessions))
    return place / SNAPSHOT_NAME


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    directory = tmp_path / "tierdeck-one"
    directory.mkdir(mode=0o700)
    return directory


def test_all_schedulers_of_an_engine_count(memory: Path) -> None:
    """With data parallelism there are several; the oldest word is the one to go by."""
    told(memory, 0, 100.0, "a", "b")
    told(memory, 1, 90.0, "c")
    found = read_residents(memory)
    assert [one.id for one in found.sessions] == ["a", "b", "c"]
    assert (found.count, found.written_at, found.reason) == (3, 90.0, None)


def test_what_an_earlier_process_told_is_not_taken_for_the_presents(memory: Path) -> None:
    """It may have found less, or have its memory elsewhere."""
    told(memory, 0, 100.0, "a")
    assert read_residents(memory, since=99.0).count == 1
    later = read_residents(memory, since=101.0)
    assert (later.count, later.sessions, later.written_at) == (None, (), None)
    assert later.reason == "It has told nothing since it was started."


def test_why_nothing_is_known_is_said(memory: Path) -> None:
    """No memory that outlives it, nothing told yet, a file that is broken, a directory that others can enter."""
    assert "keeps no host memory" in (read_residents(memory / "absent").reason or "")
    assert "told nothing" in (read_residents(memory).reason or "")
    path = told(memory, 0, 100.0, "a")
    path.write_text('{"format": 1')
    assert "cannot be read" in (read_residents(memory).reason or "")
    memory.chmod(0o755)
    assert "can be opened by other users" in (read_residents(memory).reason or "")
