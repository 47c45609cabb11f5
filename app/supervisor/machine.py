"""The memory of this machine, and how much of it a control group leaves to the deck and its engines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from app.supervisor.processes import process_table

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the mount itself is what is meant
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")

#: Version 1 writes a huge number where there is no limit.
_NO_LIMIT = 1 << 62


def memory_bytes() -> int:
    """Of the machine."""
    return int(psutil.virtual_memory().total)


def shared_bytes() -> int | None:
    """Size of the shared-memory mount; None without one."""
    try:
        return int(psutil.disk_usage(str(SHARED_MEMORY)).total)
    except OSError:
        return None


def free_bytes() -> int:
    """Of the machine, now: what can be had without ending anything."""
    return int(psutil.virtual_memory().available)


def free_shared_bytes() -> int | None:
    """Of the shared-memory mount, now; None without one."""
    try:
        return int(psutil.disk_usage(str(SHARED_MEMORY)).free)
    except OSError:
        return None


def private_bytes(marker: str) -> int:
    """What the living processes of one start take that no other shares (looks at every process)."""
    total = 0
    for pid in (entry.process.pid for entry in process_table() if entry.marker == marker and entry.alive):
        with suppress(psutil.Error):
            memory = psutil.Process(pid).memory_info()
            total += memory.rss - memory.shared
    return total


def usable_bytes() -> int:
    """What processes may take before the kernel ends one of them."""
    return min(memory_bytes(), group_limit() or memory_bytes())


def group_limit(root: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int | None:
    """The lowest memory limit of the control groups around this process, version 2 or 1; None without one."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            limits += _limits(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Of a group and of all around it. In a container the path may be the host's: then its own root counts."""
    place = root / path.lstrip("/")
    found = []
    for group in (place, *place.parents):
        if not group.is_relative_to(root):
            break
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT:
            found.append(int(text))
    return found
