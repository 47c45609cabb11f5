"""What a rule of each kind looks for. Pure: an observation in, a judgement out.

A kind is added by writing a class like `HostHitsLow` and entering it in `app.alerts.kinds`. Holding, gaps
and flips are not a kind's business; `app.alerts.machine` does them for every kind alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from app.alerts.phrases import Phrase
from app.errors import InvalidInput
from app.supervisor.status import EngineStatus

Verdict = Literal["bad", "good", "idle", "no_data"]
LooksAt = Literal["tokens", "engines"]


@dataclass(frozen=True)
class Observation:
    """What is known of a fleet at `at`. Shares are 0-1; `reason` says why a number is missing."""

    at: float
    host_share: float | None
    recomputed_share: float | None
    input_tokens: int | None
    reason: str | None = None
    engines: tuple[EngineStatus, ...] = ()
    """The engines of the fleet; for a rule that looks at them."""


@dataclass(frozen=True)
class Judgement:
    """What a rule makes of one observation. `reading` is its numbers in a few words."""

    verdict: Verdict
    sentence: str
    reading: str | None
    evidence: dict[str, Any]
    subjects: tuple[str, ...] = ()
    """Names of what is bad, where a rule tells several apart: each is told once."""


class Rule(Protocol):
    """A kind with its parameters filled in."""

    looks_at: ClassVar[LooksAt]
    """What an observation for it has to hold."""

    @property
    def window_seconds(self) -> float:
        """How far back the observation looks."""

    @property
    def hold_seconds(self) -> float:
        """How long a verdict must hold before the alert changes."""

    def judge(self, observation: Observation) -> Judgement:
        """The verdict on one observation."""

    def parameters(self) -> dict[str, Any]:
        """The parameters by name, every default written out."""


@dataclass(frozen=True)
class HostHitsLow:
    """Host hits near 0 while recompute is high: the host tier has stopped helping."""

    looks_at: ClassVar[LooksAt] = "tokens"

    window_seconds: float = 300.0
    host_share_below: float = 0.02
    recomputed_share_above: float = 0.30
    min_input_tokens: int = 20_000
    hold_seconds: float = 120.0

    @classmethod
    def parse(cls, parameters: Mapping[str, Any]) -> Self:
        """Check and complete `parameters`. Raises InvalidInput that names the field."""
        known = asdict(cls())
        refuse_unknown(parameters, known)
        values = {**known, **parameters}
        return cls(
            window_seconds=number(values, "window_seconds", 60, 86_400, 300),
            host_share_below=number(values, "host_share_below", 0, 1, 0.02),
            recomputed_share_above=number(values, "recomputed_share_above", 0, 1, 0.3),
            min_input_tokens=whole(values, "min_input_tokens", 1, 10**12, 20_000),
            hold_seconds=number(values, "hold_seconds", 0, 86_400, 120),
        )

    def judge(self, observation: Observation) -> Judgement:
        """Bad when both thresholds are passed with enough input; too little input is no verdict."""
        tokens, host, recomputed = observation.input_tokens, observation.host_share, observation.recomputed_share
        if tokens is not None and tokens < self.min_input_tokens:
            return Judgement("idle", self._too_few(tokens), None, self._evidence(observation))
        if tokens is None or host is None or recomputed is None:
            reason = observation.reason or Phrase.UNKNOWN_NUMBERS
            return Judgement("no_data", Phrase.NO_DATA % {"why": reason}, None, self._evidence(observation))
        is_bad = host < self.host_share_below and recomputed > self.recomputed_share_above
        return Judgement(
            "bad" if is_bad else "good",
            self._shares(host, recomputed, tokens, is_bad),
            Phrase.SHARES % {"host": _percent(host), "recomputed": _percent(recomputed)},
            self._evidence(observation),
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters by name, every default written out."""
        return asdict(self)

    def _too_few(self, tokens: int) -> str:
        window = span(self.window_seconds)
        if tokens == 0:
            return Phrase.NO_INPUT % {"window": window}
        return Phrase.FEW_TOKENS % {"tokens": f"{tokens:,}", "window": window, "least": f"{self.min_input_tokens:,}"}

    def _shares(self, host: float, recomputed: float, tokens: int, is_bad: bool) -> str:
        shares = {"host": _percent(host), "recomputed": _percent(recomputed)}
        values = {**shares, "tokens": f"{tokens:,}", "window": span(self.window_seconds)}
        return (Phrase.HOST_LOW if is_bad else Phrase.HOST_FINE) % values

    def _evidence(self, observation: Observation) -> dict[str, Any]:
        return {
            "host_share": observation.host_share,
            "recomputed_share": observation.recomputed_share,
            "input_tokens": observation.input_tokens,
            "reason": observation.reason,
            **self.parameters(),
        }


def span(seconds: float) -> str:
    """A length of time in words: `5 min`, `90 s`, `2 h`."""
    for unit_seconds, unit in ((3600, "h"), (60, "min")):
        if seconds >= unit_seconds and seconds % unit_seconds == 0:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def refuse_unknown(parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a name that is not in `known`."""
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not a parameter of this rule; it has: {', '.join(known)}.", path=f"parameters.{name}"
            )


def number(values: Mapping[str, Any], name: str, low: float, high: float, example: float) -> float:
    """A parameter that is a number from `low` to `high`. Raises InvalidInput that names it."""
    value = values[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        raise InvalidInput(
            f"{name} must be a number from {low:g} to {high:g}; write for example {example:g}.",
            path=f"parameters.{name}",
        )
    return float(value)


def whole(values: Mapping[str, Any], name: str, low: int, high: int, example: int) -> int:
    """A parameter that is a whole number from `low` to `high`. Raises InvalidInput that names it."""
    value = values[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON does not tell 20000 from 20000.0
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(
            f"{name} must be a whole number from {low} to {high}; write for example {example}.",
            path=f"parameters.{name}",
        )
    return value
