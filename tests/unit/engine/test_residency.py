"""Host memory that outlives its engine: what is found again is right, whatever was killed and whenever."""

from __future__ import annotations

import multiprocessing
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_block_hash, get_offload_group_idx

from engine.config import ConfigError
from engine.layout import HostLayout
from engine.residency import PassingMemory, Residency, ResidentMemory, pool_shapes
from engine.residency_place import InUseError, Lease, NotPrivateError, used_bytes
from engine.residency_plan import Plan, PoolShape
from engine.residency_region import WorkerShare
from tests.unit.engine.chains import STATE_GROUPS, TOKEN_GROUP, Request, layout, run
from tests.unit.engine.residency_rig import Engine, kill_while_writing, plan_of, start, write_without_end


@pytest.mark.parametrize("workers", [1, 3])
def test_a_new_engine_finds_every_session_where_it_was(tmp_path: Path, workers: int) -> None:
    """All blocks and the state, on every worker, with the bytes that were stored; and so in the third run."""
    engine = start(tmp_path, "one", workers=workers)
    for blocks in ("abcdef", "abcxyz", "klm"):
        engine.session(blocks)
    engine.kill()
    for name in ("two", "three"):
        engine = start(tmp_path, name, workers=workers)
        assert [engine.found(blocks) for blocks in ("abcdef", "abcxyz", "klm")] == [5, 5, 2]
        engine.session("q" + name)
        engine.kill()


def test_a_slot_that_was_being_overwritten_is_dropped(tmp_path: Path) -> None:
    """The old block is gone before the first byte of the new one, which is not there before its last."""
    lay = layout(3, 4)
    engine = start(tmp_path, "one", lay)
    engine.session("abc")
    request = Request(engine.manager, "next", "xyz")
    output = engine.manager.prepare_store(request.tokens(0, 2), request.context)
    assert output is not None
    engine.write(output.keys_to_store, output.store_spec.slots.tolist(), whole=False)
    engine.kill()
    engine = start(tmp_path, "two", lay)
    old, new = Request(engine.manager, "old", "abc"), Request(engine.manager, "new", "xyz")
    hits = [engine.manager.lookup(key, old.context) is LookupResult.HIT for key in old.tokens()]
    assert hits == [True, False, False], "a chain is eaten from its end"
    assert not any(engine.manager.lookup(key, new.context) is LookupResult.HIT for key in new.tokens())
    engine.kill()


def test_a_state_is_there_when_all_its_groups_are(tmp_path: Path) -> None:
    """Killed between two groups of one state: the group that was stored is kept, the other one is a miss."""
    engine = start(tmp_path, "one")
    request = Request(engine.manager, "r", "abc")
    engine.store(request, request.states(2)[:1])
    output = engine.manager.prepare_store(request.states(2)[1:], request.context)
    assert output is not None
    engine.write(output.keys_to_store, output.store_spec.slots.tolist(), whole=False)
    engine.kill()
    engine = start(tmp_path, "two")
    request = Request(engine.manager, "r", "abc")
    assert [engine.manager.lookup(key, request.context).name for key in request.states(2)] == ["HIT", "MISS"]
    engine.kill()


def test_a_reset_cache_stays_empty(tmp_path: Path) -> None:
    """Weights may have been replaced."""
    engine = start(tmp_path, "one")
    engine.session("abc")
    engine.manager.reset_cache()
    engine.kill()
    engine = start(tmp_path, "two")
    assert engine.found("abc") == 0
    engine.kill()


def test_a_smaller_budget_keeps_the_newest_sessions(tmp_path: Path) -> None:
    """They move to slots that are still there; memory behind is given back; a larger budget then keeps all."""
    big, small = replace_slots(4000, 400), replace_slots(1000, 100)
    engine = start(tmp_path, "one", big)
    names = [f"{number:03}" + "abcdefg" for number in range(380)]
    for name in names:
        engine.session(name)
    used_before = used_bytes(tmp_path)
    engine.kill()
    engine = start(tmp_path, "two", small)
    assert used_bytes(tmp_path) < used_before / 2
    assert [engine.found(name) for name in names[-95:]] == [9] * 95
    assert engine.found(names[0]) < 9
    engine.kill()
    engine = start(tmp_path, "three", big)
    assert [engine.found(name) for name in names[-95:]] == [9] * 95
    engine.session("and room for more")
    engine.kill()


def replace_slots(token_slots: int, state_slots: int) -> HostLayout:
    return layout(token_slots, state_slots)


def test_superseded_states_go_first_when_the_pool_shrinks(tmp_path: Path) -> None:
    """Value, not age alone: of one long session the old boundaries are dropped, others keep theirs."""
    engine = start(tmp_path, "one", layout(60, 10))
    engine.session("xy")
    run(engine.manager, "long", "abcdefghij", states=range(1, 9))
    engine.kill()
    engine = start(tmp_path, "two", layout(60, 4))
    kept = Request(engine.manager, "r", "abcdefghij")
    assert [number for number in range(1, 10) if kept.has(kept.states(number))] == [6, 7, 8]
    other = Request(engine.manager, "s", "xy")
    assert other.has(other.states(1))
    engine.kill()


