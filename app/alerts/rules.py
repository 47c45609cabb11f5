"""What a rule of each kind looks for. Pure: an observation in, a judgement out.

A kind is added by writing a class like `HostHitsLow` and entering it in `KINDS`. Holding, gaps and
flips are not a kind's business; `app.alerts.machine` does them for every kind alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, Self

from app.errors import InvalidInput

Verdict = Literal["bad", "good", "idle", "no_data"]


@dataclass(frozen=True)
class Observation:
    """What is known of a fleet at `at`. Shares are 0-1; `reason` says why a number is missing."""

    at: float
    host_share: float | None
    recomputed_share: float | None
    input_tokens: int | None
    reason: str | None = None


@dataclass(frozen=True)
class Judgement:
    """What a rule makes of one observation. `reading` is its numbers in a few words."""

    verdict: Verdict
    sentence: str
    reading: str | None
    evidence: dict[str, Any]


class Rule(Protocol):
    """A kind with its parameters filled in."""

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

    window_seconds: float = 300.0
    host_share_below: float = 0.02
    recomputed_share_above: float = 0.30
    min_input_tokens: int = 20_000
    hold_seconds: float = 120.0

    @classmethod
    def parse(cls, parameters: Mapping[str, Any]) -> Self:
        """Check and complete `parameters`. Raises InvalidInput that names the field."""
        known = asdict(cls())
        _refuse_unknown(parameters, known)
        values = {**known, **parameters}
        return cls(
            window_seconds=_number(values, "window_seconds", 60, 86_400, 300),
            host_share_below=_number(values, "host_share_below", 0, 1, 0.02),
            recomputed_share_above=_number(values, "recomputed_share_above", 0, 1, 0.3),
            min_input_tokens=_whole(values, "min_input_tokens", 1, 10**12, 20_000),
            hold_seconds=_number(values, "hold_seconds", 0, 86_400, 120),
        )

    def judge(self, observation: Observation) -> Judgement:
        """Bad when both thresholds are passed with enough input; too little input is no verdict."""
        tokens, host, recomputed = observation.input_tokens, observation.host_share, observation.recomputed_share
        if tokens is not None and tokens < self.min_input_tokens:
            return Judgement("idle", self._too_few(tokens), None, self._evidence(observation))
        if tokens is None or host is None or recomputed is None:
            reason = observation.reason or "the numbers are not known"
            return Judgement("no_data", f"No data: {reason}.", None, self._evidence(observation))
        is_bad = host < self.host_share_below and recomputed > self.recomputed_share_above
        return Judgement(
            "bad" if is_bad else "good",
            self._shares(host, recomputed, tokens, is_bad),
            f"host {_percent(host)}, recomputed {_percent(recomputed)}",
            self._evidence(observation),
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters by name, every default written out."""
        return asdict(self)

    def _too_few(self, tokens: int) -> str:
        window = span(self.window_seconds)
        if tokens == 0:
            return f"No input tokens in the last {window}."
        return f"{tokens:,} input tokens in the last {window}; the rule judges from {self.min_input_tokens:,}."

    def _shares(self, host: float, recomputed: float, tokens: int, is_bad: bool) -> str:
        only, joined = ("only ", "while") if is_bad else ("", "and")
        return (
            f"Host hits serve {only}{_percent(host)} of the input tokens {joined} {_percent(recomputed)} are "
            f"recomputed ({tokens:,} input tokens in the last {span(self.window_seconds)})."
        )

    def _evidence(self, observation: Observation) -> dict[str, Any]:
        return {
            "host_share": observation.host_share,
            "recomputed_share": observation.recomputed_share,
            "input_tokens": observation.input_tokens,
            "reason": observation.reason,
            **self.parameters(),
        }


@dataclass(frozen=True)
class Kind:
    """A kind of rule: what it is called and how its parameters become a rule."""

    name: str
    title: str
    rule: Callable[[Mapping[str, Any]], Rule]
    """Checks and completes parameters. Raises InvalidInput that names the field."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (Kind("host_hits_low", "Host hits near 0 while recompute is high", HostHitsLow.parse),)
}


def kind_named(name: str) -> Kind:
    """The kind called `name`. Raises InvalidInput."""
    if name not in KINDS:
        raise InvalidInput(f"There is no rule kind {name!r}; write one of: {', '.join(KINDS)}.", path="kind")
    return KINDS[name]


def span(seconds: float) -> str:
    """A length of time in words: `5 min`, `90 s`, `2 h`."""
    for unit_seconds, unit in ((3600, "h"), (60, "min")):
        if seconds >= unit_seconds and seconds % unit_seconds == 0:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _refuse_unknown(parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not a parameter of this rule; it has: {', '.join(known)}.", path=f"parameters.{name}"
            )


def _number(values: Mapping[str, Any], name: str, low: float, high: float, example: float) -> float:
    value = values[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        raise InvalidInput(
            f"{name} must be a number from {low:g} to {high:g}; write for example {example:g}.",
            path=f"parameters.{name}",
        )
    return float(value)


def _whole(values: Mapping[str, Any], name: str, low: int, high: int, example: int) -> int:
    value = values[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON does not tell 20000 from 20000.0
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(
            f"{name} must be a whole number from {low} to {high}; write for example {example}.",
            path=f"parameters.{name}",
        )
    return value
