"""Where a new engine goes, and whether it fits."""

from __future__ import annotations

from typing import Any

from app.errors import Conflict
from app.fleets.placing import new_name, new_port, ports_of
from app.fleets.room import Need, need_of, shortage
from app.supervisor.command import EngineSpec, Profile

GIB = 1 << 30


def test_the_first_free_number_is_taken() -> None:
    """A name that came free carries its history on; that of another fleet is never taken over."""
    known = {"main-1": (1, True), "main-2": (1, False), "main-3": (1, True)}
    assert new_name("main", 1, known) == "main-2"
    assert new_name("main", 2, known) == "main-4"
    assert new_name("chat", 3, known) == "chat-1"


def test_ports_in_use_are_passed_over() -> None:
    """By other engines or by anything else on the machine; without a range, from the usual port upwards."""
    ports = ports_of(8710, 8712, 9000)
    assert new_port(ports, {8710}, lambda port: port != 8711) == 8712
    assert new_port(ports, {8710, 8712}, lambda port: port != 8711) is None
    assert new_port(ports_of(None, None, 9000), {9000}, lambda _: True) == 9001
    assert list(ports_of(None, None, 65534)) == [65534, 65535]


def said(refusal: Conflict | None) -> str:
    return "" if refusal is None else refusal.message


def spec(flags: dict[str, Any], host_bytes: int = 0, devices: tuple[str, ...] = ()) -> EngineSpec:
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": host_bytes}
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra} if host_bytes else {}
    profile = Profile("p", 1, 1, config, flags, {})
    return EngineSpec(1, "one", 1, "f", "m", "m", "python", "127.0.0.1", 1, profile, devices=devices)


def test_an_engine_needs_what_its_start_asks_for() -> None:
    """Fleet and profile together; without devices of its own it computes on the first ones."""
    assert need_of(spec({}, 4 * GIB)) == Need("one", 4 * GIB, ("0",), 0.92), "vLLM's own share"
    two = spec({"tensor-parallel-size": 2, "gpu-memory-utilization": 0.4}, devices=("2", "3"))
    assert need_of(two) == Need("one", 0, ("2", "3"), 0.4)


def test_host_memory_of_all_engines_together() -> None:
    """Each fits alone; the sentence has the numbers of all."""
    new, other = Need("b", 6 * GIB, ("0",), 0.9), Need("a", 6 * GIB, ("0",), 0.9)
    assert said(shortage(new, [], 10 * GIB, has_devices=False)) == ""
    assert said(shortage(new, [other], 10 * GIB, has_devices=False)) == (
        "b takes 6 GiB of host memory beside a 6 GiB; together more than the 10 GiB that there is."
    )
    assert said(shortage(new, [], 4 * GIB, has_devices=False)) == "b takes 6 GiB of host memory; there is 4 GiB."
    assert said(shortage(Need("b", 0, ("0",), 0.9), [Need("a", 20 * GIB, ("0",), 0.9)], GIB, has_devices=False)) == ""


def test_two_engines_on_one_device() -> None:
    """The second would not start: told before it is tried, where there are devices at all."""
    new, other = Need("b", 0, ("0", "1"), 0.9), Need("a", 0, ("1",), 0.9)
    assert "90% of the memory of device 1 beside a 90%" in said(shortage(new, [other], GIB, has_devices=True))
    assert said(shortage(new, [other], GIB, has_devices=False)) == ""
    assert said(shortage(Need("b", 0, ("1",), 0.45), [Need("a", 0, ("1",), 0.45)], GIB, has_devices=True)) == ""
