"""From bytes to lines."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.supervisor.arrivals import Arrivals
from app.supervisor.logfile import LogCursor, LogFile
from app.supervisor.loglines import CUT_MARK, MAX_CHARACTERS, LineFolder, LineReader, clean, matches

NOW = time.mktime(time.strptime("2026-11-30 12:00:00", "%Y-%m-%d %H:%M:%S"))


def texts(data: bytes) -> list[str]:
    folder = LineFolder(0)
    raws = list(folder.feed(data))
    if (rest := folder.unfinished()) is not None:
        raws.append(rest)
    return [clean(raw.data, raw.cut) for raw in raws]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"Loading:  10%|#\rLoading:  20%|##\rLoading:  30%|###", ["Loading:  30%|###"]),
        (b"\rLoading:  10%\rLoading: 100%\nnext\n", ["Loading: 100%", "next"]),
        (b"bar 5%\r", ["bar 5%"]),
        (b"windows\r\nline\r\n", ["windows", "line"]),
        (b"\x1b[32mINFO\x1b[0m up\x1b[A\x1b[2K\n", ["INFO up"]),
        (b"\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\n", ["text link"]),
        (b"bad \xff\xfe utf-8 \xe4\xb8\xbb\n", ["bad \ufffd\ufffd utf-8 主"]),
        (b"<script>alert(1)</script>\n", ["<script>alert(1)</script>"]),
        (b"a\x00b\x07c\td\n", ["abc\td"]),
        (b"", []),
    ],
)
def test_what_a_terminal_would_show(data: bytes, expected: list[str]) -> None:
    """Progress bars are one line with their last state; nothing of an escape code is left."""
    assert texts(data) == expected


@given(st.binary(max_size=300), st.integers(1, 40))
def test_chunks_do_not_matter(data: bytes, size: int) -> None:
    """However the bytes arrive, the same lines come out, with the same numbers."""
    whole, pieces = LineFolder(0), LineFolder(0)
    expected = list(whole.feed(data))
    found = [raw for at in range(0, len(data), size) for raw in pieces.feed(data[at : at + size])]
    assert found == expected
    assert pieces.unfinished() == whole.unfinished() and pieces.position == len(data)


def test_long_line_is_cut_and_memory_bounded() -> None:
    """A line of 300 kB is shown to its limit with a mark, and is never held as a whole."""
    folder = LineFolder(0)
    for _ in range(300):
        assert list(folder.feed(b"x" * 1000)) == []
        unfinished = folder.unfinished()
        assert unfinished is not None and len(unfinished.data) <= 4 * MAX_CHARACTERS + 4
    (line,) = folder.feed(b"\n")
    assert clean(line.data, line.cut) == "x" * MAX_CHARACTERS + CUT_MARK


def test_endless_progress_bar_is_bounded() -> None:
    """Eight minutes without a newline hold one line's worth of memory."""
    folder = LineFolder(0)
    for step in range(10_000):
        list(folder.feed(f"\rLoading {step}".encode()))
    unfinished = folder.unfinished()
    assert unfinished is not None and unfinished.data == b"Loading 9999" and unfinished.start == 0


@pytest.mark.parametrize(
    ("text", "level", "dated"),
    [
        ("(APIServer pid=1) INFO 11-30 01:29:47 [api_utils.py:286] x", "info", True),
        ("(EngineCore pid=22) ERROR 11-29 01:29:47 [core.py:1] x", "error", True),
        ("WARNING 11-30 01:29:47 [x.py:1] x", "warning", True),
        ('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', "info", False),
        ("plain words", "", False),
        ("INFORMATION", "", False),
        ("Traceback (most recent call last):", "error", False),
    ],
)
def test_levels(text: str, level: str, dated: bool) -> None:
    """Level and time come from the engine's own prefix."""
    folder = LineFolder(0)
    (raw,) = folder.feed(text.encode() + b"\n")
    line = LineReader(NOW).read(raw)
    assert line.level == level and (line.at is not None) == dated


def test_year_is_the_latest_that_fits() -> None:
    """The log has no year: a December line read in January is last year's."""
    folder = LineFolder(0)
    (raw,) = folder.feed(b"INFO 12-31 23:59:59 [x.py:1] x\n")
    january = time.mktime(time.strptime("2027-01-01 00:10:00", "%Y-%m-%d %H:%M:%S"))
    at = LineReader(january).read(raw).at
    assert at is not None and time.localtime(at).tm_year == 2026


def test_a_line_without_a_time_has_the_one_at_which_it_came(tmp_path: Path) -> None:
    """Half an hour after the last logged line an access line is not shown as if it came with that; over a rotation
    too."""
    path, came = tmp_path / "a.log", NOW
    log = LogFile(path, clock=lambda: came)
    cursor = LogCursor(log, 0, NOW)
    path.write_bytes(b"INFO 11-30 11:30:00 [a.py:1] a\n")
    cursor.take()
    came = NOW + 5
    with path.open("ab") as writer:
        writer.write(b'INFO:     127.0.0.1:1 - "GET /"\n  more\n')
    assert [line.at for line in cursor.take().lines] == [came, came]
    assert log.rotate_if_large(limit=5)
    path.write_bytes(b"last")
    came = NOW + 9
    assert [line.at for line in log.tail(20, "", "", NOW)] == [NOW - 1800, NOW + 5, NOW + 5, NOW + 9]


