"""The memory of this machine's NVIDIA devices, and what an engine needs of it before it can start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pynvml
import structlog

from app.derive.profile_text import DEVICES_VARIABLE
from app.planner.wish import USUAL_UTILIZATION
from app.profiles.memory import ranks_of
from app.profiles.sizes import read_number
from app.supervisor.command import EngineSpec

log = structlog.get_logger(__name__)

_GIB = 1 << 30

Read = TypeVar("Read")


@dataclass(frozen=True)
class Device:
    """One device now."""

    index: int
    uuid: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device."""

    pid: int
    device: str
    """Its UUID."""
    held_bytes: int


class DeviceMemory(Protocol):
    """Where the state of the devices is read. Both calls block for milliseconds."""

    def devices(self) -> Sequence[Device]:
        """Every device of this machine; none without a driver."""

    def holders(self) -> Sequence[Holder]:
        """Every process that holds memory of one."""


class Nvml:
    """The driver's own library. What cannot be read is left out, with a word in the log."""

    def devices(self) -> Sequence[Device]:
        """Every device of this machine; none without a driver."""
        return _of_each(_device)

    def holders(self) -> Sequence[Holder]:
        """Every process that holds memory of one."""
        return [holder for found in _of_each(_holders) for holder in found]


def devices_of(spec: EngineSpec, every: Sequence[Device], inherited: Mapping[str, str]) -> list[Device]:
    """The devices that `spec` will use, in the order in which vLLM deals them to its ranks. Pure.

    `inherited` is the environment that the engine gets from the deck. What names no device of this
    machine (a part of one, MIG) is left out: of that nothing can be said.
    """
    visible = spec.environment.get(DEVICES_VARIABLE, inherited.get(DEVICES_VARIABLE))
    seen = list(every) if visible is None else _named(visible, every)
    return seen[: ranks_of(spec.flags).every]


def wanted_bytes(device: Device, flags: Mapping[str, Any]) -> int:
    """What the engine has to find free on `device`: it checks the same at its start. Pure."""
    return int(device.total_bytes * share_of(flags))


def share_of(flags: Mapping[str, Any]) -> float:
    """What an engine takes of the memory of each of its devices; vLLM's own default where no flag says it. Pure."""
    share = read_number(flags.get("gpu-memory-utilization"))
    return USUAL_UTILIZATION if share is None else share


def too_full(devices: Sequence[Device], flags: Mapping[str, Any]) -> Device | None:
    """The device that lacks most; None when each has what the engine will ask for. Pure."""
    lacking = {device: wanted_bytes(device, flags) - device.free_bytes for device in devices}
    fullest = max(devices, key=lambda device: lacking[device], default=None)
    return fullest if fullest is not None and lacking[fullest] > 0 else None


def held_bytes(holders: Sequence[Holder], pids: Set[int]) -> int:
    """Device memory that `pids` hold. Pure."""
    return sum(holder.held_bytes for holder in holders if holder.pid in pids)


def waiting_text(device: Device, flags: Mapping[str, Any]) -> str:
    """`0.4 of 71.3 GiB free on GPU 0`. Pure."""
    return "{free} of {wanted} GiB free on GPU {gpu}".format(**room_values(device, flags))


def room_values(device: Device, flags: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a device that has not enough free, for a sentence. Pure."""
    free, wanted = device.free_bytes / _GIB, wanted_bytes(device, flags) / _GIB
    return {"free": f"{free:.1f}", "wanted": f"{wanted:.1f}", "gpu": str(device.index)}


def _named(visible: str, every: Sequence[Device]) -> list[Device]:
    """The list ends at the first entry that is no device, as CUDA reads it."""
    found: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        device = next((one for one in every if _is_meant(entry, one)), None)
        if device is None:
            break
        found.append(device)
    return found


def _is_meant(entry: str, device: Device) -> bool:
    if entry.isdigit():
        return int(entry) == device.index
    return entry.startswith("GPU-") and device.uuid.startswith(entry)


def _of_each(read: Callable[[Any], Read]) -> list[Read]:
    found: list[Read] = []
    try:
        pynvml.nvmlInit()  # counts how often; a second one costs nothing
        count = pynvml.nvmlDeviceGetCount()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return found  # a machine without such devices
    except pynvml.NVMLError as error:  # such as a driver that was replaced under the running machine
        log.warning("the devices cannot be read", reason=str(error))
        return found
    for index in range(count):
        try:
            found.append(read(pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError as error:
            log.warning("a device cannot be read", index=index, reason=str(error))
    return found


def _device(handle: Any) -> Device:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    index, uuid = pynvml.nvmlDeviceGetIndex(handle), pynvml.nvmlDeviceGetUUID(handle)
    return Device(int(index), str(uuid), int(memory.total), int(memory.free))


def _holders(handle: Any) -> list[Holder]:
    """A driver that does not tell how much a process holds tells None."""
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return [Holder(int(one.pid), uuid, int(one.usedGpuMemory or 0)) for one in running]
