"""A rollout as shown: engines as rows, steps as columns, each with what comes of it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.rollouts.decide import decide, failure
from app.rollouts.said import NOTHING, Said, said_of, say
from app.rollouts.steps import STEP_WORDS, Rollout, Step, StepFact, StepState, Turn, Way, Wish
from app.services.engines import Engines
from app.store.models import RolloutLogRow, RolloutRow
from app.supervisor.status import EngineStatus


@dataclass(frozen=True)
class StepView:
    """A cell: a step of one engine. `progress` is 0 to 1 while it works, where that is known."""

    engine: str
    """The one that it is taken with: where a new engine takes a place, that one or the old one."""
    way: str
    step: str
    state: str
    started_at: float | None
    ended_at: float | None
    detail: str
    progress: float | None
    said: Said
    """`detail` as template and values."""


@dataclass(frozen=True)
class TurnView:
    """An engine of the rollout. `runs` is the version of its process; None without one."""

    engine: str
    successor: str
    """The engine that takes its place; empty where it keeps it."""
    state: str
    """Of the engine."""
    runs: str | None
    before: str
    in_flight: int
    forward: tuple[StepView, ...]
    back: tuple[StepView, ...]
    """Empty unless it goes back."""


@dataclass(frozen=True)
class LogLineView:
    """A line of the rollout's log; `engine` is empty for what concerns the whole."""

    at: float
    engine: str
    text: str
    said: Said


@dataclass(frozen=True)
class RolloutView:
    """One rollout as shown. `step` says in one line what is being done; it is empty once all is over."""

    id: int
    fleet: str
    profile: str
    version: int
    previous_version: str | None
    """`profile v3` that ran before, when there was one."""
    strategy: str
    state: str
    goes_back: bool
    """Whether engines are on their way back to the version before; `reason` says why, from then on."""
    step: str
    reason: str
    author: str
    started_at: float
    ended_at: float | None
    wish: str
    """`cancel` or `rollback`, once asked for."""
    wish_by: str
    waits_for: str
    """Why nothing is being done, though the rollout goes on."""
    drain_timeout_seconds: float | None
    drain_timeout_why: str
    can_cancel: bool
    can_roll_back: bool
    engines: tuple[TurnView, ...]
    sentences: dict[str, tuple[Said, ...]]
    """`reason`, `waits_for` and `drain_timeout_why` as templates and values."""


def step_line(rollout: Rollout, engines: Engines) -> str:
    """What is being done, in one line."""
    working = [
        f"{turn.acted_on(way, fact.step)}: {_column(fact)}{_so_far(fact, _live(turn, fact, engines))}"
        for turn in rollout.turns
        for way in Way
        for fact in turn.row(way)
        if fact.state is StepState.WORKING
    ]
    return ", ".join(working)


def turn_view(turn: Turn, engines: Engines, status: EngineStatus | None, runs: str | None, before: str) -> TurnView:
    """One row."""
    return TurnView(
        engine=turn.engine,
        successor=turn.successor,
        state=status.state.value if status is not None else "retired",
        runs=runs,
        before=before,
        in_flight=engines.in_flight(turn.engine),
        forward=tuple(_step_view(turn, fact, engines) for fact in turn.row(Way.FORWARD)),
        back=tuple(_step_view(turn, fact, engines) for fact in turn.row(Way.BACK)) if turn.called_off else (),
    )


def log_view(rows: Sequence[RolloutLogRow]) -> tuple[LogLineView, ...]:
    """The log, oldest first."""
    return tuple(LogLineView(row.at, row.engine, said_of(row.said).text, said_of(row.said)) for row in rows)


def sentences(row: RolloutRow, rollout: Rollout, serving: set[str]) -> dict[str, tuple[Said, ...]]:
    """The rollout's own sentences."""
    is_running = row.state == "running"
    waits = decide(rollout, serving).waits_for if is_running else NOTHING
    return {
        "reason": _why_it_turns(row, rollout) if is_running else _why_it_ended(row),
        "waits_for": (waits,) if waits.sentence else (),
        "drain_timeout_why": tuple(said_of(one) for one in [row.said.get("drain_timeout_why")] if one),
    }


def _why_it_ended(row: RolloutRow) -> tuple[Said, ...]:
    reason = tuple(said_of(one) for one in row.said.get("reason", ()))
    return reason or ((say(row.reason),) if row.reason else ())


def _why_it_turns(row: RolloutRow, rollout: Rollout) -> tuple[Said, ...]:
    """Of one that runs: what went wrong, or what was asked of it."""
    if (failed := failure(rollout)) is not None:
        return (failed[1].detail,)
    if Wish(row.wish) is Wish.CANCEL:
        return (say("%(who)s has cancelled it.", who=row.wish_by),)
    return (say("%(who)s is rolling it back.", who=row.wish_by),) if Wish(row.wish) is Wish.ROLLBACK else ()


def can_cancel(row: RolloutRow, rollout: Rollout) -> bool:
    """While it runs, was not asked to end, and does not go back as a whole."""
    return row.state == "running" and Wish(row.wish) is Wish.NONE and failure(rollout) is None


def can_roll_back(row: RolloutRow, rollout: Rollout, is_newest: bool) -> bool:
    """While it runs, and afterwards as long as no other rollout followed."""
    if not rollout.turns or Wish(row.wish) is Wish.ROLLBACK:
        return False
    if row.state == "running":
        return failure(rollout) is None  # else it goes back already
    ended_well = row.state in {"done", "cancelled"} and is_newest
    return ended_well and row.strategy != "blue_green"  # then the old engines are out of service


def _step_view(turn: Turn, fact: StepFact, engines: Engines) -> StepView:
    said, progress = fact.detail, None
    if fact.state is StepState.WORKING:
        said, progress = _live(turn, fact, engines)
    return StepView(
        turn.acted_on(fact.way, fact.step),
        fact.way.value,
        fact.step.value,
        fact.state.value,
        fact.started_at,
        fact.ended_at,
        said.text,
        progress,
        said,
    )


def _live(turn: Turn, fact: StepFact, engines: Engines) -> tuple[Said, float | None]:
    """What a step in work has come to, by the engine's own state."""
    name = turn.acted_on(fact.way, fact.step)
    status = next((one for one in engines.statuses() if one.name == name), None)
    if status is None:
        return NOTHING, None
    if fact.step is Step.DRAIN:
        return say("%(count)s requests are open.", count=engines.in_flight(name)), None
    if fact.step is Step.STOP and status.leftover_processes:
        return say("%(count)s processes are left.", count=status.leftover_processes), None
    if fact.step in {Step.START, Step.READY} and status.waits_for_port:
        return say("It waits for its port. %(why)s", why=say(status.cause)), None
    if fact.step in {Step.START, Step.READY} and status.phase:
        return say(status.phase), status.progress
    return NOTHING, None


def _so_far(fact: StepFact, live: tuple[Said, float | None]) -> str:
    """In the line: how far a start is, or what it waits for."""
    said, progress = live
    if progress is not None:
        return f" {progress:.0%}"
    return f" ({said.text})" if waits_told(fact.step, said) else ""


def waits_told(step: Step, said: Said) -> bool:
    """True where a start has a sentence in place of a share: it waits."""
    return step in {Step.START, Step.READY} and bool(said.sentence)


def _column(fact: StepFact) -> str:
    word = STEP_WORDS[fact.step]
    return word if fact.way is Way.FORWARD else f"back: {word}"
