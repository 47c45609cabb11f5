"""What the planner is asked with: sizes, wishes and configs, taken or refused with a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput, TierdeckError
from app.planner.fields import read_config
from app.planner.plan import make_plan
from app.planner.wish import NAMES, read_wish
from tests.unit.planner.models import MODELS

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("5 GiB", 5_368_709_120),
        ("5 GB", 5_000_000_000),
        ("5368709120", 5_368_709_120),
        (5_368_709_120.0, 5_368_709_120),
    ],
)
def test_sizes_have_units(text: object, bytes_: int) -> None:
    """GiB and GB are different things."""
    host = read_wish({"host_bytes": text}).host
    assert host is not None and host.host_bytes == bytes_


WRONG = ["2g", "-1", -1, 1e400, float("nan"), 10**5000, True, [], {}, "x" * 5000, 0.5, "½"]


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_wrong_wishes_are_named_one_by_one(name: str, value: object) -> None:
    """Whatever is written into a field: it is taken, or refused with the field's name."""
    raw = {"host_bytes": "64GiB", "gpu_bytes": "80GB", "weights_bytes": "18GB", name: value}
    try:
        wish = read_wish(raw)
    except InvalidInput as error:
        assert error.path == name and name in error.message and len(error.message) < 250
        return
    assert (name, value) in {("mtp", True), ("utilization", 0.5)}, wish


MALFORMED = {
    "nothing": "",
    "blanks": "  \n ",
    "truncated": '{"num_hidden_layers": 32, "hidden_size": 40',
    "truncated in a list": '{"layer_types": ["full_attention",',
    "truncated in a text": '{"model_type": "qwe',
    "web page": "<!DOCTYPE html><html><body>404</body></html>",
    "web page in capitals": "<HTML>",
    "conflict": '<<<<<<< HEAD\n{"a": 1}\n=======\n{"a": 2}\n>>>>>>> theirs\n',
    "conflict inside": '{"a": 1,\n<<<<<<< HEAD\n"b": 2\n=======\n"b": 3\n>>>>>>> x\n}',
    "twice": '{"num_hidden_layers": 32, "num_hidden_layers": 64}',
    "twice inside": '{"text_config": {"head_dim": 1, "head_dim": 2}}',
    "not a number": '{"num_hidden_layers": NaN}',
    "endless": '{"num_hidden_layers": -Infinity}',
    "too many digits": '{"num_hidden_layers": ' + "9" * 5000 + "}",
    "overflowing": '{"num_hidden_layers": 1e999}',
    "list": "[1, 2]",
    "text": '"config"',
    "number": "42",
    "null": "null",
    "comment": '{"num_hidden_layers": 32 // layers\n}',
    "trailing comma": '{"num_hidden_layers": 32,}',
    "single quotes": "{'num_hidden_layers': 32}",
    "no quotes": "{num_hidden_layers: 32}",
    "python": '{"use_cache": True}',
    "two objects": '{"a": 1} {"b": 2}',
    "unit": '{"num_hidden_layers": 32k}',
    "yaml": "num_hidden_layers: 32\nhidden_size: 4096",
    "deep": '{"a":' * 100_000,
    "zero byte": '{"a": "\0"}',
    "byte order mark": '\ufeff{"a": 1}',
    "lone surrogate": '{"\\ud800": 1, "text_config": "\\ud800"}',
    "gguf": "GGUF\x03\x00\x00",
    "shell": "cat config.json",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_config_is_refused_with_a_sentence(text: str) -> None:
    """Line and column where there are any; never another exception."""
    with pytest.raises(InvalidInput) as caught:
        make_plan(read_config(text), read_wish({}))
    assert caught.value.path and caught.value.message.rstrip().endswith(".")
    assert len(caught.value.message) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(MODELS)), data=st.data())
def test_a_damaged_config_is_planned_or_refused(name: str, data: st.DataObject) -> None:
    """Any field may hold anything: a plan that is JSON, or an error of the deck's own with a path."""
    config = json.loads(json.dumps(MODELS[name].config))
    inner = config.get("text_config", config)
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
    try:
        told = make_plan(config, read_wish({"host_bytes": "64GiB", "gpu_bytes": "80GB", "weights_bytes": "1GB"}))
    except TierdeckError as error:
        assert isinstance(error, InvalidInput) and error.path
        return
    json.dumps(told.as_json(), allow_nan=False)
