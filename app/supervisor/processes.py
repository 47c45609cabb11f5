"""The kernel's view of processes: who belongs to an engine, whether it lives, how it ended.

A process is a pid *and* its start time; a pid alone may already mean another program. Signals go
through a pidfd that was opened before the start time was compared, so they cannot hit a stranger.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from app.supervisor.command import MARKER_VARIABLE, LaunchPlan
from app.supervisor.faults import Exit
from app.supervisor.liveness import Pulse

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True)
class Process:
    """`started` is the kernel's: seconds since boot. It does not move when the clock is set."""

    pid: int
    started: float


@dataclass(frozen=True)
class Entry:
    """One line of the process table."""

    process: Process
    parent: int
    session: int
    state: str
    cpu_seconds: float
    marker: str | None = None

    @property
    def alive(self) -> bool:
        """False for one that has ended and waits to be collected."""
        return self.state not in _DEAD

    @property
    def halted(self) -> bool:
        """True while SIGSTOP or its like holds it; being traced is another state."""
        return self.state == "T"


def read_entry(pid: int) -> Entry | None:
    """The process table's line for `pid`; None when there is no such process."""
    entry = _read_stat(pid)
    return entry and replace(entry, marker=_read_marker(pid))


def _read_stat(pid: int) -> Entry | None:
    """All but the marker."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return Entry(
        process=Process(pid, int(fields[19]) / _TICKS),
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )


def process_table() -> list[Entry]:
    """Every process that can be seen."""
    pids = (int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    return [entry for pid in pids if (entry := read_entry(pid)) is not None]


def belonging(
    table: Iterable[Entry], marker: str, root: Process | None, known: Set[Process] = frozenset()
) -> frozenset[Process]:
    """The living processes of one start, however they renamed or re-parented themselves. Pure.

    Ours are: those with the marker; those seen to be ours before; the session of one of them; and
    everything that descends from one of these.
    """
    entries = [entry for entry in table if entry.process.pid != os.getpid()]
    sure = {
        entry.process for entry in entries if entry.marker == marker or entry.process == root or entry.process in known
    }
    ours = sure | _session_of(root, sure, entries)
    _add_descendants(ours, entries)
    return frozenset(entry.process for entry in entries if entry.process in ours and entry.alive)


def _session_of(root: Process | None, sure: Set[Process], entries: Iterable[Entry]) -> set[Process]:
    """Processes of the session that `root` opened; only while a sure one is in it, as numbers come again."""
    if root is None or not any(entry.session == root.pid for entry in entries if entry.process in sure):
        return set()
    return {entry.process for entry in entries if entry.session == root.pid}


def _add_descendants(ours: set[Process], entries: Iterable[Entry]) -> None:
    children: dict[int, list[Process]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry.process)
    queue = list(ours)
    while queue:
        for child in children.get(queue.pop().pid, ()):
            if child not in ours:
                ours.add(child)
                queue.append(child)


def find_tree(marker: str, root: Process | None, known: Set[Process] = frozenset()) -> frozenset[Process]:
    """`belonging` on the process table of this moment (reads /proc; call it in a thread)."""
    return belonging(process_table(), marker, root, known)


def is_alive(process: Process) -> bool:
    """True while this very process has not ended."""
    entry = read_entry(process.pid)
    return entry is not None and entry.process == process and entry.alive


def start_time(process: Process, now: float) -> float:
    """The start of `process` on the clock of which `now` is the present, in seconds since the epoch."""
    uptime = float((_PROC / "uptime").read_text().split()[0])
    return now - uptime + process.started


def pulse_of(members: Iterable[Process], root: Process | None) -> Pulse:
    """Who of `members` is halted, and the CPU time of all but `root`."""
    entries = [entry for one in members if (entry := _read_stat(one.pid)) is not None and entry.process == one]
    halted = [entry.process for entry in entries if entry.halted]
    return Pulse(
        halted=tuple(f"pid {pid}, {name}" for pid, name in names_of(halted).items()),
        cpu_seconds=sum(entry.cpu_seconds for entry in entries if entry.process != root),
    )


def resident_bytes(members: Iterable[Process]) -> int:
    """Memory of this machine that `members` hold; what they share is counted once, where the most of it is mapped."""
    held = [_resident_pages(one.pid) for one in members]
    private, shared = sum(one - other for one, other in held), max((other for _, other in held), default=0)
    return (private + shared) * os.sysconf("SC_PAGE_SIZE")


def _resident_pages(pid: int) -> tuple[int, int]:
    """All of them, and those that can be shared."""
    try:
        fields = (_PROC / str(pid) / "statm").read_text().split()
    except OSError:  # it ended meanwhile
        return 0, 0
    return int(fields[1]), int(fields[2])


def spawn(plan: LaunchPlan, output: Path) -> Process:
    """Start `plan` in a session of its own, writing straight to `output`. Raises OSError.

    Nothing of the child hangs on the deck: no pipe that could fill or break, no controlling terminal.
    """
    log = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        pid = os.posix_spawnp(
            plan.argv[0],
            plan.argv,
            plan.environment,
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        )
    finally:
        os.close(log)
    entry = read_entry(pid)  # our child: it stays in the table until we collect it
    if entry is None:
        raise ProcessLookupError(f"process {pid} cannot be seen in /proc")
    return entry.process


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone."""
    descriptor = _open(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def wait_exit(process: Process) -> Exit:
    """Wait until this process has ended, and collect it if it is our child."""
    descriptor = _open(process)
    if descriptor is None:
        return _collect(process)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return _collect(process)


async def wait_all(processes: Iterable[Process], timeout_seconds: float) -> frozenset[Process]:
    """Wait until all have ended; the ones that had not after `timeout_seconds`."""
    waits = {asyncio.create_task(wait_exit(process)): process for process in processes}
    if not waits:
        return frozenset()
    try:
        _, pending = await asyncio.wait(waits, timeout=timeout_seconds)
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return frozenset(waits[task] for task in pending)


def _open(process: Process) -> int | None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    entry = read_entry(process.pid)
    if entry is not None and entry.process == process:
        return descriptor
    os.close(descriptor)
    return None


#: How children of this deck ended, for whoever asks after they were collected.
_collected: dict[Process, Exit] = {}
_COLLECTED_LIMIT = 256


def _collect(process: Process) -> Exit:
    if process in _collected:
        return _collected[process]
    try:
        result = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return Exit()  # not our child: an adopted engine, or a worker
    if result is None:
        return Exit()
    ended = Exit(code=result.si_status) if result.si_code == os.CLD_EXITED else Exit(signal=result.si_status)
    if len(_collected) >= _COLLECTED_LIMIT:
        _collected.pop(next(iter(_collected)))
    _collected[process] = ended
    return ended


def _read_marker(pid: int) -> str | None:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or another user's: in both cases none of ours
        return None
    return _marker_in(environment)


def _marker_in(environment: bytes) -> str | None:
    prefix = f"{MARKER_VARIABLE}=".encode()
    for item in environment.split(b"\0"):
        if item.startswith(prefix):
            return item[len(prefix) :].decode("ascii", "replace")
    return None


def names_of(processes: Iterable[Process]) -> Mapping[int, str]:
    """pid -> name, for the log."""
    found: dict[int, str] = {}
    for process in processes:
        try:
            found[process.pid] = (_PROC / str(process.pid) / "comm").read_text().strip()
        except OSError:  # it ended meanwhile
            continue
    return found