@pytest.mark.parametrize("foreign", ["replace", "refuse"])
def test_contents_of_another_engine_are_never_served(tmp_path: Path, foreign: Any) -> None:
    """Replaced, and said; or the start ends with a sentence that says what differs."""
    engine = start(tmp_path, "one", model="a")
    engine.session("abc")
    engine.kill()
    other = replace(plan_of(tmp_path, "two", layout(40, 8), model="b"), foreign=foreign)
    if foreign == "refuse":
        with pytest.raises(ConfigError, match=r"residency_foreign .*differs in: model"):
            Engine(other, layout(40, 8))
        engine = start(tmp_path, "three", model="a")
        assert engine.found("abc") == 2, "refusing leaves it as it was"
    else:
        engine = Engine(other, layout(40, 8))
        assert engine.found("abc") == 0
    engine.kill()


def test_lost_memory_of_one_worker_voids_all(tmp_path: Path) -> None:
    """A block is spread over all workers; half of it is nothing."""
    engine = start(tmp_path, "one", workers=2)
    engine.session("abc")
    engine.kill()
    (tmp_path / "tierdeck-e" / "engine-0" / "worker-1.token").unlink()
    engine = start(tmp_path, "two", workers=2)
    assert engine.found("abc") == 0
    engine.kill()


def test_writes_that_the_index_did_not_see_void_it(tmp_path: Path) -> None:
    """A run whose scheduler could not use the index wrote to the slots: its rows say nothing any more."""
    engine = start(tmp_path, "one")
    engine.session("abc")
    engine.kill()
    plan = plan_of(tmp_path, "two", layout(40, 8))
    with Held(plan.directory / "engine.lock"):
        share = WorkerShare(plan, 0)
        assert isinstance(Residency(plan, 0.0).scheduler_memory(), PassingMemory)
        share.begin_writing()
        share.close()
    engine = start(tmp_path, "three")
    assert engine.found("abc") == 0
    engine.kill()


def test_a_run_that_wrote_nothing_voids_nothing(tmp_path: Path) -> None:
    """Whether it was killed before its scheduler or after."""
    engine = start(tmp_path, "one")
    engine.session("abc")
    engine.kill()
    WorkerShare(plan_of(tmp_path, "two", layout(40, 8)), 0).close()
    start(tmp_path, "three").kill()
    engine = start(tmp_path, "four")
    assert engine.found("abc") == 2
    engine.kill()


