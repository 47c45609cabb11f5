"""What follows in a rollout. Pure: the runner acts, this module decides.

fact                          | engines done    | the engine in work | engines not begun | ends as
------------------------------+-----------------+--------------------+-------------------+------------
every step done               | stay            | -                  | -                 | done
a step failed                 | go back         | goes back          | stay as they were | rolled_back
rollback asked for            | go back         | goes back          | stay as they were | rolled_back
cancel asked for              | stay            | goes back          | stay as they were | cancelled
a step of going back failed   | stay            | stays              | stay as they were | failed

An engine that is at its last step when a cancel comes has passed its test and is let go on.
`rolling` takes one engine at a time and drains it only while another serves; the others take all at once.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from app.rollouts.said import NOTHING, Said, say
from app.rollouts.steps import OVER, Rollout, Step, StepFact, StepState, Turn, Way, Wish

EndState = Literal["done", "rolled_back", "cancelled", "failed"]


@dataclass(frozen=True)
class Do:
    """A step that should be in work now."""

    engine: str
    way: Way
    step: Step


@dataclass(frozen=True)
class End:
    """How it ends. `reason` is what went wrong, or who asked for it."""

    state: EndState
    reason: Said


@dataclass(frozen=True)
class Decision:
    """`work`: what should be in work, and nothing else; `waits_for`: why nothing is, though it goes on."""

    work: tuple[Do, ...] = ()
    waits_for: Said = NOTHING
    end: End | None = None


def decide(rollout: Rollout, serving: Set[str]) -> Decision:
    """What should be going on now. `serving`: names of the fleet's engines that take requests."""
    backs = [turn for turn in rollout.turns if must_go_back(turn, rollout)]
    if backs or ends_early(rollout):
        return _back(rollout, backs, serving)
    under_way = [turn for turn in rollout.turns if not turn.arrived]
    if not under_way:
        return Decision(end=End("done", NOTHING))
    return _work(rollout, under_way, Way.FORWARD, serving)


def failure(rollout: Rollout) -> tuple[Turn, StepFact] | None:
    """The step forward that failed first."""
    found = [(turn, fact) for turn in rollout.turns if (fact := turn.failed(Way.FORWARD)) is not None]
    return min(found, key=lambda one: one[1].ended_at or 0.0, default=None)


def ends_early(rollout: Rollout) -> bool:
    """True when no further engine is to be begun."""
    return failure(rollout) is not None or rollout.wish is not Wish.NONE


def must_go_back(turn: Turn, rollout: Rollout) -> bool:
    """True when this engine is to have the version before again."""
    if turn.called_off:
        return True
    if failure(rollout) is not None or rollout.wish is Wish.ROLLBACK:
        return turn.touched
    at_last_step = turn.row(Way.FORWARD)[-1].state is StepState.WORKING
    return rollout.wish is Wish.CANCEL and turn.touched and not turn.arrived and not at_last_step


def goes_back(rollout: Rollout) -> bool:
    """True while an engine is to have the version before again."""
    return any(must_go_back(turn, rollout) for turn in rollout.turns)


def _back(rollout: Rollout, backs: list[Turn], serving: Set[str]) -> Decision:
    finishing = [turn for turn in rollout.turns if turn not in backs and turn.touched and not turn.arrived]
    left = [turn for turn in backs if not turn.returned and turn.failed(Way.BACK) is None]
    broken = next((turn for turn in backs if turn.failed(Way.BACK) is not None), None)
    if finishing:
        return _work(rollout, finishing, Way.FORWARD, serving)
    if broken is not None and (rollout.strategy == "rolling" or not left):
        return Decision(end=End("failed", _why_failed(rollout, broken)))
    if left:
        return _work(rollout, sorted(left, key=_unfinished_first, reverse=True), Way.BACK, serving)
    return Decision(end=_early_end(rollout))


def _unfinished_first(turn: Turn) -> tuple[bool, bool, float]:
    """The engine in work before those that are done; of these the last one first."""
    last = turn.row(Way.FORWARD)[-1]
    return (turn.called_off, last.state not in OVER, last.ended_at or 0.0)


def _early_end(rollout: Rollout) -> End:
    failed = failure(rollout)
    if failed is not None:
        return End("rolled_back", failed[1].detail)
    return End("rolled_back" if rollout.wish is Wish.ROLLBACK else "cancelled", NOTHING)


def _why_failed(rollout: Rollout, broken: Turn) -> Said:
    first, then = failure(rollout), broken.failed(Way.BACK)
    return say(
        "%(why)s %(engine)s could not go back to the version before: %(back)s",
        why=first[1].detail if first is not None else NOTHING,
        engine=broken.engine,
        back=then.detail if then is not None else NOTHING,
    )


def _work(rollout: Rollout, turns: list[Turn], way: Way, serving: Set[str]) -> Decision:
    if rollout.strategy != "rolling":
        return Decision(tuple(_next(turn, way) for turn in turns))
    turn = turns[0]
    do = _next(turn, way)
    if _empties_the_fleet(turn, do, serving):
        return Decision(
            waits_for=say("No other engine serves: %(engine)s goes on serving until one does.", engine=turn.engine)
        )
    return Decision((do,))


def _next(turn: Turn, way: Way) -> Do:
    step = next(fact.step for fact in turn.row(way) if fact.state not in OVER)
    return Do(turn.engine, way, step)


def _empties_the_fleet(turn: Turn, do: Do, serving: Set[str]) -> bool:
    is_new = turn.fact(do.way, do.step).state is StepState.WAITING
    if do.way is Way.BACK and turn.fact(Way.FORWARD, Step.STOP).state is StepState.WAITING:
        return False  # its process was not touched: nothing will be drained
    return do.step is Step.DRAIN and is_new and turn.engine in serving and serving <= {turn.engine}
