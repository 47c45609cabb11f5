"""What is looked at before an engine is started, so that a mistake is told at once and in one sentence."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

import psutil

from app.derive.profile_text import START_TIMEOUT, read_seconds
from app.profiles.memory import total_bytes
from app.profiles.sizes import exact_size
from app.supervisor import machine
from app.supervisor.causes import Cause
from app.supervisor.command import EngineSpec, is_path_like
from app.supervisor.faults import Fault
from app.supervisor.states import PORT_IN_USE


def check_start(spec: EngineSpec) -> Fault | None:
    """The first reason why `spec` cannot be started; None when nothing speaks against it (blocking)."""
    return check_version(spec) or check_port(spec.host, spec.port)


def check_version(spec: EngineSpec) -> Fault | None:
    """The same while the engine still runs another version, and has the port (blocking)."""
    return (
        _check_interpreter(spec.interpreter)
        or _check_model(spec.model)
        or _check_timeout(spec)
        or check_memory(spec, machine.usable_bytes())
    )


def check_memory(spec: EngineSpec, usable_bytes: int) -> Fault | None:
    """A fault with both numbers when the host memory of all ranks is more than there is at all."""
    asked = total_bytes(spec.profile.kv_transfer_config, spec.flags, spec.environment)
    if asked <= usable_bytes:
        return None
    sentence = Cause.HOST_TIER_TOO_LARGE % {"asked": exact_size(asked), "usable": exact_size(usable_bytes)}
    return Fault("out_of_memory", sentence, fatal=True)


def check_port(host: str, port: int) -> Fault | None:
    """A fault that names the program that listens on `port`; None when it is free."""
    if port_is_free(host, port):
        return None
    return _port_in_use(port, _listeners(port))


def port_is_free(host: str, port: int) -> bool:
    """True when an engine could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine does: old connections may linger
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _check_interpreter(interpreter: str) -> Fault | None:
    if shutil.which(interpreter):
        return None
    return Fault(
        "interpreter_not_found",
        Cause.NO_INTERPRETER % {"path": interpreter},
        fatal=True,
    )


def _check_model(model: str) -> Fault | None:
    if not is_path_like(model) or Path(model).exists():
        return None
    return Fault("model_not_found", Cause.NO_MODEL % {"path": model}, fatal=True)


def start_timeout_seconds(spec: EngineSpec, usual: float) -> float:
    """The longest silence of a start: the profile's own, else `usual`; 0 = no limit."""
    own = read_seconds(spec.environment.get(START_TIMEOUT, ""))
    return usual if own is None else own


def _check_timeout(spec: EngineSpec) -> Fault | None:
    own = spec.environment.get(START_TIMEOUT)
    if own is None or read_seconds(own) is not None:
        return None
    return Fault("config_rejected", Cause.NO_SECONDS % {"variable": START_TIMEOUT}, fatal=True)


def check_listener(port: int, own: Set[int]) -> Fault | None:
    """A fault when it is not one of `own` that listens on `port`: then somebody else gave the answers.

    Two programs can hold one port as long as neither listens, so a start can lose it while loading.
    """
    others = _listeners(port)
    return _port_in_use(port, others) if others and not own & others.keys() else None


def _port_in_use(port: int, listeners: Mapping[int, str]) -> Fault:
    who = ", ".join(f"pid {pid}, {name}" for pid, name in listeners.items())
    sentence = (Cause.PORT_TAKEN_BY if who else Cause.PORT_TAKEN) % {"port": port, "who": who}
    return Fault(PORT_IN_USE, sentence, fatal=True)


def _listeners(port: int) -> dict[int, str]:
    """pid -> name of who listens on `port`, as far as we may see it."""
    found: dict[int, str] = {}
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
            if listens and connection.pid:
                found[connection.pid] = psutil.Process(connection.pid).name()
    return found
