"""Samples on a grid of equal buckets: what was gained in each, and where there is nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.scrape.names import SeriesKey

HOUR = 3600.0
#: Windows up to here are drawn from raw samples; longer ones from minutes.
RAW_WINDOW_SECONDS = 3 * HOUR
MOST_POINTS = 300
#: A bucket holds at least this many beats, so that a beat that comes late leaves no hole.
BEATS_PER_BUCKET = 2.5
#: Shares and quantiles look back over this part of the window: single requests give a line, not specks.
SMOOTHED_SHARE = 1 / 20

STEPS = (
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1200.0,
    1800.0,
    2700.0,
    3600.0,
    5400.0,
)


@dataclass(frozen=True)
class Point:
    """One sample. Counters go by `total`, in which resets are undone."""

    at: float
    value: float
    total: float


@dataclass(frozen=True)
class Grid:
    """Equal buckets `(from_ + i * step, from_ + (i + 1) * step]`, the last one cut off at `to`."""

    from_: float
    to: float
    step: float
    count: int

    @property
    def ends(self) -> list[float]:
        """Where each bucket ends."""
        return [min(self.from_ + (index + 1) * self.step, self.to) for index in range(self.count)]


@dataclass(frozen=True)
class Drawing:
    """How a window is drawn: its grid, from which samples, over how many buckets shares are taken."""

    grid: Grid
    by_minute: bool
    smoothed: int


@dataclass(frozen=True)
class Track:
    """One series on a grid: the last sample of each bucket, and the one that gains are counted from."""

    buckets: Mapping[int, Point] = field(default_factory=dict)
    before: Point | None = None


Tracks = Mapping[SeriesKey, Track]


@dataclass(frozen=True)
class Gain:
    """What a counter gained since the sample before, and how long that took."""

    increase: float
    seconds: float


def is_by_minute(window_seconds: float) -> bool:
    """True for windows that are read from minute samples."""
    return window_seconds > RAW_WINDOW_SECONDS


def drawing(window_seconds: float, now: float, beat_seconds: float) -> Drawing:
    """Choose samples and steps for a window that ends now. Edges stand still while time goes on."""
    by_minute = is_by_minute(window_seconds)
    least = max(window_seconds / MOST_POINTS, 120.0 if by_minute else beat_seconds * BEATS_PER_BUCKET)
    step = next((step for step in STEPS if step >= least), math.ceil(least / HOUR) * HOUR)
    from_ = math.floor((now - window_seconds) / step) * step
    count = max(1, math.ceil((now - from_) / step))
    smoothed = max(1, round(window_seconds * SMOOTHED_SHARE / step))
    return Drawing(Grid(from_, now, step, count), by_minute, smoothed)


def gains(track: Track, count: int) -> list[Gain | None]:
    """What the counter gained in each bucket; None in buckets without a sample.

    What was gained over a hole stands in the first bucket after it. A first sample with nothing to be
    compared with has gained nothing.
    """
    last = track.before
    found: list[Gain | None] = []
    for index in range(count):
        point = track.buckets.get(index)
        if point is None:
            found.append(None)
            continue
        found.append(Gain(point.total - last.total, point.at - last.at) if last else Gain(0.0, 0.0))
        last = point
    return found


def gained(tracks: Tracks, count: int, smoothed: int = 1) -> list[dict[SeriesKey, float] | None]:
    """For each bucket, what every counter gained in it and the buckets just before; None in a hole."""
    by_key = {key: gains(track, count) for key, track in tracks.items()}
    return [_gained_at(by_key, index, smoothed) for index in range(count)]


def values(track: Track, count: int) -> list[float | None]:
    """A gauge in each bucket; None in a hole."""
    points = [track.buckets.get(index) for index in range(count)]
    return [None if point is None else point.value for point in points]


def per_minute(found: Sequence[Gain | None]) -> list[float | None]:
    """Gains as so many a minute; None where nothing can be said."""
    return [gain.increase * 60 / gain.seconds if gain and gain.seconds > 0 else None for gain in found]


def increases(first: Mapping[SeriesKey, Point], last: Mapping[SeriesKey, Point]) -> dict[SeriesKey, float]:
    """What each counter gained between its first and its last sample."""
    return {key: max(0.0, point.total - first[key].total) for key, point in last.items() if key in first}


def add(lines: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Engine by engine added up; None where no engine has a value."""
    return [_sum_known(column) for column in zip(*lines, strict=True)]


def mean(lines: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean over the engines that have a value."""
    return [_mean_known(column) for column in zip(*lines, strict=True)]


def _gained_at(
    by_key: Mapping[SeriesKey, list[Gain | None]], index: int, smoothed: int
) -> dict[SeriesKey, float] | None:
    here = {key: found for key, found in by_key.items() if found[index] is not None}
    if not here:
        return None
    first = max(0, index - smoothed + 1)
    return {key: sum(gain.increase for gain in found[first : index + 1] if gain) for key, found in here.items()}


def _sum_known(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) if known else None


def _mean_known(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) / len(known) if known else None
