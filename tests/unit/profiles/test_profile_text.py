"""What an operator types into a profile: read exactly, or refused with the place and the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.derive.profile_text import Change, changes, parse_object
from app.profiles.flags import check_environment, check_flags


def messages(findings: list[Any]) -> dict[str, str]:
    return {finding.path: finding.message for finding in findings}


MALFORMED = {
    "size with a unit": ('{"cpu_bytes_to_use": 2g}', 1, 23, 'in quotes, as in "2 GiB"'),
    "trailing comment": ('{"cpu_bytes_to_use": "5368709120", # 5GB\n"eviction_policy": "lru"}', 1, 36, "no comments"),
    "truncated": ('{"kv_connector": "Offloading', 1, 18, "Line 1, column 18"),
    "empty object cut": ("{", 1, 2, "ends too early"),
    "conflict markers": ("<<<<<<< HEAD\n{}\n=======", 1, 1, "merge-conflict"),
    "web page": ("<!DOCTYPE html><html></html>", 1, 1, "web page"),
    "list": ("[1, 2]", 1, 1, "not a list"),
    "text": ('"abc"', 1, 1, "not text"),
    "number": ("17", 1, 1, "not a number"),
    "null": ("null", 1, 1, "not null"),
    "single quotes": ("{'a': 1}", 1, 2, "column 2"),
    "trailing comma": ('{"a": 1,\n}', 2, 1, "remove the comma"),
}


@pytest.mark.parametrize(("text", "line", "column", "words"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_text_is_refused_with_its_place(text: str, line: int, column: int, words: str) -> None:
    """Text that is not one JSON object gives exactly one error with line, column and what to write."""
    parsed = parse_object(text, "flags")
    assert [f.severity for f in parsed.findings] == ["error"]
    finding = parsed.findings[0]
    assert words in finding.message
    assert (finding.line, finding.column) == (line, column)


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', '{"a": ' * 5000 + "1" + "}" * 5000]
)
def test_values_that_json_readers_disagree_on_are_refused(text: str) -> None:
    """NaN, infinities, doubled keys and endless nesting are errors, never silently something else."""
    assert not parse_object(text, "flags").is_valid


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": 1,\n "b": NaN}', 2, 7),
        ('{"NaN": "NaN", "b": [1, -Infinity]}', 1, 25),
        ('{"a": 1, "b": {"c": 2,\n"c": 3}}', 2, 1),
        ('{"a": {"c": 1}, "b": {"c": 2}, "a": 3}', 1, 32),
        ('{"a": "99999999999999999999", "b": 99999999999999999999}', 1, 36),
        ('{"a": 1e999}', 1, 7),
        ('{"a": "\\ud83d\\ude00 \\ud800"}', 1, 21),
        ("[" * 5000, 1, 101),
    ],
)
def test_what_a_json_reader_refuses_without_a_place_has_one(text: str, line: int, column: int) -> None:
    """The first one, not what looks like it inside a text."""
    (finding,) = parse_object(text, "flags").findings
    assert (finding.line, finding.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "key"), [('{"b": [0, {"c": 2, "c": 3}]}', "flags.b.1.c"), ('{"a": 1, "a": 2}', "flags.a")]
)
def test_a_key_that_is_written_twice_names_its_object(text: str, key: str) -> None:
    """By its path."""
    (finding,) = parse_object(text, "flags").findings
    assert f'"{key}" is written twice' in finding.message


@given(st.text())
def test_any_text_gives_an_answer(text: str) -> None:
    """Whatever is pasted, reading it gives a value or findings, never an exception."""
    parsed = parse_object(text, "flags")
    assert parsed.is_valid or parsed.findings[0].message


@given(st.dictionaries(st.text(), st.integers(-(10**18), 10**18) | st.text() | st.booleans() | st.none(), max_size=5))
def test_valid_json_is_read_as_written(value: dict[str, Any]) -> None:
    """A JSON object comes back equal, in any script."""
    assert parse_object(json.dumps(value), "flags").value == value


def test_flags_name_their_remedy() -> None:
    """Wrong flag names, flags of the deck and values no command line can carry are errors at their path."""
    found = messages(
        check_flags({"--max_model_len": 1, "port": 1, "enforce-eager": True, "a": {"b": 1}, "lora-modules": ["x", "y"]})
    )
    assert set(found) == {"flags.--max_model_len", "flags.port", "flags.a"}
    assert "max-model-len" in found["flags.--max_model_len"]


def test_environment_takes_texts_alone() -> None:
    """Environment values are texts; the deck's own variables are not for profiles."""
    found = messages(check_environment({"GOOD": "1", "BAD": 1, "TIERDECK_PORT": "1", "no dash": "x"}))
    assert set(found) == {"environment.BAD", "environment.TIERDECK_PORT", "environment.no dash"}


def test_changes_are_listed_field_by_field() -> None:
    """Two versions differ in exactly the fields listed; absent and null differ too."""
    old = {"flags": {"a": 1, "b": None, "same": [1]}, "x": {"y": 1}}
    new = {"flags": {"a": 2, "same": [1], "c": {"d": 1}}, "x": {"y": 1}}
    assert changes(old, new) == [
        Change("flags.a", 1, 2),
        Change("flags.b", None, None),
        Change("flags.c.d", None, 1),
    ]


@pytest.mark.parametrize(
    ("value", "is_fine"), [("3600", True), ("0", True), ("-1", False), ("nan", False), ("1 h", False)]
)
def test_a_profile_may_have_its_own_limit_on_silent_starts(value: str, is_fine: bool) -> None:
    """The one variable of the deck that belongs into a profile; what it says is checked while it is typed."""
    found = check_environment({"TIERDECK_START_TIMEOUT_SECONDS": value})
    assert [finding.path for finding in found] == ([] if is_fine else ["environment.TIERDECK_START_TIMEOUT_SECONDS"])
