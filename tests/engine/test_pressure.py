"""A long session beside growing sub-sessions, with few state slots: who keeps it, and do the metrics say why?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_engine import metrics, prompt, running_engine
from benchmarks.torture import ENVIRONMENT, FLAGS, ask, empty, host_tier
from benchmarks.torture_prompts import BLOCK

pytestmark = pytest.mark.engine

#: 29 token slots, which hold all blocks of all sessions, and 8 state slots.
TIER: dict[str, Any] = {"cpu_bytes_to_use": 18_000_000, "mamba_state_slots_reference_tokens": 2_688, "verify": False}
#: All blocks and what goes on fit, but not every state; also where a CPU keeps states in 16 bits.
ARENA_BYTES = 12_000_000
MAIN_BLOCKS, SUB_SESSIONS, TURNS = 3, 2, 8
HITS = "vllm:external_prefix_cache_hits_total"


@dataclass(frozen=True)
class Outcome:
    """What the main session's return came to, in tokens, and how many states went for which reason."""

    as_before: bool
    hit_tokens: float
    lookup_tokens: dict[str, float]
    evicted_states: dict[str, float]


def come_back(demo_model: Path, log: Path, **tier: Any) -> Outcome:
    """The main session is asked, sub-sessions grow by a block a turn, VRAM forgets, the main session returns."""
    with running_engine(demo_model, log, host_tier(**TIER | tier), ENVIRONMENT, FLAGS) as engine:
        main = tuple(prompt(1, MAIN_BLOCKS * BLOCK + 50))
        cold = ask(engine.base_url, main, 8)
        for seed in range(SUB_SESSIONS):
            session = tuple(prompt(100 + seed, TURNS * BLOCK + 50))
            for turn in range(1, TURNS + 1):
                ask(engine.base_url, session[: turn * BLOCK + 50], 1)
        empty(engine.base_url)
        before = metrics(engine.base_url)
        back = ask(engine.base_url, main, 8)
        after = metrics(engine.base_url)
    name = "tierdeck_host_lookup_tokens_total"
    return Outcome(
        as_before=back.tokens == cold.tokens,
        hit_tokens=after[HITS,] - before[HITS,],
        lookup_tokens={key[1]: value - before[key] for key, value in after.items() if key[0] == name},
        evicted_states={
            key[2]: value
            for key, value in after.items()
            if key[:2] == ("tierdeck_host_evictions_total", "state") and value
        },
    )


def test_with_demotion_the_main_session_stays(demo_model: Path, tmp_path: Path) -> None:
    """What the sub-sessions have passed goes first: only superseded states were given up."""
    found = come_back(demo_model, tmp_path / "log", eviction_policy="lru", demote_superseded_states=True)
    assert found.as_before
    assert found.hit_tokens == found.lookup_tokens["hit"] == MAIN_BLOCKS * BLOCK, found
    assert set(found.evicted_states) == {"superseded"}


def test_without_demotion_the_main_session_loses_its_state(demo_model: Path, tmp_path: Path) -> None:
    """Its blocks are all there and of no use: computed anew, counted as tokens whose state was missing."""
    found = come_back(demo_model, tmp_path / "log", eviction_policy="lru", demote_superseded_states=False)
    assert found.as_before
    assert found.hit_tokens == found.lookup_tokens["hit"] == 0, found
    assert found.lookup_tokens["state_missing"] == MAIN_BLOCKS * BLOCK, found
    assert set(found.evicted_states) == {"lru"}


def test_by_value_the_main_session_stays(demo_model: Path, tmp_path: Path) -> None:
    """One arena: what the sub-sessions have passed went, without any split to be found."""
    arena = {"mamba_state_slots_reference_tokens": None, "cpu_bytes_to_use": ARENA_BYTES}
    found = come_back(demo_model, tmp_path / "log", eviction_policy="value", **arena)
    assert found.as_before
    assert found.hit_tokens == found.lookup_tokens["hit"] == MAIN_BLOCKS * BLOCK, found
    assert found.evicted_states.get("superseded", 0) > 0, found
