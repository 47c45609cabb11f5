"""Pages of host memory: a slot is a list of pages that need not be neighbours. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

#: Pages are at most this long: the rest of a slot's last page is wasted.
MOST_PAGE_BYTES: Final = 128 * 1024
#: Pages begin at multiples of this, as the machine's own do.
PAGE_STEP_BYTES: Final = 4096


class Run(NamedTuple):
    """Neighbouring pages."""

    first: int
    pages: int


def page_bytes(token_slot_bytes: int, state_slot_bytes: int) -> int:
    """The page that wastes least of a token slot, of which there are most: a whole number of them fit."""
    slot_bytes = token_slot_bytes or state_slot_bytes
    pages = pages_of(slot_bytes, MOST_PAGE_BYTES)
    return pages_of(-(-slot_bytes // pages), PAGE_STEP_BYTES) * PAGE_STEP_BYTES


def pages_of(slot_bytes: int, one_page_bytes: int) -> int:
    """How many pages a slot takes."""
    return -(-slot_bytes // one_page_bytes)


class PageArena:
    """Which pages are free. What was given back last is taken first, so untouched memory stays untouched."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.free = 0
        #: Slots as they were given back, by pages: what comes next is most often just as long.
        self._whole: dict[int, list[tuple[Run, ...]]] = {}
        self._runs: dict[int, int] = {}  # first page -> pages
        self._ends: dict[int, int] = {}  # page behind the run -> first page
        #: What is left of the run that pages were taken from last. It is in neither of the two.
        self._next = self._left = 0
        self.clear()

    def clear(self) -> None:
        """Everything is free again."""
        self.free = self.pages
        self._whole = {}
        self._runs = {0: self.pages} if self.pages else {}
        self._ends = {self.pages: 0} if self.pages else {}
        self._next = self._left = 0

    def occupy(self, runs: Iterable[Run]) -> None:
        """Of an arena in which everything is free, these are taken. ValueError if one is not there to be taken."""
        begin = 0
        free: list[Run] = []
        for run in sorted(runs):
            if run.first < begin or run.first + run.pages > self.pages:
                raise ValueError(f"{run} is not free in an arena of {self.pages} pages")
            if run.first > begin:
                free.append(Run(begin, run.first - begin))
            begin = run.first + run.pages
        if begin < self.pages:
            free.append(Run(begin, self.pages - begin))
        self.free = sum(run.pages for run in free)
        self._whole, self._runs, self._ends = {}, {}, {}
        self._next = self._left = 0
        for run in free:
            self._join(*run)

    def take(self, pages: int) -> tuple[Run, ...] | None:
        """That many pages in as few runs as are at hand; None, and nothing taken, if there are too few."""
        if pages > self.free:
            return None
        self.free -= pages
        same = self._whole.get(pages)
        if same:
            return same.pop()
        if self._whole or pages > self._left:
            return self._take_several(pages)
        first = self._next
        self._next += pages
        self._left -= pages
        return (Run(first, pages),)

    def _take_several(self, pages: int) -> tuple[Run, ...]:
        self._join_whole()
        if self._left:
            self._join(self._next, self._left)
            self._left = 0
        taken: list[Run] = []
        while pages:
            first, length = self._runs.popitem()
            del self._ends[first + length]
            used = min(length, pages)
            taken.append(Run(first, used))
            self._next, self._left = first + used, length - used
            pages -= used
        return tuple(taken)

    def give(self, runs: tuple[Run, ...]) -> None:
        """Take the pages of a slot back."""
        self.give_slots([runs], sum(run.pages for run in runs))

    def give_slots(self, slots: list[tuple[Run, ...]], pages: int) -> None:
        """Take slots of so many pages each back."""
        if pages:
            self.free += pages * len(slots)
            self._whole.setdefault(pages, []).extend(slots)

    def _join_whole(self) -> None:
        """What was given back becomes pages like others, with its free neighbours."""
        for slots in self._whole.values():
            for runs in slots:
                for first, length in runs:
                    self._join(first, length)
        self._whole.clear()

    def _join(self, first: int, length: int) -> None:
        before = self._ends.pop(first, None)
        if before is not None:
            length += self._runs.pop(before)
            first = before
        behind = self._runs.pop(first + length, None)
        if behind is not None:
            del self._ends[first + length + behind]
            length += behind
        self._runs[first] = length
        self._ends[first + length] = first
