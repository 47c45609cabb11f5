"""One arena that outlives its engine: what a new start finds is right, whatever was killed and whenever."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest
from vllm.v1.kv_offload.base import OffloadKey

from engine import metric_names as names
from engine.arena import Arena
from engine.config import ConfigError
from engine.layout import HostLayout
from engine.page_arena import Run
from engine.policies.reuse import klass_of
from engine.residency_arena import ResidentArena
from engine.residency_place import InUseError, used_bytes
from engine.residency_region import WorkerShare
from engine.value_manager import ValueManager
from tests.unit.engine.arena_rig import ArenaEngine, arena_layout
from tests.unit.engine.chains import Clock, counts
from tests.unit.engine.residency_rig import kill_while_writing, plan_of, write_without_end


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("policy", ["value", "hyper"])
def test_a_new_engine_finds_every_session_where_it_was(tmp_path: Path, workers: int, policy: str) -> None:
    """All blocks and the state, on every worker, with the bytes that were stored; and so in the third run."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(60), workers, policy)
    for blocks in ("abcdef", "abcxyz", "klm"):
        engine.session(blocks)
    engine.kill()
    for name in ("two", "three"):
        engine = ArenaEngine(tmp_path, name, arena_layout(60), workers, policy)
        assert [engine.found(blocks) for blocks in ("abcdef", "abcxyz", "klm")] == [5, 5, 2]
        engine.session("q" + name)
        engine.kill()


def test_fragments_are_put_together_again(tmp_path: Path) -> None:
    """Slots on pages that are no neighbours, because what lay between them went and came."""
    sessions = [chr(97 + number * 7 % 26) + "bcdefgh"[: 2 + number * number % 5] for number in range(60)]
    engine = ArenaEngine(tmp_path, "one", arena_layout(43))
    for blocks in sessions:
        engine.session(blocks)
    runs = [len(state.pages) for state in engine.manager._arena.states]
    assert max(runs) > 2, "the arena is in pieces"
    before = [engine.found(blocks) for blocks in sessions]
    assert sum(map(bool, before)) >= 3
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(43))
    assert [engine.found(blocks) for blocks in sessions] == before
    engine.kill()


def test_a_slot_that_was_being_overwritten_is_dropped(tmp_path: Path) -> None:
    """The old session is gone before the first byte of the new one, which is not there before its last."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(11))
    engine.session("abcd")
    request = engine.request("next", "vwxyz")
    output = engine.manager.prepare_store(request.tokens(0, 4), request.context)
    assert output is not None
    assert len(output.keys_to_store) == 4
    engine.write(output.keys_to_store, output.store_spec.slots, whole=False)  # type: ignore[attr-defined]
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(11))
    assert engine.found("abcd") == 0
    assert engine.found("vwxyz") == 0
    engine.session("vwxyz")
    assert engine.found("vwxyz") == 4
    engine.kill()


def test_what_could_not_be_used_gives_its_pages_back(tmp_path: Path) -> None:
    """Blocks whose state was not stored, and a state of which one group is missing."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("xyz")
    request = engine.request("killed", "abcdef")
    engine.store(request, request.tokens(0, 4))
    engine.store(request, request.states(4)[:1])
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(40))
    found = counts(engine.manager)
    assert found[names.SLOTS_USED, "token", names.ALL_GROUPS] == 2
    assert found[names.SLOTS_USED, "state", names.ALL_GROUPS] == 1
    assert engine.manager._arena.pages.free == 40 - 2 * 2 - 3
    assert not [key for key in found if key[0] == names.EVICTIONS], "nothing was evicted"
    engine.session("abcdef")
    engine.kill()
    engine = ArenaEngine(tmp_path, "three", arena_layout(40))
    assert [engine.found("xyz"), engine.found("abcdef")] == [2, 5]
    engine.kill()


def test_a_smaller_budget_keeps_what_is_worth_most(tmp_path: Path) -> None:
    """Passed states and then the longest unused go; the rest moves to pages that are still there, memory behind
    is given back, and a larger budget then keeps all.
    """
    clock = Clock()
    engine = ArenaEngine(tmp_path, "one", arena_layout(8000), clock=clock)
    sessions = [f"{number:03}" + "abcdefg" for number in range(250)]
    for blocks in sessions:
        clock.now += 100.0
        engine.session(blocks)
    assert [engine.found(blocks) for blocks in sessions[-80:]] == [9] * 80
    before = used_bytes(tmp_path)
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(2000))
    assert used_bytes(tmp_path) < before / 2
    assert [engine.found(blocks) for blocks in sessions[-80:]] == [9] * 80
    assert engine.found(sessions[0]) == 0
    engine.kill()
    engine = ArenaEngine(tmp_path, "three", arena_layout(8000))
    assert [engine.found(blocks) for blocks in sessions[-80:]] == [9] * 80
    engine.session("and room for more")
    engine.kill()