def test_a_rotation_without_room_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: the log and those of before stay, and the next try moves it as a whole."""
    path = tmp_path / "a.log"
    log = LogFile(path)
    for text in (b"one\n", b"two\n"):
        path.write_bytes(text)
        log.rotate_if_large(limit=1)
    path.write_bytes(b"three\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                log.rotate_if_large(limit=1)
    assert [line.text for line in log.tail(9, "", "", NOW)] == ["two", "three"]
    assert {file.name for file in tmp_path.iterdir()} == {"a.log", "a.log.1", "a.log.2"}
    assert log.rotate_if_large(limit=1)
    assert [line.number for line in log.tail(9, "", "", NOW)] == [9]


def test_the_times_of_what_came_are_kept_in_bounded_memory() -> None:
    """The oldest are forgotten; a file that was emptied begins anew."""
    arrivals = Arrivals(10, most=4)
    for end in range(11, 31):
        arrivals.note(end, float(end))
        arrivals.note(end, 99.0)
    assert [arrivals.at(place) for place in (0, 9, 10, 20)] == [None] * 4
    assert [arrivals.at(place) for place in (28, 29, 30)] == [29.0, 30.0, None]
    arrivals.note(3, 40.0)
    assert (arrivals.at(2), arrivals.at(29)) == (None, None)
    arrivals.note(5, 41.0)
    assert arrivals.at(4) == 41.0


def test_a_line_that_nobody_saw_come_has_the_time_of_the_line_before(tmp_path: Path) -> None:
    """Written before this deck was started; a follower that begins there knows it too."""
    path = tmp_path / "a.log"
    head = b"no time yet\nINFO 11-30 01:00:00 [a.py:1] a\nTraceback (most recent call last):\n"
    path.write_bytes(head + b'  File x\nINFO:     127.0.0.1:1 - "GET /"\nINFO 11-30 01:00:07 [a.py:1] b\n  more\n')
    log = LogFile(path)
    at = [line.at for line in log.tail(20, "", "", NOW)]
    assert at[0] is None and at[1] is not None
    assert at[1:5] == [at[1]] * 4 and at[5:] == [at[1] + 7] * 2
    followed = LogCursor(log, len(head), NOW).take().lines
    assert [(line.at, line.level) for line in followed[:2]] == [(at[1], "error"), (at[1], "info")]


def test_traceback_counts_as_error() -> None:
    """Whoever looks for errors sees the whole traceback."""
    data = (
        b"INFO 11-30 01:00:00 [a.py:1] a\n"
        b"Traceback (most recent call last):\n  File x\nValueError: y\n"
        b"INFO 11-30 01:00:01 [a.py:1] b\n"
    )
    reader = LineReader(NOW)
    lines = [reader.read(raw) for raw in LineFolder(0).feed(data)]
    assert [line.text for line in lines if matches(line, "", "error")] == [
        "Traceback (most recent call last):",
        "  File x",
        "ValueError: y",
    ]


def test_rotation_keeps_numbers_and_lines(tmp_path: Path) -> None:
    """A reader goes on over a rotation without losing or renumbering a line."""
    path = tmp_path / "a.log"
    log = LogFile(path)
    cursor = LogCursor(log, 0, NOW)
    path.write_bytes(b"one\ntwo\n")
    first = cursor.take()
    with path.open("ab") as writer:
        writer.write(b"three\n")
        writer.flush()
        assert log.rotate_if_large(limit=5)
        writer.write(b"four\n")  # the engine goes on with its old file handle
    second = cursor.take(), cursor.take()
    assert [line.text for line in first.lines] == ["one", "two"]
    assert [line.text for batch in second for line in batch.lines] == ["three", "four"]
    assert [(line.number, line.text) for line in log.tail(3, "", "", NOW)] == [(5, "two"), (9, "three"), (15, "four")]
    assert (tmp_path / "a.log.1").stat().st_mode & 0o777 == 0o600
    assert LogFile(path).end == log.end


def test_rotation_keeps_a_few_files(tmp_path: Path) -> None:
    """Old output does not fill the disk."""
    log = LogFile(tmp_path / "a.log")
    for turn in range(6):
        (tmp_path / "a.log").write_bytes(b"%d\n" % turn * 10)
        log.rotate_if_large(limit=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2", "a.log.3"]


def test_progress_updates_share_a_number(tmp_path: Path) -> None:
    """A viewer replaces a line by its number; an unchanged unfinished line is not sent again."""
    path = tmp_path / "a.log"
    log = LogFile(path)
    cursor = LogCursor(log, 0, NOW)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"start\n\r 10%")
        first = cursor.take()
        again = cursor.take()
        writer.write(b"\r 20%")
        second = cursor.take()
        writer.write(b"\r100%\nend\n")
        third = cursor.take()
    assert [(line.number, line.text) for line in first.lines] == [(1, "start"), (7, " 10%")]
    assert again.lines == ()
    assert [(line.number, line.text) for line in second.lines] == [(7, " 20%")]
    assert [line.text for line in third.lines] == ["100%", "end"] and third.lines[0].number == 7


def test_backlog_is_skipped_and_counted(tmp_path: Path) -> None:
    """A reader that is far behind jumps ahead and says how many lines it left out."""
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(100_000)))
    cursor = LogCursor(LogFile(path), 0, NOW, backlog_bytes=7000)
    batch = cursor.take(limit=10)
    assert batch.lines[-1].text == "099999" and len(batch.lines) == 10
    assert batch.skipped == 99_990


def test_emptied_by_somebody_else(tmp_path: Path) -> None:
    """A log that was cut from outside is followed from where it is."""
    path = tmp_path / "a.log"
    path.write_bytes(b"old\n" * 100)
    cursor = LogCursor(LogFile(path), 0, NOW)
    cursor.take()
    path.write_bytes(b"")
    cursor.take()
    path.write_bytes(b"new\n")
    assert [line.text for line in cursor.take().lines] == ["new"]
