"""What a new user writes wrong: each is told where it stands, in JSON's words, with the click that mends it."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidInput
from app.planner.plan import check_chunk
from app.profiles.context import ModelFacts
from tests.unit.profiles.drafts import DENSE, GIB, OURS, at, checked, config, document, patched, severities

CONNECTOR = "kv-transfer-config.kv_connector"


def _chunk(blocks: int, tokens: int | None) -> InvalidInput | None:
    try:
        check_chunk(blocks, tokens)
    except InvalidInput as refusal:
        return refusal
    return None


WINDOWS = ModelFacts("m", is_hybrid=False, refused_chunk=_chunk)
EIGHT_HEADS = ModelFacts("m", is_hybrid=False, takes_ranks=lambda ranks: 8 % ranks == 0)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("OfloadingConnector", "OffloadingConnector"),
        ("OffloadingConector", "OffloadingConnector"),
        ("offloadingconnector", "OffloadingConnector"),
        ("Offloading", "OffloadingConnector"),
        ("LMCacheConnector", "LMCacheConnectorV1"),
        ("MultiConector", "MultiConnector"),
        ("SimpleCPUOffload", "SimpleCPUOffloadConnector"),
    ],
)
def test_a_mistyped_connector_is_named_with_the_nearest(name: str, near: str) -> None:
    """The click writes it."""
    transfer = config(connector=name)
    finding = at(checked(transfer), CONNECTOR, "error")
    assert patched(document(transfer), finding.fixes[0])["kv_transfer_config"]["kv_connector"] == near
    assert checked(transfer, allow=(CONNECTOR, "kv-transfer-config.kv_connector_extra_config.*")).is_valid


def test_keys_under_a_mistyped_connector_are_those_of_the_one_that_was_meant() -> None:
    """Right keys are not asked to be allowed, sizes are read, and a wrong key has its nearest."""
    extra = {**OURS, "cpu_bytes_to_use": "64 GiB"}
    found = checked(config(extra, "OfloadingConnector"))
    assert severities(found) == {CONNECTOR: "error", "cpu_bytes_to_use": "note"}
    found = checked(config({**extra, "evict_policy": "lru"}, "OfloadingConnector"))
    assert "eviction_policy" in at(found, "evict_policy", "error").message


@pytest.mark.parametrize("name", ["MyConnector", "RedisConnector", "P2pNcclConnector"])
def test_a_connector_from_elsewhere_is_not_taken_for_a_typo(name: str) -> None:
    """Nor one whose module is given, whatever it is called."""
    assert CONNECTOR not in severities(checked(config({"a": 1}, name)))
    near = config({"a": 1}, "OfloadingConnector", kv_connector_module_path="my.module")
    assert CONNECTOR not in severities(checked(near))


def test_a_small_kv_cache_was_probably_meant_as_gib() -> None:
    """As for the host tier."""
    finding = at(checked(flags={"kv-cache-memory-bytes": 10}), "flags.kv-cache-memory-bytes", "warning")
    assert "10 GiB" in finding.message
    assert finding.fixes[0].operations[0].value == 10 * GIB


@pytest.mark.parametrize(("tokens", "is_fine"), [(64, False), (128, True), (256, True)])
def test_a_step_has_a_token_for_every_sequence(tokens: int, *, is_fine: bool) -> None:
    """The engine's scheduler refuses less."""
    flags = {"max-num-batched-tokens": tokens, "max-num-seqs": 128}
    found = checked(flags=flags)
    assert found.is_valid is is_fine
    if not is_fine:
        finding = at(found, "flags.max-num-batched-tokens", "error")
        assert checked(flags=patched(document(config(), flags), finding.fixes[0])["flags"]).is_valid


@pytest.mark.parametrize(("ranks", "near"), [(3, 2), (7, 4), (16, 8), (4096, 8)])
def test_ranks_share_the_heads_evenly(ranks: int, near: int) -> None:
    """The nearest number that does is offered."""
    found = checked(flags={"tensor-parallel-size": ranks}, model=EIGHT_HEADS)
    assert at(found, "flags.tensor-parallel-size", "error").fixes[0].operations[0].value == near
    assert checked(flags={"tensor-parallel-size": near}, model=EIGHT_HEADS).is_valid


@pytest.mark.parametrize("flag", ["tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"])
@pytest.mark.parametrize("model", [None, EIGHT_HEADS])
def test_no_machine_has_so_many_devices(flag: str, model: ModelFacts | None) -> None:
    """Whatever the model."""
    assert "4096" in at(checked(flags={flag: 10**9}, model=model), f"flags.{flag}", "error").message


@pytest.mark.parametrize("key", ["blocks_per_chunk", "block_size"])
def test_chunks_of_a_model_with_sliding_windows(key: str) -> None:
    """In the planner's own words; the click leaves them out."""
    transfer = config({**OURS, key: 2})
    finding = at(checked(transfer, model=WINDOWS), key, "error")
    assert finding.message.startswith("blocks_per_chunk cannot be set for a model with sliding windows")
    mended = patched(document(transfer), finding.fixes[0])["kv_transfer_config"]
    assert checked(mended, model=WINDOWS).is_valid
    assert checked(transfer, model=DENSE).is_valid


def test_a_model_that_cannot_be_read_is_named() -> None:
    """Else nothing said would look like nothing wrong."""
    assert "/models/lost" in at(checked(unread_model="/models/lost"), "model", "note").message
    assert checked(unread_model="").findings == ()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("cpu_bytes_to_use", None, "cannot be null"),
        ("verify", None, "cannot be null"),
        ("eviction_policy", None, "cannot be null"),
        ("spec_module_path", ["x", None], 'cannot be ["x", null]'),
        ("residency", True, "cannot be true"),
        ("residency", "on", 'cannot be "on"'),
    ],
)
def test_values_are_told_as_they_were_written(key: str, value: Any, words: str) -> None:
    """In JSON's words, never in Python's."""
    assert words in at(checked(config({**OURS, key: value})), key, "error").message


def test_lists_are_told_as_json_and_one_rank_is_not_counted() -> None:
    """Also where a text is expected."""
    assert '["x"]' in at(checked({**config(), "kv_connector": ["x"]}), CONNECTOR, "error").message
    small = config({**OURS, "cpu_bytes_to_use": GIB})
    alone = at(checked(small, {"kv-cache-memory-bytes": 8 * GIB}), "cpu_bytes_to_use", "warning").message
    assert "rank" not in alone
    both = {"kv-cache-memory-bytes": 8 * GIB, "tensor-parallel-size": 2}
    assert "over 2 ranks" in at(checked(small, both), "cpu_bytes_to_use", "warning").message
