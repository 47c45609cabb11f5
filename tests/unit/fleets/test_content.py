"""What a fleet is, as people write it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.fleets.content import FIELDS, Content, read_content, read_name
from app.fleets.devices import as_text, dealt_anew, group_for, read_devices

MODEL = {"model": "/models/qwen", "interpreter": "/usr/bin/python3"}


def read(profile_flags: dict[str, Any] | None = None, **asked: Any) -> Content:
    return read_content({**MODEL, **asked}, profile_flags or {})


def test_little_has_to_be_said() -> None:
    """A model is enough: its last part is the name that it is served by, and sessions go where their cache is."""
    content = read_content({"model": "/models/qwen"}, {}, interpreter="python3")
    assert (content.served_model_name, content.interpreter, content.routing) == ("qwen", "python3", "sticky")
    assert (content.devices, content.port_from, content.drain_timeout_seconds) == ((), None, None)


def test_a_change_keeps_the_rest() -> None:
    """What is left out of a change stays, however it was written."""
    first = read(devices="0,1; 2,3", port_from="8710", port_to="8719", base_flags='{"max-num-seqs": "8"}')
    again = read_content({"routing": "least_busy"}, {}, first)
    assert again.as_json() == {**first.as_json(), "routing": "least_busy"}
    assert first.base_flags == {"max-num-seqs": 8} and first.devices == (("0", "1"), ("2", "3"))
    assert set(again.as_json()) == set(FIELDS)


@pytest.mark.parametrize(
    ("asked", "path", "said"),
    [
        ({"model": ""}, "model", "path of a model"),
        ({"model": "-rf"}, "model", "path of a model"),
        ({"model": None}, "model", "path of a model"),
        ({"served_model_name": "a\nb"}, "served_model_name", "name that requests ask for"),
        ({"interpreter": " "}, "interpreter", "Python that starts"),
        ({"base_flags": {"--Max": 1}}, "base_flags.--Max", "none in front"),
        ({"base_flags": {"port": 1}}, "base_flags.port", "the deck sets --port"),
        ({"base_flags": {"max-num-seqs": 0}}, "base_flags.max-num-seqs", "too small"),
        ({"base_flags": '{"a": 1'}, "base_flags", "Line 1"),
        ({"base_flags": [1]}, "base_flags", "JSON object"),
        ({"base_flags": {"a": float("nan")}}, "base_flags", "NaN"),
        ({"base_flags": {"a": "\ud800"}}, "base_flags", "half a character"),
        ({"environment": {"A=B": "1"}}, "environment.A=B", "letters, digits"),
        ({"environment": {"A": 1}}, "environment.A", "as text"),
        ({"environment": {"TIERDECK_X": "1"}}, "environment.TIERDECK_X", "belong to the deck"),
        ({"devices": "a"}, "devices", "is no device"),
        ({"devices": {"0": 1}}, "devices", "a group for each engine"),
        ({"devices": [[0, 0]]}, "devices", "twice"),
        ({"devices": [[0], 1]}, "devices", "a group for each engine"),
        ({"port_from": 8710}, "port_to", "both ends"),
        ({"port_from": 8710, "port_to": 8709}, "port_to", "from 8710 upwards"),
        ({"port_from": 0, "port_to": 9}, "port_from", "from 1 to 65535"),
        ({"routing": "random"}, "routing", "sticky, least_busy"),
        ({"join_identical": "yes"}, "join_identical", "true or false"),
        ({"drain_timeout_seconds": -1}, "drain_timeout_seconds", "from 0"),
        ({"drain_timeout_seconds": float("inf")}, "drain_timeout_seconds", "from 0"),
        ({"modle": "x"}, "modle", "did you mean model?"),
        ({"zzz": "x"}, "zzz", "write one of model"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(asked: dict[str, Any], path: str, said: str) -> None:
    """Each field has its own sentence, and says what to write."""
    with pytest.raises(InvalidInput) as refused:
        read(**asked)
    assert refused.value.path == path and said in refused.value.message


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "..", "ü", "x" * 41, None, 1])
def test_names_are_safe_in_addresses_and_files(name: Any) -> None:
    """A fleet's name becomes part of its engines' names."""
    with pytest.raises(InvalidInput):
        read_name(name)
    assert read_name("agents-2.b") == "agents-2.b"


def test_devices_are_dealt_out_by_what_an_engine_takes() -> None:
    """One list is cut by the ranks of an engine, from the fleet's flags or the profile's; groups stay as written."""
    assert read(devices=[0, 1, 2, 3], base_flags={"tensor-parallel-size": 2}).devices == (("0", "1"), ("2", "3"))
    assert read({"tensor-parallel-size": 4}, devices="0,1,2,3").devices == (("0", "1", "2", "3"),)
    assert read(devices=["GPU-8f3a", "GPU-9b1c"]).devices == (("GPU-8f3a",), ("GPU-9b1c",))
    assert read(devices="0,1;").devices == (("0", "1"),), "an engine may see more devices than it takes"
    for wrong, said in (("0,1,2", "cannot be dealt out"), ("0;1", "too small")):
        with pytest.raises(InvalidInput, match=said):
            read(base_flags={"tensor-parallel-size": 2}, devices=wrong)


@pytest.mark.parametrize("groups", [(), (("0",),), (("0", "1"),), (("0",), ("1",)), (("0", "1"), ("2", "3"))])
def test_devices_as_shown_are_read_as_they_are(groups: tuple[tuple[str, ...], ...]) -> None:
    """What the form shows and sends back unchanged changes nothing."""
    assert read_devices(as_text(groups), 1) == groups


def test_engines_keep_their_devices() -> None:
    """A changed list takes no running engine's devices away as long as they are still in it."""
    groups = (("2",), ("0",), ("1",))
    assert dealt_anew(groups, {"a": ("0",), "b": ("9",), "c": ()}) == {"a": ("0",), "b": ("2",), "c": ("1",)}
    assert dealt_anew((), {"a": ("0",)}) == {"a": ()}
    with pytest.raises(InvalidInput, match="has 2 engines"):
        dealt_anew((("0",),), {"a": (), "b": ()})
    assert group_for(groups, [("2",), ("1",)]) == ("0",)
    assert group_for((("0",), ("0",)), [("0",)]) == ("0",), "two small engines may share a device"
    assert group_for((("0",),), [("0",)]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(FIELDS), JSON)
def test_whatever_is_sent_is_read_or_refused(field: str, value: Any) -> None:
    """Any JSON in any field gives a content that is read back as the same, or an error at that field."""
    try:
        content = read(**{field: value})
    except InvalidInput as refused:
        told = refused.path or ""
        assert told.split(".")[0] == field or (field, told) in {("port_from", "port_to"), ("port_to", "port_from")}
        return
    assert read_content({}, {}, content) == content
