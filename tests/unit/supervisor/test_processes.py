"""Who belongs to an engine."""

from __future__ import annotations

import asyncio
import signal
import sys

from app.supervisor.processes import (
    Entry,
    Process,
    belonging,
    pulse_of,
    read_entry,
    resident_bytes,
    send_signal,
)

ROOT = Process(100, 5.0)


def entry(pid: int, parent: int = 1, session: int = 1, marker: str | None = None, state: str = "S") -> Entry:
    return Entry(Process(pid, 5.0), parent, session, state, 0.0, marker)


def pids(table: list[Entry], root: Process | None = ROOT, known: frozenset[Process] = frozenset()) -> list[int]:
    return sorted(process.pid for process in belonging(table, "m", root, known))


def test_marker_finds_the_reparented() -> None:
    """A child of init in a session of its own is ours by its environment; with another marker it is not."""
    table = [entry(100, session=100, marker="m"), entry(7, session=7, marker="m"), entry(8, session=8, marker="other")]
    assert pids(table) == [7, 100]


def test_descendants_and_session_without_marker() -> None:
    """A child that wiped its environment is ours by its parent or its session."""
    table = [entry(100, session=100, marker="m"), entry(101, 100, 55), entry(102, 101, 55), entry(103, 1, 100)]
    assert pids(table) == [100, 101, 102, 103]


def test_session_number_that_came_again() -> None:
    """Once nothing of ours is in it, a session of the same number is somebody else's."""
    assert pids([entry(100, session=100)], root=Process(100, 1.0)) == []
    assert pids([entry(300, session=100)]) == []


def test_seen_before() -> None:
    """What was seen to be ours stays ours when its parent is gone, by pid and start time alike."""
    table = [entry(101, 1, 55)]
    assert pids(table, None, frozenset({Process(101, 5.0)})) == [101]
    assert pids(table, None, frozenset({Process(101, 4.0)})) == []


def test_the_dead_do_not_count() -> None:
    """A zombie holds nothing; it is not waited for."""
    assert pids([entry(100, session=100, marker="m", state="Z")]) == []


async def test_a_halted_process_and_its_work_are_seen() -> None:
    """By name while SIGSTOP holds it, and the CPU time of a child that computes, not of the front end."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "print(flush=True)\nwhile True: pass"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        await child.stdout.readline()
        entry = read_entry(child.pid)
        assert entry is not None
        started = pulse_of([entry.process], None).cpu_seconds
        async with asyncio.timeout(20):
            while pulse_of([entry.process], None).cpu_seconds <= started:
                await asyncio.sleep(0.05)
        assert pulse_of([entry.process], entry.process).cpu_seconds == 0
        assert pulse_of([entry.process], None).halted == ()
        send_signal(entry.process, signal.SIGSTOP)
        async with asyncio.timeout(20):
            while not (halted := pulse_of([entry.process], None).halted):
                await asyncio.sleep(0.01)
        assert halted[0].startswith(f"pid {child.pid}, py")
        assert resident_bytes([entry.process]) > 1_000_000
    finally:
        child.kill()
        await child.wait()
    assert resident_bytes([entry.process]) == 0
