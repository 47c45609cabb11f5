"""What `tierdeck profile validate` sends of the files it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from app.cli import profiles
from app.cli.client import DeckClient
from app.config import Settings
from app.errors import InvalidInput

EXPORT = '{"format": "tierdeck-profile/1", "name": "q", "kv_transfer_config": %s}'


class Listening:
    """A deck that finds nothing wrong, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def post(self, _path: str, body: dict[str, Any], **_how: Any) -> dict[str, Any]:
        self.sent = body
        return {"valid": True, "findings": [], "host_memory": [], "depth": {"summary": ""}}


def sent(file: Path, content: bytes) -> dict[str, Any]:
    file.write_bytes(content)
    deck = Listening()
    profiles.validate(cast("DeckClient", deck), profiles.Files(file, None, None), 1, None, json_output=False)
    return deck.sent


@pytest.mark.parametrize(
    ("config", "sentence", "path"),
    [
        ('{"a": NaN}', "NaN is not a number in JSON; write a finite number.", None),
        ('{"a": 1e999}', "A number here has too many digits to be meant.", None),
        (
            '{"a": {"b": 1, "b": 2}}',
            '"kv_transfer_config.a.b" is written twice; keep one.',
            "kv_transfer_config.a.b",
        ),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "This is nested too deeply to be a configuration.", None),
    ],
)
def test_an_exported_profile_that_would_be_misread_is_refused(
    tmp_path: Path, config: str, sentence: str, path: str | None
) -> None:
    """What JSON readers let pass, or turn into something else; with its path where one key is at fault."""
    with pytest.raises(InvalidInput) as caught:
        sent(tmp_path / "export.json", (EXPORT % config).encode())
    assert caught.value.message == sentence
    assert path is None or caught.value.path == path


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """An export and a config alike."""
    assert sent(tmp_path / "a.json", b"\xef\xbb\xbf" + (EXPORT % "{}").encode())["kv_transfer_config"] == {}
    assert sent(tmp_path / "b.json", b'\xef\xbb\xbf{"a": 1}')["kv_transfer_config"] == '{"a": 1}'


@pytest.mark.parametrize("content", ["{}".encode("utf-16"), b'{"a": "\xe9"}'])
def test_a_file_that_is_no_text_is_told(tmp_path: Path, content: bytes) -> None:
    """With its name."""
    with pytest.raises(InvalidInput, match=r"a\.json cannot be read: it is not UTF-8 text\."):
        sent(tmp_path / "a.json", content)


def test_what_is_no_json_is_left_to_the_deck(tmp_path: Path) -> None:
    """It tells line and column."""
    for text in ("{,}", '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", '{"a":' * 5000, json.dumps({"format": "x"})):
        assert sent(tmp_path / "a.json", text.encode())["kv_transfer_config"] == text


def test_an_argument_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    """A shell hands over any bytes; they are refused before anything is sent."""
    deck = DeckClient(Settings(data_dir=tmp_path, port=1))
    for ask in (lambda: deck.get("/profiles/\udcff"), lambda: deck.post("/profiles/validate", {"fleet": "\udcff"})):
        with pytest.raises(InvalidInput, match="half a character"):
            ask()
