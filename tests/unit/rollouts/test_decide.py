"""The whole course of rollouts, without an engine: each decision is taken up at once, and again after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from app.rollouts.decide import Decision, Do, decide
from app.rollouts.said import say
from app.rollouts.steps import STEPS, STEPS_BESIDE, Rollout, Step, StepFact, StepState, Turn, Way, Wish
from app.rollouts.strategy import Strategy

FORWARD, BACK = STEPS[Way.FORWARD], STEPS[Way.BACK]


def turn(engine: str) -> Turn:
    return Turn(engine, before=1, after=2, stopped_on_purpose=False, steps=())


@dataclass
class Fleet:
    """Engines that do what they are told; `fails` are the steps that go wrong."""

    rollout: Rollout
    fails: frozenset[Do] = frozenset()
    serving: set[str] = field(default_factory=set)
    done: list[Do] = field(default_factory=list)
    fewest_serving: int = 99
    clock: float = 0.0

    def decide(self) -> Decision:
        return decide(self.rollout, self.serving)

    def record(self, do: Do, state: StepState) -> None:
        self.clock += 1
        fact = StepFact(do.way, do.step, state, self.clock, self.clock, say(f"{do.engine} {do.step}"))
        turns = tuple(
            replace(one, steps=(*(f for f in one.steps if (f.way, f.step) != (do.way, do.step)), fact))
            if one.engine == do.engine
            else one
            for one in self.rollout.turns
        )
        self.rollout = replace(self.rollout, turns=turns)

    def act(self, do: Do) -> None:
        self.record(do, StepState.WORKING)
        if do.step is Step.DRAIN:
            self.serving.discard(do.engine)
        if do in self.fails:
            self.record(do, StepState.FAILED)
            return
        if do.step is Step.RELEASE:
            self.serving.add(do.engine)
        self.done.append(do)
        self.record(do, StepState.DONE)

    def run(self, until: Callable[[Do], bool] = lambda _: False) -> Decision:
        while True:
            decision = self.decide()
            if decision.end is not None or not decision.work:
                return decision
            for do in decision.work:
                if until(do):
                    return decision
                self.act(do)
                self.fewest_serving = min(self.fewest_serving, len(self.serving))


def fleet(strategy: Strategy, *engines: str, fails: tuple[Do, ...] = (), serving: set[str] | None = None) -> Fleet:
    turns = tuple(replace(turn(name), beside=strategy == "blue_green") for name in engines)
    rollout = Rollout(strategy, Wish.NONE, turns)
    return Fleet(rollout, frozenset(fails), set(engines) if serving is None else serving)


def went(found: Fleet, way: Way) -> list[str]:
    return [do.engine for do in found.done if do.way is way and do.step is Step.RELEASE]


def test_rolling_takes_one_engine_after_the_other() -> None:
    """All steps of one before the first of the next; one always serves."""
    found = fleet("rolling", "a", "b")
    end = found.run().end
    assert end is not None
    assert end.state == "done"
    assert [(do.engine, do.step) for do in found.done] == [(name, step) for name in "ab" for step in FORWARD]
    assert found.fewest_serving == 1


def test_in_place_takes_all_at_once() -> None:
    """Each at its own pace."""
    found = fleet("in_place", "a", "b")
    assert [do.engine for do in found.decide().work] == ["a", "b"]
    end = found.run().end
    assert end is not None
    assert end.state == "done"


def test_rolling_waits_while_no_other_engine_serves() -> None:
    """The last one that serves is not drained; once another does, it goes on."""
    found = fleet("rolling", "a", "b", serving={"a"})
    decision = found.run()
    assert (decision.end, decision.work) == (None, ())
    assert "a goes on serving" in decision.waits_for.text
    found.serving.add("b")
    end = found.run().end
    assert end is not None
    assert end.state == "done"


@pytest.mark.parametrize("step", FORWARD)
def test_a_failed_step_takes_the_fleet_back(step: Step) -> None:
    """The second engine fails: it goes back first, then the one that was done; the third stays as it was."""
    found = fleet("rolling", "a", "b", "c", fails=(Do("b", Way.FORWARD, step),))
    end = found.run().end
    assert end is not None
    assert (end.state, end.reason.text) == ("rolled_back", f"b {step}")
    assert went(found, Way.BACK) == ["b", "a"]
    assert "c" not in {do.engine for do in found.done}
    assert found.fewest_serving >= 1


@pytest.mark.parametrize("step", BACK)
def test_going_back_fails_as_well(step: Step) -> None:
    """It ends as failed, with both reasons; the engine that was done is left alone, as it may be the last to serve."""
    found = fleet("rolling", "a", "b", fails=(Do("b", Way.FORWARD, Step.READY), Do("b", Way.BACK, step)))
    end = found.run().end
    assert end is not None
    assert end.state == "failed"
    assert "b ready" in end.reason.text
    assert f"b {step}" in end.reason.text
    assert went(found, Way.BACK) == []


@pytest.mark.parametrize("step", FORWARD)
def test_cancel_in_every_step(step: Step) -> None:
    """The engine in work goes back, those that are done stay, the others are not begun."""
    found = fleet("rolling", "a", "b", "c")
    found.run(until=lambda do: do == Do("b", Way.FORWARD, step))
    found.record(Do("b", Way.FORWARD, step), StepState.WORKING)
    found.rollout = replace(found.rollout, wish=Wish.CANCEL)
    end = found.run().end
    assert end is not None
    assert end.state == "cancelled"
    assert went(found, Way.BACK) == ([] if step is Step.RELEASE else ["b"])
    assert "a" in found.serving
    assert "c" not in {do.engine for do in found.done}


@pytest.mark.parametrize("step", FORWARD)
def test_rollback_in_every_step(step: Step) -> None:
    """Every engine that was begun goes back, one at a time."""
    found = fleet("rolling", "a", "b", "c")
    found.run(until=lambda do: do == Do("b", Way.FORWARD, step))
    found.record(Do("b", Way.FORWARD, step), StepState.WORKING)
    found.rollout = replace(found.rollout, wish=Wish.ROLLBACK)
    end = found.run().end
    assert end is not None
    assert end.state == "rolled_back"
    assert went(found, Way.BACK) == ["b", "a"]
    assert found.fewest_serving >= 1


def test_cancel_before_anything_was_begun() -> None:
    """Nothing happens."""
    found = fleet("rolling", "a", "b")
    found.rollout = replace(found.rollout, wish=Wish.CANCEL)
    end = found.run().end
    assert end is not None
    assert end.state == "cancelled"
    assert found.done == []


def test_rollback_of_a_rollout_that_was_done() -> None:
    """All go back, the last one first."""
    found = fleet("rolling", "a", "b")
    found.run()
    found.rollout = replace(found.rollout, wish=Wish.ROLLBACK)
    end = found.run().end
    assert end is not None
    assert end.state == "rolled_back"
    assert went(found, Way.BACK) == ["b", "a"]


def test_in_place_goes_on_with_the_others_when_one_cannot_go_back() -> None:
    """None of them serves; each one that comes back is worth it. It ends when all have been tried."""
    fails = (Do("a", Way.FORWARD, Step.READY), Do("a", Way.BACK, Step.READY))
    found = fleet("in_place", "a", "b", fails=fails)
    end = found.run().end
    assert end is not None
    assert end.state == "failed"
    assert went(found, Way.BACK) == ["b"]


@pytest.mark.parametrize("way", list(Way))
def test_a_step_that_was_in_work_is_done_again(way: Way) -> None:
    """A deck that was killed in a step begins with that step, whatever serves meanwhile."""
    for step in STEPS[way]:
        found = fleet("rolling", "a", "b", fails=(Do("a", Way.FORWARD, Step.CANARY),) if way is Way.BACK else ())
        do = Do("a", way, step)
        found.run(until=lambda one, do=do: one == do)
        found.record(do, StepState.WORKING)
        found.serving = {"a"}
        assert found.decide().work == (do,)


def test_a_new_engine_takes_over_before_the_old_one_is_drained() -> None:
    """Beside: tested and released first; on the way back the old one serves again before the new one goes."""
    found = fleet("blue_green", "a", fails=(Do("a", Way.FORWARD, Step.STOP),))
    end = found.run().end
    assert end is not None
    assert end.state == "rolled_back"
    steps = [(do.way, do.step) for do in found.done]
    assert steps == [
        *((Way.FORWARD, step) for step in STEPS_BESIDE[Way.FORWARD][:-1]),
        *((Way.BACK, step) for step in STEPS_BESIDE[Way.BACK]),
    ]
    assert steps.index((Way.FORWARD, Step.RELEASE)) < steps.index((Way.FORWARD, Step.DRAIN))
    assert steps.index((Way.BACK, Step.RELEASE)) < steps.index((Way.BACK, Step.DRAIN))
