"""Where the input tokens of a window came from, as told to people and programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.derive.origin import Origin, origin, together
from app.services.readings import FleetEngines, Reading
from app.supervisor.states import ANSWERING, EngineState


@dataclass(frozen=True)
class TokenOrigin:
    """Where the input tokens of a window came from. `avoidable_tokens` is a part of the recomputed ones.

    A number that is not known is None, and `reason` says why. `complete` is false when scrapes are
    missing in a part of the window.
    """

    window_seconds: float
    from_: float
    to: float
    input_tokens: float | None
    vram_tokens: float | None
    host_tokens: float | None
    recomputed_tokens: float | None
    avoidable_tokens: float | None
    complete: bool
    reason: str | None

    def as_json(self) -> dict[str, Any]:
        """As answered by REST; tokens are whole numbers that add up."""
        parts = {name: _whole(getattr(self, name)) for name in ("vram_tokens", "host_tokens", "recomputed_tokens")}
        known = [part for part in parts.values() if part is not None]
        return {
            "window_seconds": self.window_seconds,
            "from": self.from_,
            "to": self.to,
            "input_tokens": sum(known) if len(known) == len(parts) else None,
            **parts,
            "avoidable_tokens": _whole(self.avoidable_tokens),
            "complete": self.complete,
            "reason": self.reason,
        }


def token_origin_of(
    chosen: FleetEngines, readings: Mapping[int, Reading], window_seconds: float, now: float
) -> TokenOrigin:
    """Add up what the engines' counters gained in the window, and say how far that can be trusted.

    Of engines that have left only what they served counts; that they have no numbers now is no gap.
    """
    with_numbers = [reading for reading in readings.values() if reading.coverage.has_numbers]
    part = together(origin(reading.increases) for reading in with_numbers)
    staying = (reading for engine, reading in readings.items() if engine not in chosen.left)
    gap = next((reading.coverage.reason for reading in staying if reading.coverage.reason), None)
    return TokenOrigin(
        window_seconds=window_seconds,
        from_=now - window_seconds,
        to=now,
        input_tokens=part.input,
        vram_tokens=part.vram,
        host_tokens=part.host,
        recomputed_tokens=part.recomputed,
        avoidable_tokens=part.avoidable,
        complete=part.input is not None and gap is None,
        reason=_origin_reason(chosen, with_numbers, part, gap),
    )


def _origin_reason(chosen: FleetEngines, with_numbers: Sequence[Reading], part: Origin, gap: str | None) -> str | None:
    """The most telling reason: nothing known, not told, failing, no traffic, or a hole in the window."""
    if not with_numbers:
        return why_no_numbers(chosen, gap)
    if part.input is None:
        return "missing_metric"
    if part.input > 0 or gap == "scrape_failed":
        return gap
    return "idle" if any(_ever_asked(reading) for reading in with_numbers) else "no_requests_yet"


def _ever_asked(reading: Reading) -> bool:
    return any(total > 0 for key, total in reading.totals.items() if key.name.startswith("prompt_tokens"))


def why_no_numbers(chosen: FleetEngines, gap: str | None) -> str:
    """The code of why nothing is known of some engines."""
    states = {status.state for status in chosen.statuses}
    if not states:
        return "no_engine"
    if gap == "scrape_failed":
        return gap
    if EngineState.STARTING in states:
        return "starting"
    return "no_data" if states & ANSWERING else "not_running"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
