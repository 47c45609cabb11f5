"""What was learned of reuse outlives the engine, as the host memory does."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.policies.reuse import BINS, CLASSES, ReuseIndex, klass_of
from engine.residency_arena import ResidentArena
from engine.residency_learned import FORMAT, LEARNED_NAME, Keeper, NotLearnedError, read_learned, write_learned
from engine.residency_region import WorkerShare
from tests.unit.engine.arena_rig import ArenaEngine, arena_layout
from tests.unit.engine.chains import Clock
from tests.unit.engine.residency_rig import plan_of

ONCE, OFTEN = klass_of(False, 1, 5_000, 0), klass_of(True, 9, 5_000, 0)


def taught(requests: int = 504) -> ReuseIndex:
    """A whole number of turns, in which it computes one class anew."""
    index = ReuseIndex()
    for number in range(requests):
        index.request()
        index.made(ONCE)
        index.aged(OFTEN, number % BINS)
        index.used(OFTEN, 40.0 * number, lost=bool(number % 3))
    return index


def test_an_index_goes_on_where_another_one_was(tmp_path: Path) -> None:
    """The same worth of every class, also of one of which nothing was seen, and it fades as before."""
    before, after = taught(), ReuseIndex()
    write_learned(tmp_path / LEARNED_NAME, before.learned())
    found = read_learned(tmp_path / LEARNED_NAME)
    assert found is not None
    after.resume(found)
    for _ in range(3):
        for klass in range(CLASSES):
            assert after.index(klass) == pytest.approx(before.index(klass), rel=1e-3)
        for _ in range(16 * CLASSES):
            before.request()
            after.request()
    assert after.index(OFTEN) != pytest.approx(ReuseIndex().index(OFTEN), rel=1e-3)


def test_it_is_kept_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    """For its owner alone."""
    path, learned = tmp_path / LEARNED_NAME, taught().learned()
    keeper = Keeper(path, lambda: learned)
    keeper(last=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    keeper(last=False)
    assert not path.exists(), "it is not time yet"
    keeper(last=True)
    assert read_learned(path) is not None


def test_what_learns_nothing_keeps_nothing(tmp_path: Path) -> None:
    """The closed form."""
    engine = ArenaEngine(tmp_path, "one", arena_layout(60), policy="hyper")
    engine.memory.tell(engine.manager)
    engine.kill()
    assert not list(tmp_path.rglob(LEARNED_NAME))


def one_run(mount: Path, name: str, clock: Clock, pages: int = 60) -> ArenaEngine:
    engine = ArenaEngine(mount, name, arena_layout(pages), clock=clock)
    engine.memory.tell(engine.manager)
    return engine


def test_the_next_run_knows_what_was_learned(tmp_path: Path) -> None:
    """Whatever its size is."""
    clock = Clock()
    engine = one_run(tmp_path, "one", clock)
    for round_number in range(30):
        clock.now += 100.0
        engine.session("abcdefgh"[: 3 + round_number % 6])
    engine.kill()
    before = engine.manager.learned()
    assert before is not None
    assert sum(sum(counts.used) for counts in before.classes.values()) > 5
    for name, pages in (("two", 60), ("three", 25)):
        engine = one_run(tmp_path, name, clock, pages)
        after = engine.manager.learned()
        assert after is not None
        assert after.classes.keys() == before.classes.keys()
        for klass, counts in before.classes.items():
            for mine, theirs in zip(after.classes[klass], counts, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-3)
        engine.kill()


def test_what_was_learned_stays_when_the_contents_are_of_another_model(tmp_path: Path) -> None:
    """The bytes are dropped; the traffic is the same."""
    engine = one_run(tmp_path, "one", Clock())
    for _ in range(4):
        engine.session("abcdef")
    engine.kill()
    before = engine.manager.learned()
    assert before is not None
    assert before.classes
    plan = plan_of(tmp_path, "two", arena_layout(60), model="another")
    share = WorkerShare(plan, 0, 0.0)
    memory = ResidentArena(plan, 0.0)
    assert memory.rows() == []
    after = memory.learned()
    assert after is not None
    assert after.classes.keys() == before.classes.keys()
    memory.close()
    share.close()


GOOD: dict[str, Any] = {
    "format": FORMAT,
    "kinds": [[[0.0] * BINS] * 3] * 2,
    "classes": {"0": [[1.0] * BINS] * 3},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        *(
            json.dumps({**GOOD, **change})
            for change in (
                {"format": FORMAT + 1},
                {"kinds": []},
                {"kinds": None},
                {"classes": {"x": [[1.0] * BINS] * 3}},
                {"classes": {str(CLASSES): [[1.0] * BINS] * 3}},
                {"classes": {"0": [[1.0] * (BINS - 1)] * 3}},
                {"classes": {"0": [[1.0] * BINS] * 2}},
                {"classes": {"0": [[-1.0] * BINS] * 3}},
                {"classes": {"0": [[float("nan")] * BINS] * 3}},
                {"classes": {"0": [["a"] * BINS] * 3}},
                {"classes": {"0": [[1e300] * BINS] * 3}},
                {"classes": {"0": [[10**400] * BINS] * 3}},
                {"classes": []},
                {"classes": {"0": 3}},
            )
        ),
    ],
)
def test_what_cannot_be_gone_on_from_is_said_and_nothing_is_lost(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are there as ever, and reuse is learned anew."""
    engine = one_run(tmp_path, "one", Clock())
    engine.session("abcdef")
    engine.kill()
    path = next(tmp_path.rglob(LEARNED_NAME))
    path.write_text(text)
    with pytest.raises(NotLearnedError, match=r"learned\.json"):
        read_learned(path)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        engine = one_run(tmp_path, "two", Clock())
    assert "reuse is learned anew" in caplog.text
    assert engine.found("abcdef") == 5
    engine.kill()
    assert read_learned(path) is not None
