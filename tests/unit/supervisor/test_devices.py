"""Which devices an engine uses, and whether they have room for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from app.supervisor.command import EngineSpec, Profile
from app.supervisor.devices import (
    Device,
    Holder,
    Nvml,
    devices_of,
    held_bytes,
    too_full,
    waiting_text,
    wanted_bytes,
)

GIB = 1 << 30
CARDS = [Device(index, f"GPU-{index}{index}aa", 80 * GIB, 79 * GIB) for index in range(4)]


def spec(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **more: Any) -> EngineSpec:
    profile = Profile("p", 1, 1, {}, flags or {}, environment or {})
    return EngineSpec(1, "one", 1, "main", "m", "m", "python", "127.0.0.1", 8710, profile, **more)


def indices(one: EngineSpec, inherited: dict[str, str] | None = None) -> list[int]:
    return [device.index for device in devices_of(one, CARDS, inherited or {})]


@pytest.mark.parametrize(
    ("one", "inherited", "expected"),
    [
        (spec(), {}, [0]),
        (spec({"tensor-parallel-size": 2}), {}, [0, 1]),
        (spec({"tensor-parallel-size": 2, "pipeline-parallel-size": 2}), {}, [0, 1, 2, 3]),
        (spec({"tensor-parallel-size": 2}), {"CUDA_VISIBLE_DEVICES": "3,1,0"}, [3, 1]),
        (spec({}, {"CUDA_VISIBLE_DEVICES": "2"}), {"CUDA_VISIBLE_DEVICES": "3"}, [2]),
        (spec({}, devices=("1",)), {"CUDA_VISIBLE_DEVICES": "3"}, [1]),
        (spec({}, {"CUDA_VISIBLE_DEVICES": "GPU-22"}), {}, [2]),
        (spec({}, {"CUDA_VISIBLE_DEVICES": ""}), {}, []),
        (spec({"tensor-parallel-size": 2}, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}), {}, [0]),
        (spec({}, {"CUDA_VISIBLE_DEVICES": "MIG-xyz"}), {}, []),
    ],
)
def test_devices_of_an_engine(one: EngineSpec, inherited: dict[str, str], expected: list[int]) -> None:
    """As CUDA and vLLM deal them out; without a driver there is nothing to wait for."""
    assert indices(one, inherited) == expected
    assert devices_of(one, [], inherited) == []


def test_every_device_needs_its_share() -> None:
    """One of two that is full holds the start back; it is told with both numbers."""
    busy = Device(1, "GPU-b", 78 * GIB, int(0.4 * GIB))
    flags = {"gpu-memory-utilization": 0.9}
    assert too_full([CARDS[0], busy], flags) == busy
    assert waiting_text(busy, flags) == "0.4 of 70.2 GiB free on GPU 1"
    assert too_full(CARDS, flags) is None
    assert too_full([], flags) is None
    assert wanted_bytes(CARDS[0], {}) == int(80 * GIB * 0.92)


def test_memory_of_processes_is_added_over_devices() -> None:
    holders = [Holder(7, "a", 10), Holder(7, "b", 20), Holder(8, "a", 40)]
    assert held_bytes(holders, {7}) == 30 and held_bytes(holders, {9}) == 0


def test_driver_s_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it answers, one broken device apart; a machine without it has no devices."""

    def uuid(handle: int) -> str:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return f"GPU-{handle}"

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=10, free=4),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=7, usedGpuMemory=6),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    assert Nvml().devices() == [Device(0, "GPU-0", 10, 4)]
    assert Nvml().holders() == [Holder(7, "GPU-0", 6), Holder(8, "GPU-0", 0)]

    reasons = [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH] * 2

    def missing() -> None:
        raise pynvml.NVMLError(reasons.pop())

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert [*Nvml().devices(), *Nvml().holders(), *Nvml().devices(), *Nvml().holders()] == [] == reasons