def test_what_is_known_of_a_session_is_known_again(tmp_path: Path) -> None:
    """How often it came back, how often after a long time, what it has passed, where prefixes part, who is older."""
    clock = Clock()
    engine = ArenaEngine(tmp_path, "one", arena_layout(200), clock=clock)
    for end in range(3, 7):
        clock.now += 400.0
        engine.session("abcdefgh"[:end])
    for blocks in ("sssabc", "sssxyz"):
        clock.now += 400.0
        request = engine.request("forks", blocks)
        request.lookup_blocks()
        for number in (3, 5):
            for key in request.states(number):
                engine.store(request, [key])
        engine.store(request, request.tokens())
        request.finish()
    known = _known(engine)
    assert any(one.junction for one in known)
    assert any(one.superseded for one in known)
    assert max(one.turns for one in known) == 4
    assert max(one.long_gaps for one in known) == 3
    engine.kill()
    later = Clock()
    later.now = 7.0
    engine = ArenaEngine(tmp_path, "two", arena_layout(200), clock=later)
    assert _known(engine) == known
    for state in engine.manager._arena.states:
        assert state.klass == klass_of(state.junction, state.turns, state.block.end, state.long_gaps)
        assert state.last_used <= later.now
    assert engine.found("abcdef") == 5
    assert engine.found("sssqqq") == 3, "where prefixes part"
    engine.kill()


class Known(NamedTuple):
    """Of a state."""

    block_hash: bytes
    turns: int
    long_gaps: int
    junction: bool
    superseded: bool
    leaf: bool


def _known(engine: ArenaEngine) -> list[Known]:
    """The one used longest ago first, of which sessions could go on, then the others."""
    states = sorted(
        engine.manager._arena.states,
        key=lambda state: (state.last_used if state.is_leaf else 1e9, state.block.block_hash),
    )
    return [
        Known(
            one.block.block_hash,
            one.turns * (not one.superseded),
            one.long_gaps,
            one.junction,
            one.superseded,
            one.is_leaf,
        )
        for one in states
    ]


@pytest.mark.parametrize("states", [True, False])
def test_what_goes_next_is_what_would_have_gone_next(tmp_path: Path, states: bool) -> None:
    """With linear layers and without, an engine that was ended meanwhile gives up what the other one does. The policy
    is the one that learns nothing.
    """
    found = []
    for restart in (False, True):
        mount = tmp_path / str(restart)
        mount.mkdir()
        engine = ArenaEngine(mount, "one", arena_layout(30, states), policy="hyper")
        for blocks in ("abcd", "wxyz", "mnop", "mnopqr"):
            engine.session(blocks)
        engine.found("abcd")
        if restart:
            engine.kill()
            engine = ArenaEngine(mount, "two", arena_layout(30, states), policy="hyper")
        engine.session("qrstu")
        found.append([engine.found(blocks) for blocks in ("abcd", "wxyz", "mnopqr", "qrstu")])
        engine.kill()
    assert found[0] == found[1]
    assert min(found[0]) < 3, "something had to go"


def test_a_reset_cache_stays_empty(tmp_path: Path) -> None:
    """Weights may have been replaced."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("abc")
    engine.manager.reset_cache()
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(40))
    assert engine.found("abc") == 0
    engine.kill()


def test_what_was_spoilt_is_not_offered_by_the_next_run(tmp_path: Path) -> None:
    """A load that failed says so for good."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("abc")
    request = engine.request("load", "abc")
    keys = [*request.tokens(0, 2), *request.states(2)]
    engine.manager.prepare_load(keys, request.context)
    engine.manager.load_failed([request.context.req_id])
    engine.manager.complete_load(set(keys), request.context)
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(40))
    assert engine.found("abc") == 0
    engine.session("abc")
    assert engine.found("abc") == 2
    engine.kill()


def test_contents_of_another_engine_are_never_served(tmp_path: Path) -> None:
    """Refused, and left as they were, where that is wanted."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("abc")
    engine.kill()
    other = replace(plan_of(tmp_path, "two", arena_layout(40), model="b"), foreign="refuse")
    with pytest.raises(ConfigError, match=r"residency_foreign .*differs in: model"):
        WorkerShare(other, 0, 0.0)
    engine = ArenaEngine(tmp_path, "three", arena_layout(40))
    assert engine.found("abc") == 2
    engine.kill()


@pytest.mark.parametrize("at", range(0, 112, 9))
def test_a_torn_row_is_no_row(tmp_path: Path, at: int) -> None:
    """Whatever byte of it is another one, even if the word that vouches for it is there."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("abc")
    first = engine.manager._arena.tree.blocks[b"a"].pages[0].first
    engine.kill()
    path = tmp_path / "tierdeck-e" / "engine-0" / "arena.index"
    content = bytearray(path.read_bytes())
    content[first * 112 + at] ^= 4
    path.write_bytes(content)
    engine = ArenaEngine(tmp_path, "two", arena_layout(40))
    assert engine.found("abc") in ((0, 2) if at < 24 else (0,)), "what is a hint may be another one"
    engine.session("abc")
    assert engine.found("abc") == 2
    engine.kill()