class Held:
    """Another process that has a lease."""

    def __init__(self, path: Path) -> None:
        program = (
            "import sys; from pathlib import Path; from engine.residency_place import Lease\n"
            "lease = Lease(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"held\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_two_engines_never_share_memory(tmp_path: Path) -> None:
    """The second one is told who has it and keeps its memory to itself; when the first is killed, it is free."""
    plan = plan_of(tmp_path, "one", layout(40, 8))
    plan.make_directory()
    with Held(plan.directory / "worker-0.lock") as holder, pytest.raises(InUseError, match=f"process {holder.pid}"):
        WorkerShare(plan, 0, 0.0)
    with pytest.raises(InUseError, match="worker 0 has its memory elsewhere"):
        ResidentMemory(plan, 0.0)
    WorkerShare(plan, 0, 0.0).close()


def test_nobody_else_can_look_into_it(tmp_path: Path) -> None:
    """Directory 0700, files 0600, whatever the umask; a name that others can enter is not used."""
    engine = start(tmp_path, "one")
    engine.session("abc")
    engine.kill()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tierdeck-e").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    (tmp_path / "tierdeck-e").chmod(0o755)
    with pytest.raises(NotPrivateError, match="must have mode 0700"):
        start(tmp_path, "two")
    assert Residency(plan_of(tmp_path, "two", layout(40, 8))).worker_share(0) is None


def test_what_the_mount_cannot_hold_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there already counts as free for its own engine."""
    shape = {"token": PoolShape(1000, 4096)}
    plan = Plan(tmp_path / "tierdeck-e" / "engine-0", "one", {}, shape, 2)
    monkeypatch.setattr("engine.residency_place.free_bytes", lambda mount: 5_000_000)
    with pytest.raises(ConfigError, match=r"8192000 bytes are wanted in .*, but only 5\d\d\d\d\d\d are free"):
        WorkerShare(plan, 0)
    (tmp_path / "tierdeck-e" / "engine-0" / "worker-1.token").write_bytes(b"x" * 4_096_000)
    WorkerShare(plan, 0).close()


def test_a_torn_row_is_no_row(tmp_path: Path) -> None:
    """Even if the word that vouches for it were there."""
    engine = start(tmp_path, "one")
    engine.session("abc")
    engine.kill()
    path = tmp_path / "tierdeck-e" / "engine-0" / "token.index"
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    engine = start(tmp_path, "two")
    assert engine.found("abc") == 0
    engine.kill()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["whole", "whole", "begin", "begin", "copy half", "copy", "end", "load", "finish", "reset"]),
        st.integers(0, 7),
    ),
    max_size=60,
)
SESSIONS = ("abcd", "abxy", "abcdefg", "kl", "klmnop", "q", "rstuvw", "abcdxx")


@settings(max_examples=150)
@given(runs=st.lists(STEPS, min_size=1, max_size=3), sizes=st.lists(st.integers(3, 14), min_size=4, max_size=4))
def test_killed_at_any_moment_nothing_wrong_is_served(
    tmp_path_factory: pytest.TempPathFactory, runs: list[Any], sizes: list[int]
) -> None:
    """Stores begun, half copied, copied and acknowledged in any order, in pools of changing sizes: whatever a
    later run serves has the bytes of its key on every worker.
    """
    mount = tmp_path_factory.mktemp("mount")
    for number, steps in enumerate([*runs, []]):
        lay = layout(sizes[number], max(2, sizes[number] // 3))
        engine = start(mount, f"run {number}", lay, workers=2)
        engine.check(SESSIONS)
        Crowd(engine).act(steps)
        engine.kill()
    shutil.rmtree(mount)


class Crowd:
    """Requests with stores in flight."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: dict[int, Request] = {}
        self.flights: list[tuple[Request, list[OffloadKey], list[int]]] = []

    def act(self, steps: list[tuple[str, int]]) -> None:
        for verb, number in steps:
            request = self.requests.get(number) or Request(self.engine.manager, f"{number}", SESSIONS[number])
            self.requests[number] = request
            getattr(self, verb.replace(" ", "_"))(request, number)

    def begin(self, request: Request, number: int) -> None:
        end = max(1, len(request.hashes) - 1)
        for keys in (request.tokens(), *([key] for key in request.states(end))):
            output = self.engine.manager.prepare_store(keys, request.context)
            assert output is not None
            self.flights.append((request, output.keys_to_store, output.store_spec.slots.tolist()))

    def whole(self, request: Request, number: int) -> None:
        self.engine.session(SESSIONS[number])

    def copy_half(self, request: Request, number: int) -> None:
        for flight in self.flights[number : number + 1]:
            self.engine.write(*flight[1:], whole=False)

    def copy(self, request: Request, number: int) -> None:
        for flight in self.flights[number : number + 1]:
            self.engine.write(*flight[1:])

    def end(self, request: Request, number: int) -> None:
        for flight in self.flights[number : number + 1]:
            self.engine.write(*flight[1:])
            self.engine.manager.complete_store(set(flight[1]), flight[0].context)
            self.flights.remove(flight)

    def load(self, request: Request, number: int) -> None:
        self.engine.found(SESSIONS[number])

    def finish(self, request: Request, number: int) -> None:
        request.finish()
        del self.requests[number]

    def reset(self, request: Request, number: int) -> None:
        for flight in self.flights:  # vLLM flushes them, and never acknowledges them
            self.engine.write(*flight[1:])
        self.flights.clear()
        self.engine.manager.reset_cache()


def _write(mount: Path, name: str) -> None:
    write_without_end(mount, start(mount, name).session, shortest=6)


def test_a_process_killed_while_it_writes_leaves_only_whole_blocks(tmp_path: Path) -> None:
    """SIGKILL at moments nobody chose; what it had acknowledged is there, and right."""
    for number in range(15):
        process = multiprocessing.get_context("fork").Process(target=_write, args=(tmp_path, f"writer {number}"))
        process.start()
        kill_while_writing(tmp_path, process, number)
        engine = start(tmp_path, f"reader {number}")
        engine.check(f"{one:02}abcdef" for one in range(50))
        found = [engine.found(f"{one:02}abcdef") for one in range(50)]
        assert sum(count == 7 for count in found) >= 3, found
        engine.kill()


def test_keys_know_their_group(tmp_path: Path) -> None:
    """The rig's keys are as vLLM makes them."""
    engine = start(tmp_path, "one")
    request = Request(engine.manager, "r", "ab")
    assert [get_offload_group_idx(key) for key in (*request.tokens(0, 1), *request.states(1))] == [
        TOKEN_GROUP,
        *STATE_GROUPS,
    ]
    assert {get_offload_block_hash(key) for key in request.states(1)} == {b"a"}
    engine.kill()


def test_a_lease_is_for_one_holder_of_this_process_too(tmp_path: Path) -> None:
    """Two engines in one process are two engines."""
    lease = Lease(tmp_path / "a.lock")
    with pytest.raises(InUseError, match="this process itself"):
        Lease(tmp_path / "a.lock")
    lease.release()
    Lease(tmp_path / "a.lock").release()


def _sizes(shapes: Mapping[str, PoolShape]) -> list[int]:
    return [shape.file_bytes for shape in shapes.values()]


def test_pools_are_files_of_whole_pages() -> None:
    """A mapping ends with a page."""
    assert _sizes(pool_shapes(layout(100, 1))) == [8192, 4096]
