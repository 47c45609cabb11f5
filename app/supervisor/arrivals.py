"""When the bytes of a growing file came: whoever looks at its end knows that what is new came since the last look."""

from __future__ import annotations

from array import array
from bisect import bisect_right

#: Looks that are remembered; with one a second, nine hours of output that never pauses.
MOST_LOOKS = 32_768


class Arrivals:
    """Remembers where the file ended at each look. Of what was there before the first one nothing is known."""

    def __init__(self, end: int, most: int = MOST_LOOKS) -> None:
        self._most = most
        self._ends = array("q", [end])
        self._times = array("d", [0.0])

    def note(self, end: int, at: float) -> None:
        """The file ends there now."""
        if end < self._ends[-1]:  # somebody else emptied it
            self._ends, self._times = array("q", [end]), array("d", [0.0])
        elif end > self._ends[-1]:
            self._ends.append(end)
            self._times.append(at)
        if len(self._ends) > 2 * self._most:
            self._ends, self._times = self._ends[self._most :], self._times[self._most :]

    def at(self, position: int) -> float | None:
        """When the byte at `position` came, in seconds since the epoch; None where that is not known."""
        index = bisect_right(self._ends, position)
        return self._times[index] if 0 < index < len(self._ends) else None
