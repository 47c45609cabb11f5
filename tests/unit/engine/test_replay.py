"""Replay of traces through the real manager, and the bound it is measured against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import replay
from benchmarks.arena_lru import arena_lru_seconds
from benchmarks.bound import upper_bound
from benchmarks.replay import Setup
from benchmarks.replay_table import Row, summary
from benchmarks.trace import Ask, Trace, read_trace
from benchmarks.vram_model import Layout, prompts
from benchmarks.workloads import ALL
from benchmarks.workloads.world import World

SMALL = Layout(vram_blocks=120, world_size=1)
MIB = 1 << 20


def sub_sessions(mains: int = 6) -> Trace:
    """A main session of 40,000 tokens that rests for half an hour, six times, while a hundred others come by."""
    world = World(3)
    main = world.session().grow(40_000)
    for turn in range(mains):
        at = 2_000.0 * turn
        for step in range(3):
            main.ask(at + 30 * step, 200)
            main.grow(1_200)
        for number in range(100):
            sub = world.session().grow(world.between(1_700, 3_000))
            for step in range(3):
                sub.ask(at + 100 + 17 * number + 4 * step, 100)
                sub.grow(850)
    return world.trace("sub_sessions")


def test_a_main_session_survives_sub_sessions_with_value_and_with_demotion() -> None:
    """And not with plain LRU over few state slots, which the sub-sessions' states fill."""
    requests = prompts(sub_sessions(), SMALL)
    reference = 40_000
    host = 1200 * 3_200_000

    def restored(policy: str, demote: bool) -> float | None:
        return replay.replay(requests, SMALL, Setup(policy, host, reference, demote)).idle_sessions_restored_share

    assert restored("value", True) == 1.0
    assert restored("hyper", True) == 1.0
    assert restored("lru", False) == 0.0


def test_demotion_alone_saves_the_main_session_from_its_own_sub_sessions() -> None:
    """Sub-sessions of many turns: their old boundaries go first then, and the main one stays."""
    world = World(5)
    main = world.session().grow(40_000)
    for turn in range(5):
        at = 2_000.0 * turn
        main.ask(at, 200)
        main.grow(1_200)
        for number in range(3):
            sub = world.session().grow(1_700)
            for step in range(30):
                sub.ask(at + 100 + 400 * number + 9 * step, 100)
                sub.grow(850)
    requests = prompts(world.trace("deep_subs"), SMALL)
    host = 1800 * 3_200_000

    def restored(policy: str, demote: bool) -> float | None:
        return replay.replay(requests, SMALL, Setup(policy, host, 20_000, demote)).idle_sessions_restored_share

    assert restored("lru", True) == 1.0
    assert restored("value", True) == 1.0
    assert restored("lru", False) == 0.0


@pytest.mark.parametrize("family", ["mixed", "coding"])
def test_no_policy_beats_the_bound(family: str) -> None:
    """The upper bound is one: for a tier that is too small, and it grows with the tier."""
    trace = ALL[family](1)
    trace.asks = trace.asks[:600]
    layout = Layout(vram_blocks=300)
    requests = prompts(trace, layout)
    bounds = [upper_bound(requests, layout, gib << 30) for gib in (8, 16, 64)]
    assert bounds == sorted(bounds)
    for policy in ("value", "hyper", "lru"):
        saved = replay.replay(requests, layout, Setup(policy, 16 << 30)).seconds_saved
        assert 0 <= saved <= bounds[1]
    assert arena_lru_seconds(requests, layout, 16 << 30) <= bounds[1]


def test_shares_add_up_and_a_large_tier_avoids_all_that_can_be() -> None:
    """Every token came from somewhere; with room for everything nothing avoidable is computed."""
    requests = prompts(sub_sessions(), SMALL)
    result = replay.replay(requests, SMALL, Setup("value", 400 << 30))
    assert result.vram_share + result.host_share + result.recomputed_share == pytest.approx(1.0)
    assert result.avoidable_recompute_share < 0.005
    assert result.evictions.keys() <= {"token/orphaned"}


def test_the_summary_compares_all_workloads_of_a_size_with_the_static_split_at_once() -> None:
    """Seconds are summed up first: one workload of which static saves nothing does not hide the others."""
    sums = {"big": (300.0, 200.0), "lost": (60.0, 0.0)}
    found = [
        Row(name, 1, 64, 1_000, 10.0, 80.0, 90.0, 95.0, 0, None, value, static, 0.0, 100.0, 400.0)
        for name, (value, static) in sums.items()
    ]
    assert [row.times_static for row in found] == [1.5, None]
    assert "1.80 times the seconds that static saves" in summary(found, 64)


@pytest.mark.parametrize("family", sorted(ALL))
def test_the_same_seed_makes_the_same_workload(family: str) -> None:
    """In order of time, with forks of sessions that exist; another seed makes another one."""
    one, two, other = (list(ALL[family](seed).lines()) for seed in (7, 7, 8))
    assert one == two != other
    trace = ALL[family](7)
    assert [ask.at for ask in trace.asks] == sorted(ask.at for ask in trace.asks)
    assert 1_000 < len(trace.asks) <= 20_000


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    """Requests and forks, also of sessions that never ask themselves."""
    trace = Trace("t", 1, 784, [Ask(1.0, 2, 5_000, 10), Ask(2.5, 3, 6_000, 20)], {2: (1, 4_000), 3: (2, 4_800)})
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(trace.lines()))
    assert read_trace(path) == trace


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    """Not a traceback from somewhere inside."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"format": "tierdeck-trace/1", "family": "x", "seed": 1, "block_tokens": 784}\n{"t": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_trace(path)


def test_the_command_prints_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """As JSON, with the keys that others read."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(sub_sessions(2).lines()))
    layout = tmp_path / "layout.json"
    layout.write_text(
        json.dumps(
            {
                "block_tokens": 784,
                "token_block_bytes": 3_200_000,
                "state_bytes": 52_000_000,
                "state_groups": 7,
                "world_size": 4,
                "vram_blocks": 120,
                "vram_state_blocks": 7,
            }
        )
    )
    arguments = ["replay", str(trace), "--layout", str(layout), "--host-bytes", str(16 << 30), "--policy", "value"]
    monkeypatch.setattr("sys.argv", [*arguments, "--json"])
    assert replay.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert {
        "vram_share",
        "host_share",
        "recomputed_share",
        "avoidable_recompute_share",
        "seconds_saved",
        "idle_sessions_restored_share",
        "evictions",
        "us_per_request_mean",
        "us_per_request_p99",
    } <= found.keys()
    assert found["idle_sessions_restored_share"] == 1.0
