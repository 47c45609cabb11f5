"""Whether the memory of a machine is enough for all engines of all fleets at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import Conflict
from app.profiles.memory import ranks_of, total_bytes
from app.profiles.sizes import size_text
from app.supervisor.command import EngineSpec
from app.supervisor.devices import share_of


@dataclass(frozen=True)
class Need:
    """What an engine takes of the machine."""

    engine: str
    host_bytes: int
    """Host memory of its tier, over all ranks."""
    devices: tuple[str, ...]
    """Those it computes on."""
    device_share: float
    """Of each of these devices' memory."""


def need_of(spec: EngineSpec) -> Need:
    """What an engine takes, as it would be started."""
    flags: dict[str, Any] = spec.flags
    ranks = ranks_of(flags).every
    devices = (spec.devices or tuple(map(str, range(ranks))))[:ranks]
    host = total_bytes(spec.profile.kv_transfer_config, flags, spec.environment)
    return Need(spec.name, host, devices, share_of(flags))


def shortage(new: Need, others: Sequence[Need], usable_bytes: int, *, has_devices: bool) -> Conflict | None:
    """Why `new` does not fit beside `others`, with the numbers; None when it does."""
    return _of_host(new, others, usable_bytes) or (_of_devices(new, others) if has_devices else None)


def _of_host(new: Need, others: Sequence[Need], usable_bytes: int) -> Conflict | None:
    if not new.host_bytes or new.host_bytes + sum(one.host_bytes for one in others) <= usable_bytes:
        return None
    told = ", ".join(f"{one.engine} {size_text(one.host_bytes)}" for one in others if one.host_bytes)
    sentence = "%(name)s takes %(size)s of host memory; there is %(there)s."
    if told:
        sentence = (
            "%(name)s takes %(size)s of host memory beside %(others)s; together more than the %(there)s that there is."
        )
    values = {"name": new.engine, "size": size_text(new.host_bytes), "others": told, "there": size_text(usable_bytes)}
    return Conflict(sentence, code="no_room", values=values)


def _of_devices(new: Need, others: Sequence[Need]) -> Conflict | None:
    for device in new.devices:
        there = [one for one in others if device in one.devices]
        if there and new.device_share + sum(one.device_share for one in there) > 1.0:
            sentence = (
                "%(name)s takes %(share)s of the memory of device %(device)s beside %(others)s. "
                "Give the fleet devices of its own, or lower gpu-memory-utilization."
            )
            told = ", ".join(f"{one.engine} {one.device_share:.0%}" for one in there)
            values = {"name": new.engine, "share": f"{new.device_share:.0%}", "device": device, "others": told}
            return Conflict(sentence, code="no_room", path="devices", values=values)
    return None
