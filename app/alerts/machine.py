"""The memory of one rule on one fleet, and how a judgement changes it. Pure; time is an argument.

    ok      -> firing   the verdict was bad for `hold_seconds` of watched time
    firing  -> ok       the verdict was good for `hold_seconds` of watched time
    firing  -> firing   something else became bad

A rule may name what is bad. Each name is told once: one that comes while the alert is firing already makes a
flip of its own, from firing to firing, and one that comes again after it was fine does so again.

Only time between two verdicts next to each other counts as held. A gap (no data, too little input,
the deck not running) neither counts nor breaks what was held before it: nothing was seen, so nothing
is known to have changed. The opposite verdict does break it. What was held is forgotten an hour after the
last verdict, so that two bad minutes on two different days do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal

from app.alerts.phrases import Phrase
from app.alerts.rules import Judgement, span

AlertState = Literal["ok", "firing", "pending", "no_data", "idle"]

STEP_LIMIT_SECONDS = 90.0
"""Two looks further apart than this had nobody watching between them."""

FORGET_SECONDS = 3600.0


@dataclass(frozen=True)
class Memory:
    """Everything a rule remembers of a fleet; kept as JSON, so that a restart changes nothing."""

    is_firing: bool = False
    streak: Literal["bad", "good"] | None = None
    held_seconds: float = 0.0
    watched_at: float | None = None
    """Last look, if it gave a verdict; None in a gap."""
    reading: str | None = None
    """Numbers of the last verdict, and when it was."""
    read_at: float | None = None
    subjects: tuple[str, ...] = ()
    """What was bad at the last verdict."""
    state: AlertState = "no_data"
    since: float | None = None
    sentence: str = Phrase.NOT_LOOKED_AT.value
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Memory:
        """From a JSON object; fields that an older deck did not write get their defaults."""
        known = {entry.name for entry in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        return cls(**{**values, "subjects": tuple(values.get("subjects", ()))})


@dataclass(frozen=True)
class Flip:
    """The alert changed; this is what webhooks tell."""

    old: Literal["ok", "firing"]
    new: Literal["ok", "firing"]
    sentence: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """The memory after a look, and the flip if it made one."""

    memory: Memory
    flip: Flip | None


def step(memory: Memory, judgement: Judgement, at: float, hold_seconds: float) -> Step:
    """What one look at `at` makes of the memory."""
    if judgement.verdict == "idle" or judgement.verdict == "no_data":
        return Step(_unseen(memory, judgement, at), None)
    looked = replace(
        memory,
        streak=judgement.verdict,
        held_seconds=_held(memory, judgement.verdict, at),
        watched_at=at,
        reading=judgement.reading,
        read_at=at,
        subjects=judgement.subjects,
    )
    flips = looked.held_seconds >= hold_seconds and memory.is_firing != (judgement.verdict == "bad")
    if flips:
        looked = replace(looked, is_firing=not memory.is_firing)
    shown = _show(looked, _state(looked), _sentence(looked, judgement, hold_seconds), judgement, at)
    if flips or _has_news(memory, judgement):
        return Step(shown, _flip(memory, shown, judgement, hold_seconds))
    return Step(shown, None)


def switch_off(memory: Memory) -> Step:
    """The rule was switched off: whoever was told of a firing is told that it ended, and why."""
    flip = Flip("firing", "ok", Phrase.SWITCHED_OFF_FIRING.value, memory.evidence)
    return Step(Memory(sentence=Phrase.SWITCHED_OFF.value), flip if memory.is_firing else None)


def moment(at: float) -> str:
    """A point in time for a sentence."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _has_news(memory: Memory, judgement: Judgement) -> bool:
    """While it is firing, something else became bad."""
    return memory.is_firing and judgement.verdict == "bad" and not set(judgement.subjects) <= set(memory.subjects)


def _held(memory: Memory, verdict: str, at: float) -> float:
    is_stale = memory.read_at is None or at - memory.read_at > FORGET_SECONDS
    if memory.streak != verdict or is_stale:
        return 0.0
    elapsed = 0.0 if memory.watched_at is None else at - memory.watched_at
    return memory.held_seconds + (elapsed if 0 < elapsed <= STEP_LIMIT_SECONDS else 0.0)


def _unseen(memory: Memory, judgement: Judgement, at: float) -> Memory:
    state: AlertState = "idle" if judgement.verdict == "idle" else "no_data"
    sentence = judgement.sentence
    if state == "idle" and memory.read_at is None and judgement.evidence.get("input_tokens") == 0:
        sentence = Phrase.NO_REQUESTS
    if memory.read_at is not None:
        seen = Phrase.LAST_SEEN % {"reading": memory.reading, "moment": moment(memory.read_at)}
        sentence = f"{sentence} {seen}"
    if memory.is_firing:
        state, sentence = "firing", f"{Phrase.STILL_FIRING} {sentence}"
    return _show(replace(memory, watched_at=None), state, sentence, judgement, at)


def _state(memory: Memory) -> AlertState:
    if memory.is_firing:
        return "firing"
    return "pending" if memory.streak == "bad" else "ok"


def _sentence(memory: Memory, judgement: Judgement, hold_seconds: float) -> str:
    held = {"held": f"{memory.held_seconds:.0f}", "hold": f"{hold_seconds:.0f}"}
    if memory.is_firing and judgement.verdict == "good":
        return f"{judgement.sentence} {Phrase.RESOLVES % held}"
    if not memory.is_firing and judgement.verdict == "bad":
        return f"{judgement.sentence} {Phrase.FIRES % held}"
    return judgement.sentence


def _show(memory: Memory, state: AlertState, sentence: str, judgement: Judgement, at: float) -> Memory:
    since = memory.since if memory.state == state and memory.since is not None else at
    return replace(memory, state=state, since=since, sentence=sentence, evidence=judgement.evidence)


def _flip(before: Memory, after: Memory, judgement: Judgement, hold_seconds: float) -> Flip:
    old: Literal["ok", "firing"] = "firing" if before.is_firing else "ok"
    new: Literal["ok", "firing"] = "firing" if after.is_firing else "ok"
    held = f" {Phrase.HAS_HELD % {'span': span(hold_seconds)}}" if hold_seconds else ""
    return Flip(old, new, f"{judgement.sentence}{held}", judgement.evidence)
