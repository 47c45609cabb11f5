"""What has to be true before an engine is launched: made true where waiting helps, told where it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.config import inherited_environment
from app.supervisor import checks, residentmemory
from app.supervisor.causes import Cause
from app.supervisor.command import EngineSpec
from app.supervisor.devices import Device, DeviceMemory, devices_of, room_values, too_full, waiting_text
from app.supervisor.faults import Fault
from app.supervisor.gate import StartGate
from app.supervisor.phases import CHECKING, CLEARING, Phase

_LOOK_SECONDS = 1.0


class Ground:
    """Prepares the starts of one engine. `phase` says what the present one waits for."""

    def __init__(
        self, devices: DeviceMemory, gate: StartGate, device_wait_seconds: float, tell: Callable[[], None]
    ) -> None:
        self.phase: Phase = CLEARING
        self._devices = devices
        self._gate = gate
        self._device_wait_seconds = device_wait_seconds
        self._tell = tell

    def clear(self) -> None:
        """What the last run left is being ended."""
        self._say(CLEARING)

    async def prepare(self, spec: EngineSpec, memory_name: str) -> Fault | None:
        """Check everything, wait for the turn and the device memory of this start; why it cannot be."""
        self._say(CHECKING)
        fault = await asyncio.to_thread(_check, spec, memory_name)
        return fault or await self._await_devices(spec)

    async def claim(self, spec: EngineSpec) -> None:
        """A process that was found loading: others wait for it, it waits for nobody."""
        self._gate.claim(spec.name, {device.uuid for device in await self._look(spec)})

    def leave(self, name: str) -> None:
        """This start has taken its share of the devices, or has ended."""
        self._gate.leave(name)

    async def _await_devices(self, spec: EngineSpec) -> Fault | None:
        devices = await self._look(spec)
        if not devices:
            return None

        def tell_turn(other: str) -> None:
            self._say(Phase(f"Waiting for {other}, which loads on the same GPU", 0.0))

        await self._gate.enter(spec.name, {device.uuid for device in devices}, tell_turn)
        return await self._await_room(spec)

    async def _await_room(self, spec: EngineSpec) -> Fault | None:
        """Until every device has free what the engine will ask for, at most so long as the settings say."""
        until = time.monotonic() + self._device_wait_seconds
        while (full := too_full(await self._look(spec), spec.flags)) is not None:
            if time.monotonic() >= until:
                return await self._busy(full, spec)
            self._say(Phase(f"Waiting for GPU memory: {waiting_text(full, spec.flags)}", 0.0))
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _busy(self, device: Device, spec: EngineSpec) -> Fault:
        holders = await asyncio.to_thread(self._devices.holders)
        pids = sorted({holder.pid for holder in holders if holder.device == device.uuid})
        values = room_values(device, spec.flags) | {
            "seconds": f"{self._device_wait_seconds:.0f}",
            "pids": ", ".join(f"pid {pid}" for pid in pids),
        }
        sentence = (Cause.DEVICE_FULL_OF if pids else Cause.DEVICE_FULL) % values
        return Fault("device_memory_busy", sentence, fatal=True)

    async def _look(self, spec: EngineSpec) -> list[Device]:
        every = await asyncio.to_thread(self._devices.devices)
        return devices_of(spec, every, inherited_environment())

    def _say(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase = phase
            self._tell()


def _check(spec: EngineSpec, memory_name: str) -> Fault | None:
    """Also gives back the host memory that this start has no use for (blocking)."""
    if residentmemory.kept_config(spec) is None:
        residentmemory.forget(memory_name)
    return checks.check_start(spec) or residentmemory.check_space(spec, memory_name)
