"""What a rollout consists of: turns of engines, each a row of steps, forward and where need be back. A leaf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.rollouts.said import NOTHING, Said
from app.rollouts.strategy import Strategy


class Step(StrEnum):
    """One step of an engine's turn, in order."""

    CHECK = "check"
    DRAIN = "drain"
    STOP = "stop"
    MEMORY = "memory"
    START = "start"
    READY = "ready"
    CANARY = "canary"
    RELEASE = "release"


#: What the steps are called; the pages translate these words.
STEP_WORDS = {
    Step.CHECK: "check",
    Step.DRAIN: "drain",
    Step.STOP: "stop",
    Step.MEMORY: "memory",
    Step.START: "start",
    Step.READY: "ready",
    Step.CANARY: "canary",
    Step.RELEASE: "release",
}


class StepState(StrEnum):
    """How far a step is."""

    WAITING = "waiting"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class Way(StrEnum):
    """To the new version, or back to the one before."""

    FORWARD = "forward"
    BACK = "back"


class Wish(StrEnum):
    """What the operator asked of a running rollout."""

    NONE = ""
    CANCEL = "cancel"
    ROLLBACK = "rollback"


#: The version before served; it is not tested anew.
STEPS: dict[Way, tuple[Step, ...]] = {
    Way.FORWARD: tuple(Step),
    Way.BACK: (Step.DRAIN, Step.STOP, Step.MEMORY, Step.START, Step.READY, Step.RELEASE),
}
#: A new engine is started and tested beside the old one, takes over, and only then the old one is drained and
#: stopped. On the way back it is the other way round.
STEPS_BESIDE: dict[Way, tuple[Step, ...]] = {
    Way.FORWARD: (Step.CHECK, Step.START, Step.READY, Step.CANARY, Step.RELEASE, Step.DRAIN, Step.STOP),
    Way.BACK: (Step.START, Step.READY, Step.RELEASE, Step.DRAIN, Step.STOP),
}
OVER = frozenset({StepState.DONE, StepState.SKIPPED})


@dataclass(frozen=True)
class StepFact:
    """A step as it is recorded. Times in seconds since the epoch."""

    way: Way
    step: Step
    state: StepState
    started_at: float | None = None
    ended_at: float | None = None
    detail: Said = NOTHING


@dataclass(frozen=True)
class Turn:
    """One engine's part. `before` and `after` are ids of profile versions."""

    engine: str
    before: int
    after: int
    stopped_on_purpose: bool
    """Then it only takes the version, for its next start."""
    steps: tuple[StepFact, ...]
    beside: bool = False
    """Whether a new engine takes its place; then `successor` is its name, once there is one."""
    successor: str = ""

    def order(self, way: Way) -> tuple[Step, ...]:
        """The steps of one way, as they are taken."""
        return (STEPS_BESIDE if self.beside else STEPS)[way]

    def acted_on(self, way: Way, step: Step) -> str:
        """The engine that a step is taken with: beside the old one, its successor comes up, or goes again."""
        comes = step in {Step.START, Step.READY, Step.CANARY, Step.RELEASE}
        goes = step in {Step.DRAIN, Step.STOP}
        is_new = self.beside and (comes if way is Way.FORWARD else goes)
        return self.successor if is_new and self.successor else self.engine

    def fact(self, way: Way, step: Step) -> StepFact:
        """A step; one that is not recorded yet waits."""
        for fact in self.steps:
            if fact.way is way and fact.step is step:
                return fact
        return StepFact(way, step, StepState.WAITING)

    def row(self, way: Way) -> list[StepFact]:
        """The steps of one way, in order."""
        return [self.fact(way, step) for step in self.order(way)]

    @property
    def touched(self) -> bool:
        """True once anything was begun with it."""
        return any(fact.state is not StepState.WAITING for fact in self.row(Way.FORWARD))

    @property
    def arrived(self) -> bool:
        """It has the new version, tested, and takes requests."""
        return all(fact.state in OVER for fact in self.row(Way.FORWARD)) and not self.called_off

    @property
    def called_off(self) -> bool:
        """It has begun to go back."""
        return any(fact.way is Way.BACK for fact in self.steps)

    @property
    def returned(self) -> bool:
        """It has the version before again."""
        return all(fact.state in OVER for fact in self.row(Way.BACK))

    def is_over(self, way: Way, step: Step) -> bool:
        """True once a step is done, or was left out."""
        return self.fact(way, step).state in OVER

    def failed(self, way: Way) -> StepFact | None:
        """The step that failed on the way."""
        return next((fact for fact in self.row(way) if fact.state is StepState.FAILED), None)


@dataclass(frozen=True)
class Rollout:
    """All that a decision depends on. Turns are in the order in which they are taken."""

    strategy: Strategy
    wish: Wish
    turns: tuple[Turn, ...]
