"""Host memory under another eviction_policy: what fits is kept, in both directions, and never anything wrong."""

from __future__ import annotations

import json
import logging
import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from engine import residency_takeover
from engine.config import ConfigError
from engine.residency_place import used_bytes
from engine.residency_region import WorkerShare
from tests.unit.engine.arena_rig import ArenaEngine
from tests.unit.engine.chains import Request
from tests.unit.engine.conversion_rig import BOTH_WAYS, PAGE, STATE_BYTES, Kind, layout_of, start
from tests.unit.engine.residency_rig import Engine, plan_of

SESSIONS = ("abcdef", "abcxyz", "klm")


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO)


def leave(mount: Path, kind: Kind, workers: int = 1) -> None:
    """One session of an engine that was killed."""
    engine = start(mount, "one", layout_of(kind, 40, 9), workers=workers)
    engine.session("abc")
    engine.kill()


def files(mount: Path) -> set[str]:
    """Pools and indices that are there."""
    return {path.name for path in mount.rglob("*") if path.is_file() and path.suffix not in (".lock", ".json")}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_every_session_is_there_again(
    tmp_path: Path, old: Kind, new: Kind, states: bool, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With all its bytes on every worker, in the next run too, and there and back; new ones find their place beside
    them, and of the old files nothing is left.
    """
    sessions = list(SESSIONS)
    engine = start(tmp_path, "one", layout_of(old, 60, 20, states), workers)
    for blocks in sessions:
        engine.session(blocks)
    engine.kill()
    for number, kind in enumerate((new, new, old, old)):
        engine = start(tmp_path, f"run {number}", layout_of(kind, 60, 20, states), workers)
        assert [engine.found(blocks) for blocks in sessions] == [len(blocks) - 1 for blocks in sessions]
        sessions.append(f"{number}new")
        engine.session(sessions[-1])
        engine.kill()
        pools = {f"worker-{rank}.arena" for rank in range(workers)} | {"arena.index"}
        if kind == "split":
            names = ("token", "state") if states else ("token",)
            pools = {f"worker-{rank}.{name}" for rank in range(workers) for name in names}
            pools |= {"token.index", "state.index"}
        assert files(tmp_path) == pools
    assert "were taken over from another eviction_policy" in caplog.text
    assert "dropped:" not in caplog.text


@pytest.mark.parametrize(("old", "policy"), [("split", "hyper"), ("arena", "arc")])
def test_any_policy_of_the_other_layout_takes_over(tmp_path: Path, old: Kind, policy: str) -> None:
    """As they do from each other within one layout."""
    engine = start(tmp_path, "one", layout_of(old, 60, 20))
    engine.session("abc")
    engine.kill()
    engine = start(tmp_path, "two", layout_of("arena" if old == "split" else "split", 60, 20), policy=policy)
    assert engine.found("abc") == 2
    engine.kill()


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_a_smaller_target_keeps_the_newest_sessions_whole(tmp_path: Path, old: Kind, new: Kind, states: bool) -> None:
    """Those that do not fit go; no session comes back in part while an older one is whole."""
    engine = start(tmp_path, "one", layout_of(old, 400, 60, states))
    sessions = [f"{number:02}abcdef" for number in range(45)]
    for blocks in sessions:
        engine.session(blocks)
    if old == "arena":
        # What was given up last there would be kept last: they all have the same worth but for their time.
        assert [engine.found(blocks) for blocks in sessions] == [7] * 45
    engine.kill()
    engine = start(tmp_path, "two", layout_of(new, 100, 12, states))
    found = [engine.found(blocks) for blocks in sessions]
    kept = found.count(7)
    assert 10 <= kept <= 16
    assert found[-kept:] == [7] * kept, found
    assert used_bytes(tmp_path) < 130 * PAGE
    engine.session("zz and room for more")
    engine.kill()


def test_superseded_states_go_first(tmp_path: Path) -> None:
    """A split of few states after an arena with many: old boundaries of a long session go, others keep theirs."""
    engine = start(tmp_path, "one", layout_of("arena", 60, 12))
    engine.session("xy")
    for end in range(3, 10):
        engine.session("abcdefghij"[:end])
    superseded = {state.block.block_hash for state in engine.manager._arena.superseded}  # type: ignore[union-attr]
    assert len(superseded) >= 5
    engine.kill()
    engine = start(tmp_path, "two", layout_of("split", 60, 3))
    assert isinstance(engine, Engine)
    slots = {slot.block_hash: slot for slot in engine.manager._states}
    assert set(slots) == {b"x", b"abcdefgh", b"abcdefg"}
    assert {block_hash for block_hash, slot in slots.items() if slot.superseded} == {b"abcdefg"}
    assert [engine.found("xy"), engine.found("abcdefghi")] == [1, 8]
    engine.kill()


def test_what_goes_next_is_what_would_have_gone_next(tmp_path: Path) -> None:
    """The order of use survives: there and back, the session that was not used the longest goes first, from its end."""
    engine = start(tmp_path, "one", layout_of("split", 12, 9))
    for blocks in ("abcd", "wxyz", "mnop"):
        engine.session(blocks)
    assert engine.found("abcd") == 3
    engine.session("abcd")
    engine.kill()
    start(tmp_path, "two", layout_of("arena", 12, 9)).kill()
    engine = start(tmp_path, "three", layout_of("split", 12, 9))
    assert [one.block_hash for one in engine.memory.entries("state")] == [b"wxy", b"mno", b"abc"]  # type: ignore[union-attr]
    engine.session("1234")
    assert [engine.found(blocks) for blocks in ("abcd", "wxyz", "mnop", "1234")] == [3, 0, 3, 3]
    engine.kill()


def test_chains_of_an_arena_stay_whole_in_a_split(tmp_path: Path) -> None:
    """A split with too few blocks for one of two sessions keeps the newer one and no blocks of the other."""
    engine = start(tmp_path, "one", layout_of("arena", 60, 12))
    engine.session("oldoldold")
    engine.session("newnewnew")
    engine.kill()
    engine = start(tmp_path, "two", layout_of("split", 12, 12))
    assert isinstance(engine, Engine)
    assert {slot.block_hash[:1] for slot in engine.manager._tokens} == {b"n"}
    assert engine.found("newnewnew") == 8
    engine.kill()


def test_what_nobody_can_go_on_from_is_not_moved(tmp_path: Path) -> None:
    """Blocks without a state, a state of which one group is missing, and one behind a block that is not there."""
    engine = start(tmp_path, "one", layout_of("split", 30, 9))
    assert isinstance(engine, Engine)
    engine.session("xyz")
    for blocks, first, groups in (("abcdef", 0, 1), ("ghijkl", 2, 2)):
        request = Request(engine.manager, blocks, blocks)
        engine.store(request, request.states(4)[:groups])
        engine.store(request, request.tokens(first, 4))
    engine.kill()
    engine = start(tmp_path, "two", layout_of("arena", 30, 9))
    assert isinstance(engine, ArenaEngine)
    assert len(engine.memory.rows()) == 3
    assert engine.found("xyz") == 2
    engine.kill()


# --- when it cannot be ---


def unvouched(mount: Path) -> None:
    note = mount / "tierdeck-e" / "engine-0" / "engine.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"births": ["another"]}))


def written_unseen(mount: Path) -> None:
    note = mount / "tierdeck-e" / "engine-0" / "worker-0.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"writer": "a run without its scheduler"}))


def without_index_note(mount: Path) -> None:
    (mount / "tierdeck-e" / "engine-0" / "engine.json").unlink()


def cut_short(mount: Path) -> None:
    for name in ("token", "arena"):
        path = mount / "tierdeck-e" / "engine-0" / f"worker-0.{name}"
        if path.exists():
            os.truncate(path, 4096)


@pytest.mark.parametrize("foreign", ["replace", "refuse"])
@pytest.mark.parametrize("spoil", [unvouched, written_unseen, without_index_note, cut_short])
@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_what_is_not_vouched_for_is_dropped_and_said(
    tmp_path: Path,
    old: Kind,
    new: Kind,
    spoil: Callable[[Path], None],
    foreign: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another eviction_policy of the same engine is no other engine: the start is not refused."""
    leave(tmp_path, old)
    spoil(tmp_path)
    layout = layout_of(new, 40, 9)
    WorkerShare(replace(plan_of(tmp_path, "two", layout), foreign=foreign), 0, 0.0).close()
    assert "laid out for another eviction_policy and is dropped: " in caplog.text
    assert used_bytes(tmp_path) < 10 * PAGE, "and its memory is given back"
    engine = start(tmp_path, "three", layout)
    assert engine.found("abc") == 0
    engine.session("abc")
    assert engine.found("abc") == 2
    engine.kill()


@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_another_engine_with_another_layout_is_another_engine(tmp_path: Path, old: Kind, new: Kind) -> None:
    """Refused where that is wanted, and left as it was."""
    leave(tmp_path, old)
    other = replace(plan_of(tmp_path, "two", layout_of(new, 40, 9), model="b"), foreign="refuse")
    with pytest.raises(ConfigError, match=r"residency_foreign .*differs in: arena, model"):
        WorkerShare(other, 0, 0.0)
    engine = start(tmp_path, "three", layout_of(new, 40, 9))
    assert engine.found("abc") == 2
    engine.kill()


def test_what_does_not_fit_the_mount_is_refused_before_anything_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there counts as room, since it makes room as it goes."""
    engine = start(tmp_path, "one", layout_of("split", 40, 9))
    engine.session("abcdefgh")
    engine.kill()
    room = 60 * PAGE - used_bytes(tmp_path)
    monkeypatch.setattr("engine.residency_place.free_bytes", lambda mount: room)
    with pytest.raises(ConfigError, match="cpu_bytes_to_use does not fit"):
        start(tmp_path, "two", layout_of("arena", 61, 0))
    engine = start(tmp_path, "three", layout_of("arena", 58, 0))
    assert engine.found("abcdefgh") == 7
    engine.kill()


@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_one_worker_that_could_not_take_over_voids_all(tmp_path: Path, old: Kind, new: Kind) -> None:
    """A block is spread over all workers; half of it is nothing."""
    leave(tmp_path, old, workers=2)
    (tmp_path / "tierdeck-e" / "engine-0" / "worker-1.json").unlink()
    engine = start(tmp_path, "two", layout_of(new, 40, 9), workers=2)
    assert engine.found("abc") == 0
    engine.session("abc")
    engine.kill()
    engine = start(tmp_path, "three", layout_of(new, 40, 9), workers=2)
    assert engine.found("abc") == 2
    engine.kill()


@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_a_worker_that_wrote_before_the_index_was_there_voids_all(tmp_path: Path, old: Kind, new: Kind) -> None:
    """The run that moved the bytes had no scheduler, and went on all the same."""
    leave(tmp_path, old)
    share = WorkerShare(plan_of(tmp_path, "two", layout_of(new, 40, 9)), 0, 0.0)
    share.begin_writing()
    share.close()
    engine = start(tmp_path, "three", layout_of(new, 40, 9))
    assert engine.found("abc") == 0
    engine.kill()


@pytest.mark.parametrize(("blocks", "states", "found"), [(40, 9, 2), (39, 8, 2), (2, 1, 0)])
@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_bytes_that_were_moved_wait_for_their_scheduler(
    tmp_path: Path, old: Kind, new: Kind, blocks: int, states: int, found: int
) -> None:
    """Killed before it: the next start finds them, unless that one would have moved them to other places."""
    engine = start(tmp_path, "one", layout_of(old, 40, 9))
    engine.session("abc")
    engine.session("xyz")
    engine.kill()
    WorkerShare(plan_of(tmp_path, "two", layout_of(new, 40, 9)), 0, 0.0).close()
    engine = start(tmp_path, "three", layout_of(new, blocks, states))
    assert [engine.found("abc"), engine.found("xyz")] == [found, found]
    engine.kill()


# --- how much memory it takes meanwhile ---


@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_old_and_new_are_never_there_at_once(
    tmp_path: Path, old: Kind, new: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays what it was, within a few slots; with an arena's pages in disorder too. A slot begins with a page
    of the machine in an arena, and not in a split, which saves one here and there.
    """
    engine = start(tmp_path, "one", layout_of(old, 400, 60), workers=2)
    for number in range(140):
        engine.session(chr(97 + number * 7 % 26) + f"{number % 50:02}" + "bcdefgh"[: 2 + number * number % 5])
    engine.kill()
    before, seen = used_bytes(tmp_path), []
    write = os.pwrite

    def watched(file: int, content: memoryview, offset: int) -> int:
        written = write(file, content, offset)
        seen.append(used_bytes(tmp_path))
        return written

    monkeypatch.setattr(residency_takeover.os, "pwrite", watched)
    engine = start(tmp_path, "two", layout_of(new, 400, 60), workers=2)
    assert len(seen) > 400
    rounding = mmap.PAGESIZE if new == "arena" else 0
    assert max(used - number * rounding for number, used in enumerate(seen)) <= before + 4 * STATE_BYTES
    engine.kill()


# --- killed on the way ---


class Killer:
    """SIGKILL of this process at the n-th line of what takes over."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/engine/residency" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def _start_and_be_killed(mount: Path, kind: Kind, lines: int, counted: Any) -> None:
    killer = Killer(lines)
    sys.settrace(killer)
    start(mount, "killed", layout_of(kind, 60, 20), 2)
    sys.settrace(None)
    counted.value = lines - killer.left
    os._exit(0)


def _start_in_child(mount: Path, kind: Kind, lines: int) -> int:
    """How many lines it took; 0 if it was killed on the way."""
    fork = multiprocessing.get_context("fork")
    counted = fork.Value("i", 0)
    process = fork.Process(target=_start_and_be_killed, args=(mount, kind, lines, counted))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return int(counted.value)


@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_killed_at_any_line_of_it_nothing_wrong_is_served(tmp_path: Path, old: Kind, new: Kind) -> None:
    """Whatever the next start is, with the new policy or with the old one again: it has all sessions or none, with
    the bytes that were stored, takes new ones, and the start after that one finds them.
    """
    outcomes = []
    whole = _prepared(tmp_path / "whole", old)
    lines = _start_in_child(whole, new, 10_000_000)
    assert lines > 1000
    for number in range(40):
        mount = _prepared(tmp_path / str(number), old)
        assert _start_in_child(mount, new, lines * number // 40 + 1) == 0
        kind = new if number % 3 else old
        engine = start(mount, "next", layout_of(kind, 60, 20), 2)
        found = [engine.found(blocks) for blocks in SESSIONS]
        assert found in ([5, 5, 2], [0, 0, 0]), (number, found)
        outcomes.append((number % 3 > 0, found == [5, 5, 2]))
        engine.session("qrst")
        engine.kill()
        engine = start(mount, "after it", layout_of(kind, 60, 20), 2)
        assert [engine.found(blocks) for blocks in SESSIONS] == found
        assert engine.found("qrst") == 3
        engine.kill()
    assert set(outcomes) == {(True, True), (True, False), (False, True), (False, False)}


def _prepared(mount: Path, kind: Kind) -> Path:
    mount.mkdir()
    engine = start(mount, "one", layout_of(kind, 60, 20), 2)
    for blocks in SESSIONS:
        engine.session(blocks)
    engine.kill()
    return mount
