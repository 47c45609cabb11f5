"""Where requests' input came from, from the engine's side to the deck's: ids, sums, the file and its bounds."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.scrape.served import read_served
from engine.served import OLDER_NAME, SERVED_NAME, ServedBook, ServedFile, ServedRequest, asked_as, served_below


def request(name: str, prompt: int = 100, vram: int = 0, host: int = 0, output: int = 1) -> Any:
    """As far as the book looks at vLLM's."""
    stats = SimpleNamespace(num_local_cached_tokens=vram, num_external_cached_tokens=host)
    return SimpleNamespace(request_id=name, prefill_stats=stats, num_prompt_tokens=prompt, num_output_tokens=output)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The directory of one scheduler's memory."""
    tmp_path.chmod(0o700)
    (tmp_path / "engine-0").mkdir()
    return tmp_path / "engine-0"


def tell(engine: Path, *requests: Any, most_bytes: int = 1 << 20) -> None:
    book = ServedBook()
    for one in requests:
        book.began(one)
        book.ended(one)
    ServedFile(engine, book, most_bytes)(last=False)


@pytest.mark.parametrize(
    ("internal", "asked"),
    [
        ("cmpl-0a1b-0-9f00aa11", ("0a1b", 0)),
        ("cmpl-my-own-7-12-9f00aa11", ("my-own-7", 0)),
        ("chatcmpl-my-own-7-9f00aa11", ("my-own-7", 0)),
        ("2_chatcmpl-0a1b-9f00aa11", ("0a1b", 2)),
        ("resp_0a1b-9f00aa11", ("resp_0a1b", 0)),
        ("resp_0a1b_1-9f00aa11", ("resp_0a1b", 0)),
        ("chatcmpl-d6f8f25a0d0c4f0b9a54f1d6", ("d6f8f25a0d0c4f0b9a54f1d6", 0)),
        ("embd-0a1b-3-9f00aa11", ("0a1b", 0)),
        ("other-0a1b-9f00aa11", ("other-0a1b", 0)),
        ("", ("", 0)),
    ],
)
def test_an_id_is_known_by_what_the_client_was_called(internal: str, asked: tuple[str, int]) -> None:
    assert asked_as(internal) == asked


def test_what_an_engine_tells_is_read_by_its_deck(engine: Path) -> None:
    """Private, by the id that was asked with, of both sources."""
    tell(engine, request("chatcmpl-a-00000000", 1_000, 384, 512, 7), request("cmpl-b-0-00000000"))
    assert stat.S_IMODE((engine / SERVED_NAME).stat().st_mode) == 0o600
    assert read_served(engine.parent) == {
        "a": ServedRequest("a", 1_000, 384, 512, 7),
        "b": ServedRequest("b", 100, 0, 0, 1),
    }


def test_prompts_are_added_up_and_samples_share_theirs(engine: Path) -> None:
    tell(engine, request("cmpl-two-0-00000000", 100, 10, 20, 3), request("cmpl-two-1-00000000", 50, 1, 2, 4))
    tell(engine, request("0_chatcmpl-n-00000000", 100, 10, 20, 3), request("1_chatcmpl-n-00000000", 100, 90, 0, 4))
    assert served_below(engine.parent) == {
        "two": ServedRequest("two", 150, 11, 22, 7),
        "n": ServedRequest("n", 100, 10, 20, 7),
    }


def test_one_that_never_had_blocks_is_not_told_and_one_that_is_pushed_out_is_told_once() -> None:
    """vLLM takes the statistics away at the first token; a request that begins again has none."""
    book, one = ServedBook(), request("cmpl-a-0-00000000", 100, 10, 20, 3)
    book.ended(request("cmpl-never-0-00000000"))
    book.began(one)
    book.began(SimpleNamespace(request_id=one.request_id, prefill_stats=None))
    book.ended(one)
    book.ended(one)
    assert book.take() == [ServedRequest("cmpl-a-0-00000000", 100, 10, 20, 3)]
    assert book.take() == []


def test_what_could_not_be_loaded_was_computed() -> None:
    """And only of that one request."""
    book = ServedBook()
    found = [request(name, 100, 10, 20) for name in ("bad", "good")]
    for one in found:
        book.began(one)
    book.lost({"bad", "unknown"})
    for one in found:
        book.ended(one)
    book.began(again := request("bad", 100, 10, 20))
    book.ended(again)
    assert [one.host_tokens for one in book.take()] == [0, 20, 20]


def test_the_file_is_bounded_and_the_newest_are_always_there(engine: Path) -> None:
    for number in range(500):
        tell(engine, request(f"cmpl-{number}-0-00000000"), most_bytes=2_000)
    found = served_below(engine.parent)
    assert "499" in found and "450" in found and "0" not in found
    assert sum(path.stat().st_size for path in engine.iterdir()) < 2 * 2_100
    assert {path.name for path in engine.iterdir()} == {SERVED_NAME, OLDER_NAME}


def test_a_line_that_was_cut_costs_itself_alone(engine: Path) -> None:
    """Written while the engine was killed, read while it writes, or changed by whatever."""
    tell(engine, request("cmpl-a-0-00000000"))
    path = engine / SERVED_NAME
    path.write_bytes(path.read_bytes() + b'["cmpl-cut-0-0000\n\xff\xfe\n[]\n{}\n7\nnull\n["x",1]\n["x",1,2,3,null]\n')
    tell(engine, request("cmpl-b-0-00000000"))
    path.write_bytes(path.read_bytes() + b'["cmpl-now-0-00')
    assert set(served_below(engine.parent)) == {"a", "b"}


def test_nothing_is_told_by_an_engine_without_memory_or_by_somebody_else(tmp_path: Path) -> None:
    assert read_served(tmp_path / "none") == {}
    (tmp_path / "engine-0").mkdir()
    tell(tmp_path / "engine-0", request("cmpl-a-0-00000000"))
    tmp_path.chmod(0o755)
    assert read_served(tmp_path) == {}
