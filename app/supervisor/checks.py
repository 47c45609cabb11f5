"""What is looked at before an engine is started, so that a mistake is told at once and in one sentence."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

import psutil

from app.profiles.memory import total_bytes
from app.profiles.sizes import exact_size
from app.supervisor import machine
from app.supervisor.command import EngineSpec, is_path_like
from app.supervisor.faults import Fault


def check_start(spec: EngineSpec) -> Fault | None:
    """The first reason why `spec` cannot be started; None when nothing speaks against it (blocking)."""
    return (
        _check_interpreter(spec.interpreter)
        or _check_model(spec.model)
        or check_memory(spec, machine.usable_bytes())
        or check_port(spec.host, spec.port)
    )


def check_memory(spec: EngineSpec, usable_bytes: int) -> Fault | None:
    """A fault with both numbers when the host memory of all ranks is more than there is at all."""
    profile = spec.profile
    asked = total_bytes(profile.kv_transfer_config, profile.flags, profile.environment)
    if asked <= usable_bytes:
        return None
    sentence = (
        f"The host tier asks for {exact_size(asked)} over all ranks; "
        f"the machine or its control group has {exact_size(usable_bytes)}."
    )
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
        f"The interpreter {interpreter} does not exist or may not be executed.",
        fatal=True,
    )


def _check_model(model: str) -> Fault | None:
    if not is_path_like(model) or Path(model).exists():
        return None
    return Fault("model_not_found", f"There is no model at {model}: the path does not exist.", fatal=True)


def check_listener(port: int, own: Set[int]) -> Fault | None:
    """A fault when it is not one of `own` that listens on `port`: then somebody else gave the answers.

    Two programs can hold one port as long as neither listens, so a start can lose it while loading.
    """
    others = _listeners(port)
    return _port_in_use(port, others) if others and not own & others.keys() else None


def _port_in_use(port: int, listeners: Mapping[int, str]) -> Fault:
    who = ", ".join(f"pid {pid}, {name}" for pid, name in listeners.items())
    by = f"another program ({who})" if who else "another program"
    return Fault(
        "port_in_use",
        f"Port {port} is in use by {by}; stop it, or set TIERDECK_ENGINE_PORT to a free port.",
        fatal=True,
    )


def _listeners(port: int) -> dict[int, str]:
    """pid -> name of who listens on `port`, as far as we may see it."""
    found: dict[int, str] = {}
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
            if listens and connection.pid:
                found[connection.pid] = psutil.Process(connection.pid).name()
    return found
