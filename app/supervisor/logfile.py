"""The file that an engine writes its output to: rotated, searched and followed in bounded memory."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from app.supervisor.arrivals import Arrivals
from app.supervisor.loglines import LineFolder, LineReader, LogBatch, LogLine, RawLine, matches

ROTATE_BYTES = 20 * 1024 * 1024
KEEP_FILES = 3
_CHUNK_BYTES = 256 * 1024
_BEFORE_BYTES = 16 * 1024
_TAIL_LIMIT_BYTES = 16 * 1024 * 1024


class LogFile:
    """One engine's log. Positions count all bytes ever written, across rotations.

    The engine holds the file open and appends, so rotation copies it and then cuts it to nothing; what
    is written between the two (microseconds) is lost.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()  # positions mean nothing in the middle of a rotation
        self._rotated_bytes = sum(size for _, size in self._old_files())
        self._arrivals = Arrivals(self.end)

    @property
    def end(self) -> int:
        """The position behind the last byte."""
        with self._lock:
            return self._rotated_bytes + _size(self.path)

    def note_arrivals(self) -> None:
        """Everything up to the end has come by now."""
        with self._lock:
            self._arrivals.note(self.end, self._clock())

    def arrived_at(self, position: int) -> float | None:
        """When the byte at `position` came, to within the time between two looks; None if nobody looked."""
        with self._lock:
            return self._arrivals.at(position)

    def read(self, position: int, limit: int = _CHUNK_BYTES) -> bytes:
        """Up to `limit` bytes from `position`, which is not before `first_position`; nothing at the end."""
        with self._lock:
            offset = position - self._rotated_bytes
            if offset >= 0:
                return _read_at(self.path, offset, limit)
            older = self._old_path(1)
            return _read_at(older, _size(older) + offset, min(limit, -offset))

    def append(self, line: str) -> None:
        """Add a line of the deck's own."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(f"{line}\n".encode())

    def first_position(self) -> int:
        """The position of the first byte that can be read: in the file before the present one."""
        with self._lock:
            return self._rotated_bytes - _size(self._old_path(1))

    def rotate_if_large(self, limit: int = ROTATE_BYTES) -> bool:
        """Move the content aside once the file is larger than `limit`; keeps the last few such files.

        Raises OSError when there is no room for the copy; then everything is as before.
        """
        if _size(self.path) <= limit:
            return False
        with self._lock:
            scratch = self._old_path(0)
            try:
                copied = _copy_and_cut(self.path, scratch)
            except OSError:
                scratch.unlink(missing_ok=True)
                raise
            for number in range(KEEP_FILES, 1, -1):
                older, newer = self._old_path(number), self._old_path(number - 1)
                if newer.exists():
                    newer.replace(older)
            scratch.replace(self._old_path(1))
            self._rotated_bytes += copied
        return True

    def tail(self, lines: int, search: str, level: str, now: float) -> list[LogLine]:
        """The last `lines` lines that match, oldest first, within the last 16 MiB of output."""
        self.note_arrivals()
        span = _CHUNK_BYTES
        while True:
            found, complete = self._tail_within(span, lines, search, level, now)
            if len(found) >= lines or complete or span >= _TAIL_LIMIT_BYTES:
                return found
            span *= 4

    def _tail_within(self, span: int, lines: int, search: str, level: str, now: float) -> tuple[list[LogLine], bool]:
        start, data = self._last_bytes(span)
        folder, reader = LineFolder(start), LineReader(now, self.arrived_at)
        raws = list(folder.feed(data))
        if (rest := folder.unfinished()) is not None:
            raws.append(rest)
        complete = len(data) < span
        if not complete:
            raws = raws[1:]  # its beginning is not within the span
        kept: deque[LogLine] = deque(maxlen=lines)
        kept.extend(line for raw in raws if matches(line := reader.read(raw), search, level))
        return list(kept), complete

    def _last_bytes(self, span: int) -> tuple[int, bytes]:
        """The last `span` bytes over the present file and the one before, and where they start."""
        with self._lock:
            present = _read_last(self.path, span)
            older = _read_last(self._old_path(1), span - len(present)) if len(present) < span else b""
            return max(0, self._rotated_bytes - len(older)), older + present

    def _old_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _old_files(self) -> list[tuple[Path, int]]:
        paths = [self._old_path(number) for number in range(1, KEEP_FILES + 1)]
        return [(path, path.stat().st_size) for path in paths if path.exists()]


class LogCursor:
    """Reads a log forward from a position, batch by batch."""

    #: More than this behind, and the middle is skipped: a flood must not be read line by line.
    BACKLOG_BYTES = 2 * 1024 * 1024

    def __init__(self, log: LogFile, position: int, now: float, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self._log = log
        self._folder = LineFolder(min(position, log.end))
        self._reader = LineReader(now, log.arrived_at)
        self._read_up_to(self._folder.position)
        self._backlog_bytes = backlog_bytes
        self._shown_unfinished: RawLine | None = None

    @property
    def behind(self) -> bool:
        """True when there is more to read."""
        return self._folder.position < self._log.end

    def take(self, limit: int | None = None) -> LogBatch:
        """What came since the last call: the newest `limit` lines of it, and how many were left out."""
        skipped = self._skip_backlog()
        data = self._log.read(self._folder.position)
        self._log.note_arrivals()
        raws = list(self._folder.feed(data))
        rest = self._folder.unfinished()
        if rest is not None and rest != self._shown_unfinished:
            raws.append(rest)
        self._shown_unfinished = rest
        lines = [self._reader.read(raw) for raw in raws]
        left_out = max(0, len(lines) - limit) if limit is not None else 0
        return LogBatch(tuple(lines[left_out:]), skipped + left_out)

    def _read_up_to(self, position: int) -> None:
        """What stands before the first line tells its time, and whether it belongs to a traceback."""
        start = max(self._log.first_position(), position - _BEFORE_BYTES)
        for raw in LineFolder(start).feed(self._log.read(start, position - start)):
            self._reader.read(raw)

    def _skip_backlog(self) -> int:
        first, position = self._log.first_position(), self._folder.position
        target = max(first, self._log.end - self._backlog_bytes)
        if position >= target and position <= self._log.end:
            return 0
        if position > self._log.end:  # somebody else emptied the file
            self._folder = LineFolder(self._log.end)
            return 0
        lines = _count_lines(self._log, position, target)
        self._folder = LineFolder(target)
        return lines


def _count_lines(log: LogFile, start: int, end: int) -> int:
    count, position = 0, max(start, log.first_position())
    while position < end:
        data = log.read(position, min(_CHUNK_BYTES * 4, end - position))
        if not data:
            break
        count += data.count(b"\n")
        position += len(data)
    return count


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_at(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def _read_last(path: Path, span: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - span))
            return file.read(span)
    except FileNotFoundError:
        return b""


def _copy_and_cut(source: Path, target: Path) -> int:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with source.open("r+b") as original, os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(original, copy, _CHUNK_BYTES)
        copied = original.tell()
        copy.flush()  # before anything is cut: it may be what finds no room
        original.truncate(0)
    return copied
