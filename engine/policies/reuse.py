"""How soon states are used again, learned by class and age. Standard library only.

A class is given by what a state is (a junction or not), how often its session came back, how long the
prompt is and how often it came back after a long time. Ages are in bins that double. For each class and bin is
counted how many states reached that age unused, how many were used again in it, and how many of those uses
VRAM had lost: only these are worth anything to the host tier. So what is made today says nothing yet about
those that are a day old. What is counted too rarely is taken to be as with all of its kind, junctions or others.

From the counts comes an index for each class and age: the uses that may be hoped for per second of
waiting, where one waits as long as is best. It is what a state of that class and age is worth per unit
of what it saves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from engine.prefix_tree import Klass

BINS: Final = 18
#: The first bin ends here; each one after it is as long as all before it.
FIRST_BIN_SECONDS: Final = 8.0
LONG_GAP_SECONDS: Final = 300.0

#: The index is given for parts of each bin but the first, between the ages for which it is computed.
STEPS_OF_BIN: Final = 2
STEPS: Final = 1 + (BINS - 1) * STEPS_OF_BIN

#: 5% in a hundred requests.
_FADE: Final = 0.95**0.01
#: So many states at each age stand against what was counted.
_PRIOR_STATES: Final = 5.0
#: Of those that reach a bin, this share is used in it, before anything was seen: ever rarer per second.
_FIRST_SHARE: Final = 0.05
#: A class of which little was seen may still be one that comes back: this much of its prior says that it does.
_HOPE: Final = 0.2
_HOPED_SHARE: Final = 0.222
#: Bins before this one are short enough for VRAM to have kept the state.
_FIRST_LOST_BIN: Final = 5
_TURN_LIMITS: Final = (1, 3, 8)
_LENGTH_LIMITS: Final = (12_544, 50_176)
_CLASSES_OF_KIND: Final = (len(_TURN_LIMITS) + 1) * (len(_LENGTH_LIMITS) + 1) * 3
#: Junctions, and others.
KINDS: Final = 2
CLASSES: Final = KINDS * _CLASSES_OF_KIND
_REFRESH_EVERY: Final = 8
_LARGEST_UNIT: Final = 1e12

#: An index is computed for an age that far into its bin.
_BEGIN: Final = 1.3
_INTO_BIN: Final = math.log2(_BEGIN)

EDGES: Final = (0.0, *(FIRST_BIN_SECONDS * 2.0**power for power in range(BINS)))
STEP_ENDS: Final = tuple(FIRST_BIN_SECONDS * 2.0 ** (step / STEPS_OF_BIN) for step in range(STEPS))


def bin_of(age_seconds: float) -> int:
    """The bin of an age."""
    if age_seconds < FIRST_BIN_SECONDS:
        return 0
    return min(BINS - 1, int(math.log2(age_seconds / FIRST_BIN_SECONDS)) + 1)


def step_of(age_seconds: float) -> int:
    """The place of an age in an index."""
    if age_seconds < FIRST_BIN_SECONDS:
        return 0
    return min(STEPS - 1, int(math.log2(age_seconds / FIRST_BIN_SECONDS) * STEPS_OF_BIN) + 1)


def klass_of(junction: bool, turns: int, tokens: int, long_gaps: int) -> Klass:
    """The class of a state at `tokens`."""
    turn_class = bisect_left(_TURN_LIMITS, turns)
    length_class = bisect_right(_LENGTH_LIMITS, tokens)
    gap_class = 0 if junction else (long_gaps > 0) + (long_gaps > 2)
    return ((junction * 4 + turn_class) * 3 + length_class) * 3 + gap_class


class Counts(NamedTuple):
    """Of one class, or of all of a kind: by bin, states that reached it unused, uses and lost uses."""

    reached: list[float]
    used: list[float]
    lost: list[float]

    def times(self, factor: float) -> Counts:
        """A copy that weighs more or less."""
        return Counts(*([count * factor for count in counts] for counts in self))


class Learned(NamedTuple):
    """All that was counted, in requests of today: of each kind, and of each class of which something was seen."""

    kinds: tuple[Counts, ...]
    classes: Mapping[Klass, Counts]


def _nothing() -> Counts:
    return Counts([0.0] * BINS, [0.0] * BINS, [0.0] * BINS)


class _Book:
    """All counts and their unit: newer counts are larger, which is the same as older ones fading. Whoever looks at it
    from another thread has counts and unit that belong together.
    """

    __slots__ = ("classes", "kinds", "unit")

    def __init__(self, learned: Learned) -> None:
        self.kinds = learned.kinds
        self.classes = dict(learned.classes)
        self.unit = 1.0

    def learned(self) -> Learned:
        """In today's unit."""
        factor = 1 / self.unit
        classes = {klass: counts.times(factor) for klass, counts in list(self.classes.items())}
        return Learned(tuple(counts.times(factor) for counts in self.kinds), classes)


