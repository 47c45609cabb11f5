"""Numbers and times as they are shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web import formats
from app.web.formats import MISSING


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (4, "4"),
        (999.4, "999"),
        (999.9, "1k"),
        (1234, "1.23k"),
        (281_000, "281k"),
        (41_234_567, "41.2M"),
        (0.00123, "0.00123"),
        (None, MISSING),
        (math.nan, MISSING),
        (math.inf, MISSING),
    ],
)
def test_counts_have_three_significant_digits(value: float | None, text: str) -> None:
    """Thousands as k and M; what is not known is a dash, never 0."""
    assert formats.count(value).text == text


def test_exact_value_is_kept_for_the_title() -> None:
    """Rounded where it is read, whole where it is pointed at."""
    assert formats.count(41_234_567, "tok").exact == "41,234,567 tok"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.865, "86.5 %"),
        (0.0004, "<0.1 %"),
        (0.99999, ">99.9 %"),
        (None, MISSING),
    ],
)
def test_shares_never_round_to_none_or_all(ratio: float | None, text: str) -> None:
    """A little is not nothing, and nearly all is not all."""
    assert str(formats.share(ratio)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.82, "820 ms"),
        (5.7, "5.7 s"),
        (59.96, "1 min"),
        (265, "4 min 25 s"),
        (97_400, "1 d 3 h"),
        (13_800, "3 h 50 min"),
        (None, MISSING),
    ],
)
def test_durations_use_at_most_two_units(seconds: float | None, text: str) -> None:
    """The larger unit and the next one, no more."""
    assert str(formats.duration(seconds)) == text


def test_sizes_are_binary() -> None:
    """64 GiB is 2^36 bytes."""
    assert str(formats.size(2**36)) == "64 GiB"


@given(st.floats(min_value=1e-6, max_value=1e14))
def test_no_exponent_and_at_most_three_digits(value: float) -> None:
    """Whatever the size, a reader meets a plain number, off by half a percent at most."""
    text = formats.significant(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [(108, 100, "▲ +8 %"), (93, 100, "▼ −7 %"), (100, 100, "= ±0 %"), (5, 0, ""), (5, None, "")],
)
def test_growth_has_arrow_and_sign(now: float, before: float | None, text: str) -> None:
    """Against nothing there is no growth to tell."""
    change = formats.change_in_percent(now, before)
    assert (f"{change.arrow} {change.text}" if change else "") == text


def test_shares_differ_in_points() -> None:
    """86.5 % after 85.9 % is six tenths of a point more, not 0.7 %."""
    change = formats.change_in_points(0.865, 0.859)
    assert change is not None
    assert (change.arrow, change.text) == ("▲", "+0.6 pp")


def test_relative_times_speak_the_reader_s_language() -> None:
    """Past and future, in words."""
    assert formats.relative(1000, 1300, "en") == "5 min. ago"
    assert formats.relative(1000, 1300, "zh") == "5分钟前"
    assert formats.relative(1300, 1000, "en") == "in 5 min."
