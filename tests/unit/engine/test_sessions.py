"""Which sessions are in host memory, as the engine tells its deck."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.manager import TierManager
from engine.snapshot import (
    SNAPSHOT_NAME,
    NotReadableError,
    ResidentSession,
    Snapshot,
    read_snapshot,
    session_id,
    snapshots_below,
    write_snapshot,
)
from engine.snapshot_writer import SHARE, SnapshotWriter
from engine.value_manager import ValueManager
from tests.unit.engine.arena_rig import PAGE, STATE_PAGES, TOKEN_PAGES, ArenaEngine, arena_layout
from tests.unit.engine.chains import CHUNK, Clock, Request, layout, run

Managers = Callable[[Clock], TierManager | ValueManager]


def split(clock: Clock) -> TierManager:
    return TierManager(layout(40, 8), clock=clock)


def arena(clock: Clock) -> ValueManager:
    return ValueManager(arena_layout(120), "value", clock=clock)


def by_id(manager: TierManager | ValueManager) -> dict[str, ResidentSession]:
    return {one.id: one for one in manager.sessions()}


@pytest.mark.parametrize("make", [split, arena])
def test_each_chain_is_one_session(make: Managers) -> None:
    """Named by its last restorable boundary, with what is there, since when, and who goes first."""
    clock = Clock()
    manager = make(clock)
    for blocks in ("abcd", "xyz", "klmnop"):
        run(manager, blocks, blocks)  # type: ignore[arg-type]
        clock.now += 100.0
    found = by_id(manager)
    assert set(found) == {session_id(boundary) for boundary in (b"abc", b"xy", b"klmno")}
    session = found[session_id(b"klmno")]
    assert session.restorable_tokens == 5 * CHUNK
    assert session.tokens >= session.restorable_tokens
    assert time.time() - session.used_at == pytest.approx(100.0, abs=5.0)
    assert sorted(one.victim_rank for one in found.values()) == [0, 1, 2]
    assert not any(one.superseded for one in found.values())
    run(manager, "goes on", "xyzuvw")  # type: ignore[arg-type]
    assert {one.restorable_tokens for one in manager.sessions()} == {300, 500}
    assert session_id(b"xyzuv") in by_id(manager)


def test_bytes_are_those_that_a_session_shares_with_no_other() -> None:
    """Of one arena: what its eviction would free, over all workers."""
    manager = ValueManager(arena_layout(120), "value", 2, clock=Clock())
    run(manager, "one", "sssabc")
    alone = by_id(manager)[session_id(b"sssab")]
    assert alone.bytes == 2 * PAGE * (5 * TOKEN_PAGES + STATE_PAGES)
    run(manager, "two", "sssxyz")
    found = by_id(manager)
    assert found[session_id(b"sssab")].bytes == 2 * PAGE * (2 * TOKEN_PAGES + STATE_PAGES)
    assert found[session_id(b"sssxy")].bytes == 2 * PAGE * (2 * TOKEN_PAGES + STATE_PAGES)


def test_with_a_split_a_session_without_a_state_is_told_as_one_that_cannot_come_back() -> None:
    """Its blocks are there, and there is nothing to lose."""
    manager = TierManager(layout(40, 1), clock=Clock())
    for blocks in ("abcd", "xyz"):
        run(manager, blocks, blocks)
    found = {one.tokens: one for one in manager.sessions()}
    assert found[4 * CHUNK].restorable_tokens == 0
    assert found[4 * CHUNK].victim_rank is None
    assert found[3 * CHUNK].restorable_tokens == 2 * CHUNK
    assert found[3 * CHUNK].victim_rank == 0


@pytest.mark.parametrize("make", [split, arena])
def test_a_running_session_is_told_and_has_no_rank(make: Managers) -> None:
    """It stays as long as it runs; where it has come to is told, and up to where it could go on."""
    manager = make(Clock())
    run(manager, "before", "abcd")  # type: ignore[arg-type]
    run(manager, "other", "xyz")  # type: ignore[arg-type]
    request = Request(manager, "running", "abcdefgh")  # type: ignore[arg-type]
    found = request.lookup_blocks()
    request.load(0, found)
    request.begin()
    request.store(request.tokens(3, 6))
    sessions = {one.tokens: one for one in manager.sessions()}
    assert sessions[6 * CHUNK].restorable_tokens == 3 * CHUNK
    assert sessions[6 * CHUNK].victim_rank is None or isinstance(manager, TierManager)
    assert len(sessions) == 2


def test_who_goes_next_is_who_goes() -> None:
    """The one with rank 0 is the one that a new session pushes out."""
    clock = Clock()
    for policy in ("value", "hyper", "lru", "arc"):
        manager: TierManager | ValueManager
        if policy in ("value", "hyper"):
            manager = ValueManager(arena_layout(45), policy, clock=clock)
        else:
            manager = TierManager(layout(40, 4), policy=policy, clock=clock)
        for blocks in ("abcd", "xyz", "klmnop", "xyz"):
            run(manager, f"{policy} {clock.now}", blocks)  # type: ignore[arg-type]
            clock.now += 1000.0
        first = next(one for one in manager.sessions() if one.victim_rank == 0)
        before = set(by_id(manager))
        for blocks in ("qrs", "tuv", "efgh"):
            run(manager, f"{policy} new {blocks}", blocks)  # type: ignore[arg-type]
            if before - set(by_id(manager)):
                break
        assert first.id in before - set(by_id(manager)), policy


def test_an_engine_that_was_started_anew_tells_the_same(tmp_path: Path) -> None:
    """Also when each session was used last: time goes on while no engine runs."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(120))
    for blocks in ("abcd", "xyz", "abcxyz"):
        engine.session(blocks)
    before = by_id(engine.manager)
    engine.kill()
    clock = Clock()
    clock.now = 5.0
    engine = ArenaEngine(tmp_path, "two", arena_layout(120), clock=clock)
    after = by_id(engine.manager)
    assert {key: one.restorable_tokens for key, one in after.items()} == {
        key: one.restorable_tokens for key, one in before.items()
    }
    assert all(abs(after[key].used_at - before[key].used_at) < 5.0 for key in before)
    engine.kill()


