"""Numbers and times as text: three significant digits, the unit beside, the exact value for the title."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from babel.dates import format_timedelta

MISSING = "–"
DECIMAL_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
BINARY_STEPS = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


@dataclass(frozen=True)
class Quantity:
    """A number to be shown: `text` large, `unit` lighter, `exact` in the title. Unknown = a dash."""

    text: str
    unit: str = ""
    exact: str = ""

    @property
    def is_missing(self) -> bool:
        """True when there is no number."""
        return self.text == MISSING

    def __str__(self) -> str:
        return f"{self.text} {self.unit}".strip()


NOTHING = Quantity(MISSING)


def significant(value: float, digits: int = 3) -> str:
    """`value` with that many significant digits, no exponent, no trailing zeros after the point.

    Whole digits are never zeroed: 1234 stays 1234.
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else MISSING
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    if len(text.lstrip("-0.").replace(".", "")) > digits and decimals:  # 9.999 rounded up to 10.00
        text = f"{value:.{decimals - 1}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float | None, unit: str = "") -> Quantity:
    """A count: 999, 1.23k, 41.2M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    exact = f"{value:,.0f} {unit}".strip()
    for step, suffix in DECIMAL_STEPS:
        if abs(value) >= step * 0.9995:
            return Quantity(f"{significant(value / step)}{suffix}", unit, exact)
    return Quantity(significant(value), unit, exact)


def share(ratio: float | None) -> Quantity:
    """A ratio of 0 to 1 as a percentage with one decimal; what is not nothing is never shown as 0."""
    if ratio is None or not math.isfinite(ratio):
        return NOTHING
    percent = ratio * 100
    exact = f"{percent:.4f} %"
    if 0 < percent < 0.05:
        return Quantity("<0.1", "%", exact)
    if 99.95 <= percent < 100:
        return Quantity(">99.9", "%", exact)
    return Quantity("0" if percent == 0 else "100" if percent == 100 else f"{percent:.1f}", "%", exact)


def size(value_bytes: float | None) -> Quantity:
    """Bytes in binary units."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return NOTHING
    exact = f"{value_bytes:,.0f} B"
    for step, unit in BINARY_STEPS:
        if abs(value_bytes) >= step * 0.9995:
            return Quantity(significant(value_bytes / step), unit, exact)
    return Quantity(significant(value_bytes), "B", exact)


def duration(seconds: float | None) -> Quantity:
    """A length of time: 820 ms, 5.7 s, 4 min 25 s, 27 h 3 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    exact = f"{seconds:,.3f} s"
    if seconds < 0.9995:
        return Quantity(significant(seconds * 1000), "ms", exact)
    if seconds < 59.95:
        return Quantity(significant(seconds), "s", exact)
    return Quantity(_two_units(round(seconds)), "", exact)


def _two_units(seconds: int) -> str:
    for step, name, lower_step, lower_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= step:
            rest = seconds % step // lower_step
            return f"{seconds // step} {name} {rest} {lower_name}" if rest else f"{seconds // step} {name}"
    return f"{seconds} s"


def relative(at: float, now: float, locale: str) -> str:
    """How long ago, in the reader's language."""
    delta = timedelta(seconds=at - now)
    return format_timedelta(delta, add_direction=True, format="short", locale=locale)


def iso(at: float) -> str:
    """A time for <time datetime>, UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Change:
    """Now against before: an arrow and a signed difference."""

    arrow: str
    text: str


def change_in_percent(now: float | None, before: float | None) -> Change | None:
    """Growth of a count: `▲ +8 %`; None when either is unknown or there was nothing before."""
    if now is None or not before:
        return None
    return _change((now - before) / before * 100, " %", 0)


def change_in_points(now: float | None, before: float | None) -> Change | None:
    """Difference of two ratios in percentage points: `▼ −0.6 pp`."""
    if now is None or before is None:
        return None
    return _change((now - before) * 100, " pp", 1)


def _change(difference: float, unit: str, decimals: int) -> Change:
    rounded = round(difference, decimals)
    if rounded == 0:
        return Change("=", f"±0{unit}")
    sign, arrow = ("+", "▲") if rounded > 0 else ("−", "▼")
    return Change(arrow, f"{sign}{abs(rounded):.{decimals}f}{unit}")
