"""What the commands print."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.client import DeckClient
from app.cli.demo import closing_words, request_line
from app.cli.output import table
from app.cli.profiles import Files, validate
from app.cli.server import banner, curl_line
from app.config import Settings
from app.demo.player import Played, summarise
from app.demo.traffic import Kind, Turn
from app.errors import InvalidInput

ORIGIN = {
    "window_seconds": 180.0,
    "input_tokens": 1000,
    "vram_tokens": 500,
    "host_tokens": 100,
    "recomputed_tokens": 400,
    "reason": None,
}


def played(kind: Kind, seconds: float, cached: int | None = None) -> Played:
    return Played(63.2, Turn("main-1", 3, kind, 20_000, 8), 20_100, cached, seconds, seconds + 1)


@pytest.mark.parametrize("model", ["demo", "org/mo'del", 'mo"del $HOME `x`'])
def test_the_curl_line_survives_a_shell(model: str) -> None:
    """Whatever the model is called, the shell hands curl the JSON that was meant."""
    arguments = shlex.split(curl_line(Settings(port=8700), model))
    assert json.loads(arguments[arguments.index("-d") + 1])["model"] == model
    assert arguments[:2] == ["curl", "http://127.0.0.1:8700/v1/completions"]


def test_beyond_this_machine_the_curl_line_signs_in() -> None:
    """The door asks for the token there."""
    assert "Authorization: Bearer" in curl_line(Settings(host="0.0.0.0"), "demo")
    assert "Authorization" not in curl_line(Settings(), "demo")


def test_a_token_that_was_set_is_not_printed() -> None:
    """Only one that the deck made itself is shown, with its place."""
    welcome = {"url": "http://x", "token": None, "token_from": "TIERDECK_ADMIN_TOKEN", "curl": None, "next": "n"}
    assert "TIERDECK_ADMIN_TOKEN" in banner(welcome)
    own = banner({**welcome, "token": "abc", "token_from": "/data/admin-token"})
    assert "abc" in own and "/data/admin-token" in own


def test_a_request_is_one_line() -> None:
    """When, who, how much of it was cached, how fast; without the engine's word on it, nothing is claimed."""
    line = request_line(played(Kind.RETURNS, 0.31, cached=19_968))
    assert "01:03" in line and "20,100 tokens" in line and "19,968 cached" in line and "0.31 s" in line
    assert "cached" not in request_line(played(Kind.RETURNS, 0.31))


def test_the_closing_words_compare_cold_and_back() -> None:
    """With the origin of the window; what is not known is said to be so."""
    words = closing_words(summarise([played(Kind.NEW, 10.0), played(Kind.RETURNS, 0.25)]), ORIGIN)
    assert "40 times faster" in words and "host 10.0%" in words and "VRAM 50.0%" in words
    unknown = closing_words(summarise([]), {**ORIGIN, "input_tokens": None, "reason": "no_scrape"})
    assert "not known (no_scrape)" in unknown


def test_an_engine_that_does_not_count_is_not_made_to() -> None:
    """What was sent is marked as about; nothing is printed as if the engine had said it."""
    silent = replace(played(Kind.NEW, 10.0), prompt_tokens=None)
    assert "~20,000 tokens" in request_line(silent)
    assert "not counted" in closing_words(summarise([silent]), None)


def test_a_table_is_aligned_and_missing_is_a_dash() -> None:
    """Never 0 or None for what is not there."""
    lines = table([{"a": "long value", "b_c": None}, {"a": "x", "b_c": 1.5}], ("a", "b_c")).splitlines()
    assert lines == ["a           b c", "long value  -", "x           1.5"]


@pytest.mark.parametrize(
    ("content", "why"), [(b"\xff\xfe", "it is not UTF-8 text"), (None, "No such file or directory")]
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, why: str) -> None:
    """In words that do not come from the codec."""
    file = tmp_path / "transfer.json"
    if content is not None:
        file.write_bytes(content)
    client = DeckClient(Settings(data_dir=tmp_path))
    with pytest.raises(InvalidInput) as caught:
        validate(client, Files(file, None, None), depth=1, fleet=None, json_output=False)
    assert caught.value.message == f"{file} cannot be read: {why}."