class _Shares(NamedTuple):
    """Of those that reach a bin: which share is used in it, and used after VRAM has lost it."""

    used: list[float]
    lost: list[float]


def _constant(share: float) -> _Shares:
    return _Shares([share] * BINS, [share * (at >= _FIRST_LOST_BIN) for at in range(BINS)])


_FIRST_GUESS: Final = _constant(_FIRST_SHARE)
_HOPED: Final = _constant(_HOPED_SHARE)


class ReuseIndex:
    """Counts that fade, and the index computed from them, one class at a time."""

    def __init__(self) -> None:
        self._book = _Book(Learned(tuple(_nothing() for _ in range(KINDS)), {}))
        self._index: dict[Klass, list[float]] = {}
        self._requests = 0
        self._turn: list[Klass] = []

    def request(self) -> None:
        """A request has come: counts fade a little, and now and then one class is computed anew."""
        self._requests += 1
        self._book.unit /= _FADE
        if self._book.unit > _LARGEST_UNIT:
            self._book = _Book(self._book.learned())
        if self._requests % _REFRESH_EVERY == 0:
            self._refresh_next()

    def made(self, klass: Klass) -> None:
        """A state of this class was made, or used and kept."""
        self.aged(klass, 0)

    def aged(self, klass: Klass, age_bin: int) -> None:
        """One has reached this bin unused."""
        book = self._book
        counts = book.classes.get(klass) or self._counts(klass)
        counts.reached[age_bin] += book.unit
        book.kinds[klass // _CLASSES_OF_KIND].reached[age_bin] += book.unit

    def used(self, klass: Klass, age_seconds: float, lost: bool) -> None:
        """One was used again; `lost` says that VRAM no longer had it."""
        at, book = bin_of(age_seconds), self._book
        for counts in (self._counts(klass), book.kinds[klass // _CLASSES_OF_KIND]):
            counts.used[at] += book.unit
            if lost:
                counts.lost[at] += book.unit

    def index(self, klass: Klass) -> list[float]:
        """The index of a class by step of age: always the same list, kept up to date."""
        found = self._index.get(klass)
        if found is None:
            found = self._index[klass] = self._compute(klass)
        return found

    def known(self, klass: Klass) -> list[float] | None:
        """The same, if it was asked for before. Pure reading."""
        return self._index.get(klass)

    def learned(self) -> Learned:
        """A copy of what was counted. From any thread: a count that rises meanwhile may be in it or not."""
        return self._book.learned()

    def resume(self, learned: Learned) -> None:
        """Go on from there. Indices that were given out before are not those of it."""
        self._book = _Book(learned)
        self._index.clear()
        self._turn.clear()

    def _counts(self, klass: Klass) -> Counts:
        classes = self._book.classes
        counts = classes.get(klass)
        if counts is None:
            counts = classes[klass] = _nothing()
        return counts

    def _refresh_next(self) -> None:
        if not self._turn:
            self._turn = list(self._index)
        if self._turn:
            klass = self._turn.pop()
            self._index[klass][:] = self._compute(klass)

    def _compute(self, klass: Klass) -> list[float]:
        """Shares by bin, then what is used and lost of one that is made, then the index."""
        book = self._book
        kind = _shares(book.kinds[klass // _CLASSES_OF_KIND], book.unit, _FIRST_GUESS)
        own = _shares(self._counts(klass), book.unit, _mixed(kind, _HOPED, _HOPE))
        waiting = 1.0
        used, lost = [], []
        for used_share, lost_share in zip(*own, strict=True):
            used.append(waiting * used_share)
            lost.append(waiting * lost_share)
            waiting -= used[-1]
        return _in_steps(_best_rates(1.0, used, lost))


def _shares(counts: Counts, unit: float, prior: _Shares) -> _Shares:
    """What was counted, and what was thought before as long as that was little."""
    used, lost = [], []
    for reached, uses, losses, prior_used, prior_lost in zip(*counts, *prior, strict=True):
        uses_now, prior_uses = uses / unit, _PRIOR_STATES * prior_used
        # Some may be used that were not seen to get there: those of an earlier run.
        whole = max(reached / unit + _PRIOR_STATES, uses_now * 1.01 + prior_uses)
        used.append((uses_now + prior_uses) / whole)
        lost.append((losses / unit + _PRIOR_STATES * prior_lost) / whole)
    return _Shares(used, lost)


def _mixed(one: _Shares, other: _Shares, share: float) -> _Shares:
    """The other one has this share in it."""
    return _Shares(
        *([a * (1 - share) + b * share for a, b in zip(*pair, strict=True)] for pair in zip(one, other, strict=True))
    )


def _in_steps(rates: list[float]) -> list[float]:
    """Rates are those of an age some way into each bin; between them they are taken to fall evenly, in logarithms."""
    logs = [math.log(rate) for rate in rates]
    return [rates[0], *(math.exp(logs[at] * (1 - further) + logs[at + 1] * further) for at, further in _PLACES)]


def _place(step: int) -> tuple[int, float]:
    """Between which two bins' rates the one of a step lies, the first of them and how far behind it."""
    at, part = divmod(step - 1, STEPS_OF_BIN)
    place = max(at + 1 + (part + 0.5) / STEPS_OF_BIN - _INTO_BIN, 1.0)
    before = min(int(place), BINS - 2)
    return before, min(place - before, 1.0)


_PLACES: Final = tuple(_place(step) for step in range(1, STEPS))


def _best_rates(made: float, used: list[float], lost: list[float]) -> list[float]:
    """For each bin: of all ages up to which one may wait, the best ratio of lost uses to time waited."""
    still_lost = [*accumulate(reversed(lost), initial=0.0)]
    still_lost.reverse()
    rates: list[float] = []
    for start in range(BINS):
        rates.append(_best_rate(start, made, used, lost, still_lost))
        made -= used[start]
    return rates


def _best_rate(start: int, waiting: float, used: list[float], lost: list[float], still_lost: list[float]) -> float:
    """From somewhere in the first bin on, of which the rest is before us. `still_lost`: of each bin and all later."""
    begin = EDGES[start] * _BEGIN if start else 4.0
    end = EDGES[start + 1]
    now_used, uses = used[start] * 0.6, lost[start] * 0.6
    seconds = now_used * max(1.0, (end - begin) / 2) + (waiting - now_used) * (end - begin)
    best = uses / seconds
    for at in range(start + 1, BINS):
        if uses + still_lost[at] <= best * seconds:
            break  # not even if all that comes came at once
        waiting -= now_used
        begin, end = end, EDGES[at + 1]
        now_used = used[at]
        uses += lost[at]
        seconds += (waiting - now_used / 2) * (end - begin)  # those used in it waited half of it
        rate = uses / seconds
        if rate > best:
            best = rate
    return best
