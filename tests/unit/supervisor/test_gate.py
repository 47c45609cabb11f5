"""Who loads when on shared devices."""

from __future__ import annotations

import asyncio

from app.supervisor.gate import StartGate


async def test_engines_on_one_device_load_one_after_the_other() -> None:
    """The second is told for whom it waits, and begins when the first leaves; one on another device does not wait."""
    gate = StartGate()
    told: list[str] = []
    order: list[str] = []
    await gate.enter("one", {"GPU-a", "GPU-b"}, told.append)

    async def second() -> None:
        await gate.enter("two", {"GPU-b"}, told.append)
        order.append("two")

    waiting = asyncio.create_task(second())
    await asyncio.sleep(0)
    await gate.enter("three", {"GPU-c"}, told.append)
    assert told == ["one"] and order == []
    gate.leave("three")
    await asyncio.sleep(0)
    assert order == []
    gate.leave("one")
    gate.leave("one")
    await asyncio.wait_for(waiting, 5)
    assert order == ["two"] and gate.ahead_of("one", {"GPU-a"}) is None


async def test_engines_without_devices_never_wait() -> None:
    gate = StartGate()
    for name in ("one", "two"):
        await asyncio.wait_for(gate.enter(name, frozenset(), lambda _: None), 1)


async def test_who_was_found_loading_is_waited_for() -> None:
    gate = StartGate()
    gate.claim("one", {"GPU-a"})
    assert gate.ahead_of("two", {"GPU-a"}) == "one"
    assert gate.ahead_of("one", {"GPU-a"}) is None
