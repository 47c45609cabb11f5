"""Blocks, reservations and the two budgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import PROJECT_ROOT
from app.errors import InvalidInput
from app.planner.block_size import Sizes, block_tokens, reserved_bytes
from app.planner.geometry import read_geometry
from app.planner.host import SlotSizes, Split, reference_lengths, slot_rows
from app.planner.plan import Plan, make_plan, plan_slots_alone
from app.planner.profile import asked_by_profile
from app.planner.wish import EVERY_BLOCK, read_wish
from engine.sizing import plan_slots
from tests.unit.planner.models import DEEPSEEK_V3, FULL, LINEAR, MODELS, QWEN36_27B, every, plain

GIB = 1 << 30


def planned(name: str, **asked: Any) -> Plan:
    return make_plan(MODELS[name].config, read_wish(asked))


def codes(plan: Plan) -> set[str]:
    return {finding.code for finding in plan.findings}


@pytest.mark.parametrize(
    ("name", "platform", "expected"),
    [
        ("Qwen3-Next-80B-A3B", "cuda", 544),
        ("Qwen3.5-9B", "cuda", 528),
        ("Qwen3.5-35B-A3B", "cuda", 1056),
        ("Qwen3.6-27B", "cuda", 784),
        ("Qwen3-Next-80B-A3B", "cpu", 1152),
        ("Qwen3.5-9B", "cpu", 640),
        ("Qwen3.6-27B", "cpu", 896),
        ("Llama-3.1-8B", "cuda", 16),
        ("Llama-3.1-8B", "cpu", 128),
    ],
)
def test_the_block_grows_until_a_state_fits(name: str, platform: str, expected: int) -> None:
    """Rounded up to 16 on GPUs and 128 on the CPU; without states it stays as it is."""
    assert planned(name, platform=platform).as_json()["block_tokens"] == expected


def test_the_demo_model_gets_the_block_that_its_engine_tells() -> None:
    """Its log on the CPU: 384 tokens, 137,216 bytes of state a layer at 512 bytes a token."""
    config = {
        "num_hidden_layers": 8,
        "layer_types": every(4, 8, LINEAR),
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
    }
    plan = make_plan(config, read_wish({"platform": "cpu", "host_bytes": "1GiB"}))
    told = plan.as_json()
    assert told["block_tokens"] == 384 and "cpu_state_dtype" in codes(plan)
    assert (told["bytes_per_token"], told["state_bytes_per_sequence"]) == (2 * 512, 6 * 137_216)
    assert (told["host"]["token_slot_bytes"], told["host"]["state_slot_bytes"]) == (393_216, 823_296)


def test_fp8_doubles_the_tokens_that_a_state_needs() -> None:
    """A token is half as large, the state is not."""
    assert planned("Qwen3.6-27B", kv_dtype="fp8").as_json()["block_tokens"] == 1568


def test_an_asked_block_is_enlarged_in_multiples_of_itself() -> None:
    """As the engine does, and the reader is told."""
    plan = planned("Qwen3.6-27B", block_tokens=256)
    assert plan.as_json()["block_tokens"] == 1024 and "block_enlarged" in codes(plan)
    kept = planned("Qwen3.6-27B", block_tokens=784)
    assert kept.as_json()["block_tokens"] == 784 and "block_enlarged" not in codes(kept)
    with pytest.raises(InvalidInput, match="multiple of 16"):
        planned("Qwen3.6-27B", block_tokens=100)


def test_what_a_block_means_is_said() -> None:
    """Shorter prompts never hit; on the CPU the engine must be told."""
    assert "shorter_than_block" in codes(planned("Qwen3.6-27B"))
    assert "pass_block_size" in codes(planned("Qwen3.6-27B", platform="cpu"))
    assert "pass_block_size" not in codes(planned("Llama-3.1-8B", platform="cpu"))


@pytest.mark.parametrize(("name", "expected"), [("Qwen3.6-27B", 17_520_656_384), ("Qwen3.5-35B-A3B", 5_514_854_400)])
def test_what_the_engine_reserves_for_a_quarter_million_tokens(name: str, expected: int) -> None:
    """Whole blocks, and two states of block size for every padded recurrent layer."""
    assert planned(name, length=262_144).as_json()["reserved_bytes"] == expected


def test_groups_are_padded_to_equal_size() -> None:
    """27 recurrent layers beside 4 growing ones count as 28."""
    geometry, sizes = read_geometry(MODELS["Nemotron-Nano-9B-v2"].config), Sizes(2, 4)
    block = block_tokens(geometry, "cuda", sizes)
    page = block * 4096
    assert reserved_bytes(geometry, sizes, block, block, 8192) == page * 4 + 2 * 28 * page


def test_the_article_s_figures() -> None:
    """32 KiB a token, 4 GiB for 128K, 8 GiB for 256K, 32 GiB for eight, half of each in fp8."""
    for kv_dtype, part in (("auto", 1), ("fp8", 2)):
        told = planned("Qwen3.5-9B", kv_dtype=kv_dtype).as_json()
        token = told["bytes_per_token"]
        assert token == (32 << 10) // part
        assert token * 131_072 == 4 * GIB // part
        assert token * 262_144 == 8 * GIB // part
        assert 8 * token * 131_072 == 32 * GIB // part


def on_a_40_gb_card(**asked: Any) -> dict[str, Any]:
    asked = {"gpu_bytes": "40GB", "weights_bytes": "18GB", "utilization": 0.92, **asked}
    told = planned("Qwen3.5-9B", **asked).as_json()["vram"]
    assert isinstance(told, dict)
    return told


def test_utilization_leaves_a_margin() -> None:
    """40 GB at 0.92: 36.8 GB for weights, KV cache, temporary tensors and runtime."""
    told = on_a_40_gb_card()
    assert told["usable_bytes"] == 36_800_000_000 and told["margin_bytes"] == 3_200_000_000
    assert told["kv_bytes"] == 36_800_000_000 - 18_000_000_000 - 2 * GIB


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ({"length": 262_144}, "fits"),
        ({"length": 131_072, "sequences": 8}, "does_not_fit"),
        ({"length": 131_072, "sequences": 8, "kv_dtype": "fp8"}, "does_not_fit"),
        ({"length": 131_072, "sequences": 3}, "fits"),
        ({"length": 131_072, "sequences": 3, "utilization": "0.85"}, "tight"),
        ({"weights_bytes": "39GB"}, "does_not_fit"),
    ],
)
def test_fits_tight_or_not(asked: dict[str, Any], verdict: str) -> None:
    """Above nine tenths of what is left for KV it is tight."""
    assert on_a_40_gb_card(**asked)["verdict"] == verdict


def test_bf16_and_fp8_stand_side_by_side() -> None:
    """For each length how many sequences fit; longer ones are never more."""
    rows = on_a_40_gb_card()["rows"]
    assert [row["length"] for row in rows] == [4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144]
    for row in rows:
        assert row["own_sequences"] <= row["fp8_sequences"] <= 2 * row["own_sequences"] + 1
    counts = [row["own_sequences"] for row in rows]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 1


def test_the_two_ways_to_size_vram_exclude_each_other() -> None:
    """They are alternatives, not two knobs."""
    with pytest.raises(InvalidInput, match="alternatives") as caught:
        on_a_40_gb_card(kv_cache_memory_bytes="10GB")
    assert caught.value.path == "kv_cache_memory_bytes"
    asked = {"gpu_bytes": "40GB", "weights_bytes": "18GB", "kv_cache_memory_bytes": "10GB"}
    assert planned("Qwen3.5-9B", **asked).as_json()["vram"]["kv_bytes"] == 10_000_000_000
    with pytest.raises(InvalidInput, match="more than the card"):
        planned("Qwen3.5-9B", **asked | {"kv_cache_memory_bytes": "30GB"})


def test_weights_are_not_guessed() -> None:
    """Their size is asked for."""
    with pytest.raises(InvalidInput) as caught:
        planned("Qwen3.5-9B", gpu_bytes="40GB")
    assert caught.value.path == "weights_bytes"


def test_workers_share_the_weights() -> None:
    """Each card holds its part."""
    told = planned("Qwen3.5-9B", gpu_bytes="24GB", weights_bytes="18GB", world_size=2).as_json()["vram"]
    assert told["weights_bytes"] == 9_000_000_000


FIELD_REPORT = {
    "host_bytes": 16 * GIB,
    "world_size": 4,
    "block_tokens": 784,
    "token_slot_bytes": "10.24MB",
    "state_slot_bytes": "29.7MB",
}


@pytest.mark.parametrize(
    ("reference", "retention", "token_slots", "state_slots"),
    [
        (65_536, EVERY_BLOCK, 107, 107),
        (65_536, 8 * 784, 280, 48),
        (65_536, 0, 390, 10),
        (16_384, 0, 326, 32),
    ],
)
def test_the_published_split_comes_out(
    reference: int, retention: int | str, token_slots: int, state_slots: int
) -> None:
    """16 GiB over four workers, slots of 10.24 MB and 29.7 MB each."""
    asked = FIELD_REPORT | {"reference_tokens": reference, "retention_interval": retention}
    (row,) = [row for row in plan_slots_alone(read_wish(asked)).as_json()["slots"] if row["is_current"]]
    assert (row["reference_tokens"], row["token_slots"], row["state_slots"]) == (reference, token_slots, state_slots)
    assert row["tokens_held"] == token_slots * 784


@given(
    budget=st.integers(GIB, 1 << 42),
    workers=st.sampled_from([1, 2, 4]),
    session=st.none() | st.integers(1, 1 << 18),
    retention=st.none() | st.just(0) | st.integers(784, 1 << 17),
)
def test_the_planner_splits_as_the_connector_does(
    budget: int, workers: int, session: int | None, retention: int | None
) -> None:
    """Row by row the connector's own sum; restorable sessions never need more than there is."""
    sizes = SlotSizes(12_845_056 // workers, 153_944_064 // workers, 784, workers)
    for row in slot_rows(sizes, Split(budget, retention, session_tokens=session), [4096, 65_536, 262_144]):
        split = (budget, workers, sizes.token_bytes, sizes.state_bytes, 784, row.reference_tokens, retention)
        plan = plan_slots(*split)
        assert (row.token_slots, row.state_slots) == (plan.token_slots, plan.state_slots)
        length = session or row.reference_tokens
        assert row.restorable_sessions * length <= row.tokens_held
        assert row.restorable_sessions * (1 if retention is None else 2) <= row.state_slots


def test_a_smaller_reference_means_more_states_and_fewer_tokens() -> None:
    """The table of the field report, from the model alone."""
    rows = planned("Qwen3.6-27B", host_bytes="64GiB", reference_tokens=65_536).as_json()["slots"]
    assert [row["reference_tokens"] for row in rows] == [4096 << power for power in range(7)]
    states, tokens = [row["state_slots"] for row in rows], [row["tokens_held"] for row in rows]
    assert states == sorted(states, reverse=True) and tokens == sorted(tokens)
    assert [row["reference_tokens"] for row in rows if row["is_current"]] == [65_536]


def test_the_documented_figures_are_those_of_the_planner() -> None:
    """The table in docs/planner.md, row by row, and the sentence on the card."""
    page = (PROJECT_ROOT / "docs/planner.md").read_text()
    asked = {"host_bytes": "64GiB", "world_size": 4, "reference_tokens": 65_536, "session_tokens": 65_536}
    names = ("reference_tokens", "token_slots", "state_slots", "tokens_held", "restorable_sessions")
    for row in planned("Qwen3.6-27B", **asked).as_json()["slots"]:
        assert "| " + " | ".join(str(row[name]) for name in names) + " |" in page
    rows = {row["length"]: row for row in on_a_40_gb_card()["rows"]}
    assert (rows[131_072]["own_sequences"], rows[131_072]["fp8_sequences"]) == (3, 7)


def test_slots_are_made_of_what_a_worker_holds() -> None:
    """Per worker and host total stand side by side."""
    told = planned("Qwen3.6-27B", host_bytes="50GiB", world_size=2).as_json()["host"]
    assert (told["host_bytes"], told["worker_bytes"]) == (50 * GIB, 25 * GIB)
    assert told["token_slot_bytes"] == 784 * 32_768 and told["state_slot_bytes"] == 153_944_064 // 2


def test_attention_alone_needs_no_states() -> None:
    """All memory is tokens; a latent is kept by each worker."""
    for world, workers_hold in ((1, 70_272), (8, 70_272)):
        told = make_plan(DEEPSEEK_V3, read_wish({"host_bytes": "64GiB", "world_size": world})).as_json()
        assert told["worker"]["bytes_per_token"] == workers_hold
        row = told["slots"][0]
        assert row["state_slots"] == 0
        assert row["restorable_sessions"] == row["token_slots"] // (4096 // 16)


def test_a_running_engine_s_slots_come_first() -> None:
    """What it told about itself is truer than the model's arithmetic."""
    running = SlotSizes(10_240_000, 29_700_000, 784, 4)
    wish = read_wish({"host_bytes": 16 * GIB, "world_size": 4, "reference_tokens": 65_536})
    told = make_plan(QWEN36_27B, wish, running).as_json()
    assert told["host"]["layout_from"] == "engine"
    assert next(row for row in told["slots"] if row["is_current"])["token_slots"] == 390


def test_windows_are_in_the_slots_too() -> None:
    """The engine offers every block of the sliding layers; the connector keeps them, in single blocks alone."""
    plan = planned("gpt-oss-20b", host_bytes="64GiB")
    assert "windows_in_slots" in codes(plan)
    assert plan.as_json()["host"]["token_slot_bytes"] == 16 * 49_152
    with pytest.raises(InvalidInput) as caught:
        planned("gpt-oss-20b", host_bytes="64GiB", blocks_per_chunk=2)
    assert caught.value.path == "blocks_per_chunk"


def test_chunked_attention_has_no_slots() -> None:
    """The connector refuses such models at start; the planner says so before."""
    config = plain(8, 8, 2, 1024, layer_types=[*["chunked_attention"] * 3, FULL] * 2, attention_chunk_size=8192)
    plan = make_plan(config, read_wish({"host_bytes": "64GiB"}))
    assert "chunks_not_served" in codes(plan) and plan.host is None


def test_an_arena_has_no_split_to_find() -> None:
    """Blocks and states share pages; for each length of sessions how many come back, none by reference."""
    asked = {"host_bytes": "64GiB", "eviction_policy": "value", "session_tokens": 65_536}
    told = planned("Qwen3.6-27B", **asked).as_json()
    assert told["slots"] == []
    arena = told["host"]["arena"]
    sessions = {row["session_tokens"]: row["restorable_sessions"] for row in arena["rows"]}
    best = max(
        row["restorable_sessions"]
        for row in planned("Qwen3.6-27B", **asked | {"eviction_policy": "lru"}).as_json()["slots"]
    )
    assert sessions[65_536] >= best
    for row in arena["rows"]:
        held = row["session_tokens"] * 65_536 + 2 * 153_944_064
        assert held <= row["session_bytes"] < held * 1.01 + 784 * 65_536
        assert row["session_bytes"] * row["restorable_sessions"] <= 64 * GIB
    with pytest.raises(InvalidInput, match="holds no session: write at least"):
        planned("Qwen3.6-27B", **asked | {"host_bytes": "100MiB"})
    assert "states_fill_the_arena" in codes(planned("Qwen3.6-27B", **asked, retention_interval=EVERY_BLOCK))


@pytest.mark.parametrize(
    ("extra", "policy", "reference"),
    [
        ({}, "value", None),
        ({"mamba_state_slots_reference_tokens": 16_384}, "lru", 16_384),
        ({"eviction_policy": "arc"}, "arc", 65_536),
        ({"eviction_policy": "hyper"}, "hyper", None),
        ({"no_such_key": 1}, "lru", 65_536),
    ],
)
def test_a_profile_is_planned_as_the_connector_reads_it(
    extra: dict[str, Any], policy: str, reference: int | None
) -> None:
    """The policy it takes by itself, and a reference length only where there is a split."""
    asked = asked_by_profile({"kv_connector_extra_config": {"cpu_bytes_to_use": 64 * GIB, **extra}}, {})
    assert (asked["eviction_policy"], asked.get("reference_tokens")) == (policy, reference)
    assert asked["retention_interval"] == EVERY_BLOCK


def test_a_budget_that_was_meant_in_gib_is_noticed() -> None:
    """A bare 10 is refused with what it takes; a small one is asked about."""
    with pytest.raises(InvalidInput, match="host_bytes is 10: it holds no session: write at least") as caught:
        planned("Qwen3.6-27B", host_bytes=10)
    assert caught.value.path == "host_bytes"
    assert "small_host" in codes(planned("Qwen3.6-27B", host_bytes=900_000_000))


def test_an_interval_between_ends_of_blocks_is_noticed() -> None:
    """The engine would not start with it, so the table tells what nobody will see."""
    for interval, is_told in ((100, True), (1000, True), (0, False), (784, False), (7840, False)):
        found = codes(planned("Qwen3.6-27B", host_bytes="64GiB", retention_interval=interval))
        assert ("interval_off_the_block" in found) == is_told
    assert "interval_off_the_block" not in codes(planned("Qwen3-4B", host_bytes="64GiB", retention_interval=100))


def test_reference_lengths_end_with_the_longest() -> None:
    """And hold the present setting wherever it lies."""
    assert reference_lengths(40_960, 5000) == [4096, 5000, 8192, 16_384, 32_768, 40_960]
    assert reference_lengths(2048, None) == [2048]


def test_the_longest_sequence_is_the_model_s_unless_told() -> None:
    """Without either it is assumed and said; beyond the model is a warning."""
    assert planned("Qwen3.5-9B").as_json()["longest_tokens"] == 262_144
    assert "longest_assumed" in codes(planned("Qwen3-4B"))
    assert planned("Qwen3.5-9B", max_model_len=32_768).as_json()["length_tokens"] == 32_768
    assert "beyond_the_model" in codes(planned("Qwen3.5-9B", max_model_len=1_000_000))
