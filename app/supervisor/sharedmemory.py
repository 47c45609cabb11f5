"""Shared-memory files that an engine leaves behind when it is killed.

Ours are the files that processes of the engine were seen to have open or mapped, told apart by
device, inode and name. They are removed when no living process has them open or mapped; everything
else under /dev/shm is somebody else's and stays.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.supervisor.processes import Process, process_table

DIRECTORY = Path("/dev/shm")  # noqa: S108 - the shared-memory mount itself is what is meant

#: Names of the engine's working files. A host tier that outlives its engine has another name and stays.
PATTERNS = ("psm_*", "sem.mp-*", "torch_*", "nccl-*", "vllm_dist_*", "vllm_offload_*")


@dataclass(frozen=True, order=True)
class SharedFile:
    """One file. The name alone may come again, the inode alone too."""

    name: str
    device: int
    inode: int


@dataclass(frozen=True)
class Removed:
    """What a clean-up took away."""

    names: tuple[str, ...] = ()
    freed_bytes: int = 0


def files_of(processes: Iterable[Process], directory: Path = DIRECTORY) -> frozenset[SharedFile]:
    """The files under `directory` that `processes` have open or mapped now."""
    present = _present(directory)
    used: set[tuple[int, int]] = set()
    for process in processes:
        used |= _in_use_by(process.pid, directory)
    return frozenset(file for file in present if (file.device, file.inode) in used)


def remove_unused(files: Iterable[SharedFile], directory: Path = DIRECTORY) -> Removed:
    """Remove those of `files` that still exist and that no living process uses."""
    candidates = _present(directory) & frozenset(files)
    if not candidates:
        return Removed()
    in_use: set[tuple[int, int]] = set()
    for entry in process_table():
        in_use |= _in_use_by(entry.process.pid, directory)
    unused = sorted(file for file in candidates if (file.device, file.inode) not in in_use)
    freed = sum(_remove(directory / file.name) for file in unused)
    return Removed(tuple(file.name for file in unused), freed)


def _present(directory: Path) -> frozenset[SharedFile]:
    found = set()
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in PATTERNS):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.add(SharedFile(entry.name, status.st_dev, status.st_ino))
    return frozenset(found)


def _in_use_by(pid: int, directory: Path) -> set[tuple[int, int]]:
    return _mapped_by(pid, directory) | _opened_by(pid, directory)


def _mapped_by(pid: int, directory: Path) -> set[tuple[int, int]]:
    """A semaphore is mapped under the temporary name it was made with, so the inode is what counts."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return set()
    prefix, found = f"{directory}/".encode(), set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(prefix):
            major, _, minor = fields[3].partition(b":")
            found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    return found


def _opened_by(pid: int, directory: Path) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # ended meanwhile, or another user's
        return found
    for link in links:
        with suppress(OSError):  # closed meanwhile
            if link.readlink().is_relative_to(directory):
                status = link.stat()
                found.add((status.st_dev, status.st_ino))
    return found


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_blocks * 512  # such files are sparse: their length says little
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