def test_rows_that_claim_one_page_are_both_dropped(tmp_path: Path) -> None:
    """It cannot be, so neither of them is believed."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    engine.session("abc")
    blocks = engine.manager._arena.tree.blocks
    pages = (blocks[b"a"].pages[0]._replace(first=blocks[b"ab"].pages[0].first - 1),)
    engine.memory.ledger.drop(blocks[b"a"].pages)
    blocks[b"a"].pages = pages
    engine.memory.ledger.readable(blocks[b"a"])
    engine.kill()
    engine = ArenaEngine(tmp_path, "two", arena_layout(40))
    assert engine.found("abc") == 0
    engine.kill()


def _write(mount: Path, name: str) -> None:
    write_without_end(mount, ArenaEngine(mount, name, arena_layout(300)).session, shortest=3)


def test_a_process_killed_while_it_writes_leaves_only_whole_slots(tmp_path: Path) -> None:
    """SIGKILL at moments nobody chose; what it had acknowledged and not evicted is there, and right."""
    for number in range(15):
        process = multiprocessing.get_context("fork").Process(target=_write, args=(tmp_path, f"writer {number}"))
        process.start()
        kill_while_writing(tmp_path, process, number)
        _check_what_is_left(tmp_path, number)


def _check_what_is_left(mount: Path, number: int) -> None:
    engine = ArenaEngine(mount, f"reader {number}", arena_layout(300))
    found = [engine.found(f"{one:02}abcdef") for one in range(50)]
    assert sum(count > 0 for count in found) >= 3, found
    engine.kill()


class Scheduler(ArenaEngine):
    """The scheduler's process: what is to be copied goes to the worker's."""

    def __init__(self, mount: Path, run: str, layout: HostLayout, worker: Connection) -> None:
        self.layout, self.arenas, self._worker = layout, [], worker
        self.memory = ResidentArena(plan_of(mount, run, layout), 5.0)
        self.manager = ValueManager(layout, memory=self.memory)

    def write(self, keys: Sequence[OffloadKey], slots: Sequence[tuple[Run, ...]], whole: bool = True) -> None:
        self._worker.send((list(keys), list(slots)))
        self._worker.recv()


class Worker(ArenaEngine):
    """The worker's process."""

    def __init__(self, mount: Path, run: str, layout: HostLayout) -> None:
        self.layout = layout
        self.arenas = [Arena(layout, WorkerShare(plan_of(mount, run, layout), 0, 5.0))]


def _work(mount: Path, run: str, scheduler: Connection) -> None:
    worker = Worker(mount, run, arena_layout(300))
    scheduler.send("ready")
    while True:
        keys, slots = scheduler.recv()
        for key, slot in zip(keys, slots, strict=True):
            worker.write([key], [slot], whole=False)
            worker.write([key], [slot])
        scheduler.send("copied")


def _schedule(mount: Path, run: str, worker: Connection) -> None:
    worker.recv()
    write_without_end(mount, Scheduler(mount, run, arena_layout(300), worker).session, shortest=3)


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_one_process_is_killed_and_the_other_one_goes_on_for_a_while(tmp_path: Path, victim: str) -> None:
    """A worker that copies what nobody will acknowledge, a scheduler that waits for what nobody copies."""
    fork = multiprocessing.get_context("fork")
    for number in range(8):
        ours, theirs = fork.Pipe()
        processes = {
            "worker": fork.Process(target=_work, args=(tmp_path, f"run {number}", ours)),
            "scheduler": fork.Process(target=_schedule, args=(tmp_path, f"run {number}", theirs)),
        }
        for process in processes.values():
            process.start()
        kill_while_writing(tmp_path, processes[victim], number)
        time.sleep(0.005)
        for process in processes.values():
            process.kill()
            process.join()
        _check_what_is_left(tmp_path, number)


def test_one_engine_has_the_arena_at_a_time(tmp_path: Path) -> None:
    """The lease is the one of a split."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(40))
    with pytest.raises(InUseError):
        ResidentArena(plan_of(tmp_path, "one", arena_layout(40)), 0.0)
    engine.session("abc")
    engine.kill()
