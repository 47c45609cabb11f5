"""Storing only what was asked for more than once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from vllm.v1.kv_offload.base import OffloadKey

#: Keys remembered per slot: what was offered so long ago counts as new.
REMEMBERED_PER_SLOT = 4


class Admission(Protocol):
    """Decides about each key that is not in the tier."""

    def admits(self, key: OffloadKey) -> bool:
        """Whether it is to be stored, now that it is offered once more."""


class Everything:
    """The usual one."""

    def admits(self, key: OffloadKey) -> bool:
        """Always."""
        return True


class OfferedBefore:
    """Admits what is offered the `threshold`-th time. The keys offered longest ago are forgotten."""

    def __init__(self, threshold: int, most: int) -> None:
        self._threshold = threshold
        self._most = most
        self._offers: OrderedDict[OffloadKey, int] = OrderedDict()

    def admits(self, key: OffloadKey) -> bool:
        """Count the offer."""
        offers = self._offers.pop(key, 0) + 1
        if offers >= self._threshold:
            return True
        self._offers[key] = offers
        if len(self._offers) > self._most:
            self._offers.popitem(last=False)
        return False


def admission(threshold: int, slots: int) -> Admission:
    """What a configured `store_threshold` means."""
    return Everything() if threshold <= 1 else OfferedBefore(threshold, slots * REMEMBERED_PER_SLOT)
