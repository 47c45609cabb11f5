"""Where a new engine goes: its name, its port. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

#: How many ports a fleet without a range of its own looks at, from the engine port of the settings on.
USUAL_PORTS = 100


@dataclass(frozen=True)
class Ports:
    """The ports that a fleet's engines may get, both ends included."""

    low: int
    high: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))


def ports_of(port_from: int | None, port_to: int | None, usual: int) -> Ports:
    """A fleet's range; without one, from `usual` upwards."""
    if port_from is None or port_to is None:
        return Ports(usual, min(usual + USUAL_PORTS - 1, 65535))
    return Ports(port_from, port_to)


def new_name(fleet: str, fleet_id: int, known: Mapping[str, tuple[int, bool]]) -> str:
    """The first of `fleet-1`, `fleet-2`, ... that is free.

    `known`: every engine that there ever was, with its fleet's id and whether it is in service. One of the same
    fleet that is out of service gives its name, and with it its history, to the new one.
    """
    names = (f"{fleet}-{number}" for number in count(1))
    return next(name for name in names if name not in known or known[name] == (fleet_id, False))


def new_port(ports: Ports, taken: Collection[int], is_free: Callable[[int], bool]) -> int | None:
    """The first port that no engine has and on which nothing listens; None when there is none."""
    return next((port for port in ports if port not in taken and is_free(port)), None)
