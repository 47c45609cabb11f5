"""Where host memory that outlives its engine lies: one private directory per engine in the shared-memory
mount, found by its name, held by leases, given back as a whole. Standard library only: the deck uses it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

MOUNT: Final = Path("/dev/shm")  # noqa: S108 - the shared-memory mount itself is what is meant
PREFIX: Final = "tierdeck-"
#: Names an engine's memory. The deck sets it for each of its engines.
ID_VARIABLE: Final = "TIERDECK_RESIDENCY_ID"

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%-]{0,149}")
_RETRY_SECONDS = 0.2
_held: set[Path] = set()  # by this process: its own locks do not keep it out


class InUseError(Exception):
    """A living process has the lease; the text names it."""


class NotPrivateError(Exception):
    """What lies at the place is not ours alone."""


def directory_of(identifier: str, mount: Path = MOUNT) -> Path:
    """The directory of one engine's memory. ValueError if it cannot be a name."""
    if not _IDENTIFIER.fullmatch(identifier):
        raise ValueError(f"{identifier!r} cannot name an engine's host memory: letters, digits, '.', '_' and '-' only")
    return mount / f"{PREFIX}{identifier}"


def deck_prefix(data_dir: Path) -> str:
    """How the identifiers begin that the deck with this data directory gives."""
    return hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:10] + "-"


def make_private(directory: Path) -> None:
    """Make it, or accept it if nobody else owns it or can look into it."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_private(directory)


def check_private(directory: Path) -> None:
    """Raise if another user made it, or could read it: anybody may make names in the mount."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivateError(f"{directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{directory} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise NotPrivateError(f"{directory} can be opened by other users: it must have mode 0700")


def open_private(path: Path, size: int | None = None) -> int:
    """A descriptor of a file of ours, made with mode 0600 if need be, and grown to `size` with a hole."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotPrivateError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if size is not None and status.st_size < size:
        os.ftruncate(descriptor, size)
    return descriptor


def map_private(path: Path, size: int) -> mmap.mmap:
    """Such a file in this process's memory."""
    descriptor = open_private(path, size)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """Write such a file anew. Whoever reads it, or is killed meanwhile, has the old one or the new one."""
    scratch = path.with_suffix(".tmp")
    with os.fdopen(open_private(scratch), "w") as file:
        file.truncate(0)
        yield file
    scratch.replace(path)


class Lease:
    """The right to use what a lock file stands for. The system takes it back when the process ends,
    however that ends; children do not inherit it.
    """

    def __init__(self, path: Path, patience_seconds: float = 0.0) -> None:
        self._path = path
        if path in _held:
            raise InUseError(f"{path.parent.name} is in use by this process itself")
        self._descriptor = open_private(path)
        try:
            self._lock(time.monotonic() + patience_seconds)
        except InUseError:
            os.close(self._descriptor)
            raise
        _held.add(path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def _lock(self, until: float) -> None:
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= until:
                    holder = os.pread(self._descriptor, 20, 0).decode(errors="replace") or "unknown"
                    raise InUseError(f"{self._path.parent} is in use by process {holder}") from None
                time.sleep(_RETRY_SECONDS)  # there is no event: the holder may be ending
            else:
                return

    def release(self) -> None:
        """Give it back."""
        if self._path in _held:
            _held.discard(self._path)
            os.close(self._descriptor)


def used_bytes(directory: Path) -> int:
    """Memory that the files under `directory` take: they have holes, so their length says little."""
    return sum(path.lstat().st_blocks * 512 for path in _files(directory))


def free_bytes(mount: Path = MOUNT) -> int:
    """Memory that the mount could still take."""
    found = os.statvfs(mount)
    return found.f_bavail * found.f_frsize


def shortage(directory: Path, wanted_bytes: int) -> str | None:
    """One clause with both numbers if `wanted_bytes` cannot lie there, counting what lies there now."""
    possible = free_bytes(directory.parent) + used_bytes(directory)
    if wanted_bytes <= possible:
        return None
    return f"{wanted_bytes} bytes are wanted in {directory.parent}, but only {possible} are free there"


def forget(directory: Path) -> int:
    """Give the memory back; the bytes that were freed. InUseError while an engine has it."""
    if not directory.is_dir():
        return 0
    check_private(directory)
    leases = []
    try:
        leases = [Lease(path) for path in _files(directory) if path.suffix == ".lock"]
        freed = used_bytes(directory)
        # Renamed first: whoever comes meanwhile finds nothing instead of a half.
        gone = directory.with_name(f"{directory.name}.gone-{os.getpid()}")
        directory.rename(gone)
        shutil.rmtree(gone)
    finally:
        for lease in leases:
            lease.release()
    return freed


def existing(prefix: str, mount: Path = MOUNT) -> list[str]:
    """Identifiers of the memory in the mount that is ours and begins with `prefix`."""
    found = []
    for path in mount.glob(f"{PREFIX}{prefix}*"):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            found.append(path.name.removeprefix(PREFIX))
    return sorted(found)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
