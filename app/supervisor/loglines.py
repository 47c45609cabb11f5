"""From the bytes that an engine wrote to lines that can be shown. Pure.

A line has a number: one more than the position of its first byte among all bytes the engine ever
wrote to this log. Updates of a progress bar therefore share the number of their line, and a viewer
that replaces a line by its number shows what a terminal would.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 4000
CUT_MARK = " … (line cut)"

#: Of an unfinished line no more than this is kept, so that memory is bounded whatever is written.
_MAX_BYTES = 4 * MAX_CHARACTERS + 4

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?"  # titles, links and other strings
    r"|.)?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_HEAD = re.compile(
    r"^(?:\((?P<process>\S+) pid=\d+\) )?"
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:(?: (?P<at>\d\d-\d\d \d\d:\d\d:\d\d))|:\s)"
)

LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True)
class LogLine:
    """`level` is empty where the line does not tell it.

    `at` is the line's own time, else when it came, else, where nobody saw that, the time of the line before.
    """

    number: int
    at: float | None
    level: str
    text: str


@dataclass(frozen=True)
class LogBatch:
    """Lines in order; `skipped` of them before these were left out, to keep up."""

    lines: tuple[LogLine, ...]
    skipped: int


@dataclass(frozen=True)
class RawLine:
    """Bytes of one line as a terminal would have left them. `start` is the position of its first byte."""

    start: int
    data: bytes
    cut: bool
    finished: bool


class LineFolder:
    """Cuts a stream of bytes into lines, applying carriage returns, in bounded memory."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._start = position
        self._pending = b""
        self._cut = False

    def feed(self, data: bytes) -> Iterator[RawLine]:
        """The lines that `data` finishes."""
        *finished, rest = data.split(b"\n")
        for piece in finished:
            self._append(piece)
            yield RawLine(self._start, _overwrite(self._pending), self._cut, finished=True)
            self._start = self.position = self.position + 1
            self._pending, self._cut = b"", False
        self._append(rest)

    def unfinished(self) -> RawLine | None:
        """The line that has no end yet, as it looks now."""
        data = _overwrite(self._pending)
        return RawLine(self._start, data, self._cut, finished=False) if data.strip() else None

    def _append(self, piece: bytes) -> None:
        self.position += len(piece)
        if b"\r" in piece:
            self._pending, self._cut = self._pending + piece, False
            ends_in_return = self._pending.endswith(b"\r")
            self._pending = _overwrite(self._pending) + (b"\r" if ends_in_return else b"")
        elif len(self._pending) < _MAX_BYTES:
            self._pending += piece
        if len(self._pending) > _MAX_BYTES:
            self._pending, self._cut = self._pending[:_MAX_BYTES], True


def _overwrite(data: bytes) -> bytes:
    """What a terminal shows of `data`: the text behind the last carriage return that text follows."""
    body = data.rstrip(b"\r")
    return body[body.rfind(b"\r") + 1 :]


def clean(data: bytes, cut: bool = False) -> str:
    """Text without escape codes and control characters, of bounded length."""
    text = _CONTROLS.sub("", _ESCAPES.sub("", data.decode("utf-8", "replace")))
    if cut or len(text) > MAX_CHARACTERS:
        return text[:MAX_CHARACTERS] + CUT_MARK
    return text


class LineReader:
    """Adds time and level to raw lines.

    A traceback counts as an error until the next logged line. `arrived_at` tells when the byte at a position came;
    a line without a time of which it does not know was written at or after that of the one before.
    """

    def __init__(self, now: float, arrived_at: Callable[[int], float | None] = lambda _position: None) -> None:
        self._now = now
        self._arrived_at = arrived_at
        self._at: float | None = None
        self._in_traceback = False

    def read(self, raw: RawLine) -> LogLine:
        """One line, ready to be shown."""
        text = clean(raw.data, raw.cut)
        head = _HEAD.match(text)
        own = _parse_time(head["at"], self._now) if head is not None else None
        self._at = own or self._arrived_at(raw.start) or self._at
        if head is not None:
            self._in_traceback = False
            return LogLine(raw.start + 1, self._at, head["level"].lower(), text)
        self._in_traceback = self._in_traceback or text.startswith("Traceback (most recent call last)")
        return LogLine(raw.start + 1, self._at, "error" if self._in_traceback else "", text)


def _parse_time(text: str | None, now: float) -> float | None:
    """The engine's log gives local time without a year: the latest year that is not in the future."""
    if text is None:
        return None
    year = time.localtime(now).tm_year
    for candidate in (year, year - 1):
        try:
            at = time.mktime(time.strptime(f"{candidate}-{text}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            continue
        if at <= now + 86_400:
            return at
    return None


def matches(line: LogLine, search: str, level: str) -> bool:
    """True when `line` holds `search` (any case) and is at least as severe as `level`."""
    if level and (not line.level or LEVELS.index(line.level) < LEVELS.index(level)):
        return False
    return not search or search.casefold() in line.text.casefold()