class Fake:
    """A manager with that many sessions, each of which takes a while to look at."""

    def __init__(self, count: int = 3, seconds: float = 0.0) -> None:
        self.changed = False
        self.asked = threading.Semaphore(0)
        self._count, self._seconds = count, seconds

    def sessions(self) -> Sequence[ResidentSession]:
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        self.asked.release()
        return [ResidentSession(f"{n:x}", 100, 100, 5.0, 7, False, n) for n in range(self._count)]


def test_it_is_told_at_once_when_something_changed_and_at_the_end(tmp_path: Path) -> None:
    """A file of the owner alone; nothing changed, nothing is written."""
    path, fake = tmp_path / SNAPSHOT_NAME, Fake()
    writer = SnapshotWriter(path, fake, least_seconds=0.01)
    assert fake.asked.acquire(timeout=20)
    fake.changed = True
    assert fake.asked.acquire(timeout=20)
    assert not fake.asked.acquire(timeout=0.2), "nothing changed"
    writer.close()
    assert fake.asked.acquire(blocking=False)
    told = read_snapshot(path)
    assert told is not None
    assert told.count == 3
    assert [one.victim_rank for one in told.sessions] == [2, 1, 0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [SNAPSHOT_NAME]


def test_telling_takes_its_share_of_a_core_and_no_more(tmp_path: Path) -> None:
    """However long a look takes and however often something changes."""
    fake = Fake(seconds=0.01)
    writer = SnapshotWriter(tmp_path / SNAPSHOT_NAME, fake, least_seconds=0.0)
    began, looks = time.monotonic(), 0
    while time.monotonic() - began < 3.0:
        fake.changed = True
        looks += fake.asked.acquire(timeout=0.1)
    writer.close()
    assert 1 <= looks <= 1 + 3.0 * SHARE / 0.01


def test_of_very_many_those_are_told_that_stay_longest(tmp_path: Path) -> None:
    """And how many there are."""
    path = tmp_path / SNAPSHOT_NAME
    SnapshotWriter(path, Fake(5_200)).close()
    told = read_snapshot(path)
    assert told is not None
    assert (told.count, len(told.sessions)) == (5_200, 5_000)
    assert min(one.victim_rank or 0 for one in told.sessions) == 200


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    """None is not the same as unreadable."""
    path = tmp_path / "engine-0" / SNAPSHOT_NAME
    path.parent.mkdir()
    assert read_snapshot(path) is None
    assert snapshots_below(tmp_path) == []
    write_snapshot(path, Snapshot(1.0, 0, ()))
    assert snapshots_below(tmp_path) == [path]
    for text in ("", "{", '{"format": 2}', '{"format": 1, "sessions": [{"id": 1}]}', "[]"):
        path.write_text(text)
        with pytest.raises(NotReadableError, match=r"sessions\.json"):
            read_snapshot(path)


def test_it_can_be_looked_at_while_everything_changes() -> None:
    """From another thread, as the writer does."""
    manager = arena(Clock())
    ending = threading.Event()

    def look() -> int:
        looks = 0
        while not ending.is_set():
            manager.sessions()
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        for number in range(400):
            run(manager, f"r{number}", f"{number % 37:02}abcdef"[: 4 + number % 5])  # type: ignore[arg-type]
        ending.set()
        assert looking.result() > 0
