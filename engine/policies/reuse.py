"""How soon states are used again, learned by class and age. Standard library only.

A class is given by what a state is (a junction or not), how often its session came back, how long the
prompt is and how often it came back after a long time. Ages are in bins that double. For each class is
counted how many states were made and in which bin they were used again, and how many of those uses
VRAM had lost: only these are worth anything to the host tier.

From the counts comes an index for each class and bin: the uses that may be hoped for per second of
waiting, where one waits as long as is best. It is what a state of that class and age is worth per unit
of what it saves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Final

from engine.prefix_tree import Klass

BINS: Final = 18
#: The first bin ends here; each one after it is as long as all before it.
FIRST_BIN_SECONDS: Final = 8.0
LONG_GAP_SECONDS: Final = 300.0

_DECAY_PER_HUNDRED: Final = 0.95
_PRIOR_STATES: Final = 10.0
#: Uses of one state over all bins, before anything was seen: the same in each bin, so ever rarer per second.
_PRIOR_USES: Final = 4.0
_PRIOR_SHARE: Final = 0.2
#: Bins before this one are short enough for VRAM to have kept the state.
_FIRST_LOST_BIN: Final = 5
_TURN_LIMITS: Final = (1, 3, 8)
_LENGTH_LIMITS: Final = (12_544, 50_176)
_REFRESH_EVERY: Final = 8

EDGES: Final = (0.0, *(FIRST_BIN_SECONDS * 2.0**power for power in range(BINS)))


def bin_of(age_seconds: float) -> int:
    """The bin of an age."""
    if age_seconds < FIRST_BIN_SECONDS:
        return 0
    return min(BINS - 1, int(math.log2(age_seconds / FIRST_BIN_SECONDS)) + 1)


def klass_of(junction: bool, turns: int, tokens: int, long_gaps: int) -> Klass:
    """The class of a state at `tokens`."""
    turn_class = bisect_left(_TURN_LIMITS, turns)
    length_class = bisect_right(_LENGTH_LIMITS, tokens)
    gap_class = 0 if junction else (long_gaps > 0) + (long_gaps > 2)
    return ((junction * 4 + turn_class) * 3 + length_class) * 3 + gap_class


class _Counts:
    """Of one class, or of all: states made, uses and lost uses per bin."""

    def __init__(self) -> None:
        self.made = 0.0
        self.used = [0.0] * BINS
        self.lost = [0.0] * BINS

    def scale(self, factor: float) -> None:
        self.made *= factor
        self.used = [count * factor for count in self.used]
        self.lost = [count * factor for count in self.lost]


class ReuseIndex:
    """Counts that fade, and the index computed from them, one class at a time."""

    def __init__(self) -> None:
        self._all = _Counts()
        self._classes: dict[Klass, _Counts] = {}
        self._index: dict[Klass, list[float]] = {}
        self._requests = 0
        self._unit = 1.0  # newer counts are larger, which is the same as older ones fading
        self._turn: list[Klass] = []

    def request(self) -> None:
        """A request has come: counts fade a little, and now and then one class is computed anew."""
        self._requests += 1
        self._unit /= _DECAY_PER_HUNDRED**0.01
        if self._unit > 1e12:
            self._rescale()
        if self._requests % _REFRESH_EVERY == 0:
            self._refresh_next()

    def made(self, klass: Klass) -> None:
        """A state of this class was made, or used and kept."""
        self._counts(klass).made += self._unit
        self._all.made += self._unit

    def used(self, klass: Klass, age_seconds: float, lost: bool) -> None:
        """One was used again; `lost` says that VRAM no longer had it."""
        at = bin_of(age_seconds)
        for counts in (self._counts(klass), self._all):
            counts.used[at] += self._unit
            if lost:
                counts.lost[at] += self._unit

    def index(self, klass: Klass) -> list[float]:
        """The index of a class by bin: always the same list, kept up to date."""
        found = self._index.get(klass)
        if found is None:
            found = self._index[klass] = self._compute(self._counts(klass))
        return found

    def _counts(self, klass: Klass) -> _Counts:
        counts = self._classes.get(klass)
        if counts is None:
            counts = self._classes[klass] = _Counts()
        return counts

    def _rescale(self) -> None:
        for counts in (self._all, *self._classes.values()):
            counts.scale(1 / self._unit)
        self._unit = 1.0

    def _refresh_next(self) -> None:
        if not self._turn:
            self._turn = list(self._classes)
        if self._turn:
            klass = self._turn.pop()
            self.index(klass)[:] = self._compute(self._classes[klass])

    def _compute(self, counts: _Counts) -> list[float]:
        """Expected uses by bin, then the index."""
        unit, made_in_all = self._unit, self._all.made or 1.0
        prior = _PRIOR_SHARE * _PRIOR_USES / BINS
        share = (1 - _PRIOR_SHARE) / made_in_all
        used = [
            here / unit + _PRIOR_STATES * (there * share + prior)
            for here, there in zip(counts.used, self._all.used, strict=True)
        ]
        lost = [
            here / unit + _PRIOR_STATES * (there * share + (prior if at >= _FIRST_LOST_BIN else 0.0))
            for at, (here, there) in enumerate(zip(counts.lost, self._all.lost, strict=True))
        ]
        made = max(counts.made / unit + _PRIOR_STATES, sum(used) * 1.02)
        return _best_rates(made, used, lost)


def _best_rates(made: float, used: list[float], lost: list[float]) -> list[float]:
    """For each bin: of all ages up to which one may wait, the best ratio of lost uses to time waited."""
    rates: list[float] = []
    for start in range(BINS):
        rates.append(_best_rate(start, made, used, lost))
        made -= used[start]
    return rates


def _best_rate(start: int, waiting: float, used: list[float], lost: list[float]) -> float:
    """From somewhere in the first bin on, of which the rest is before us."""
    begin = EDGES[start] * 1.3 if start else 4.0
    end = EDGES[start + 1]
    now_used, uses = used[start] * 0.6, lost[start] * 0.6
    seconds = now_used * max(1.0, (end - begin) / 2) + (waiting - now_used) * (end - begin)
    best = uses / seconds
    for at in range(start + 1, BINS):
        waiting -= now_used
        begin, end = end, EDGES[at + 1]
        now_used = used[at]
        uses += lost[at]
        seconds += (waiting - now_used / 2) * (end - begin)  # those used in it waited half of it
        rate = uses / seconds
        if rate > best:
            best = rate
    return best
