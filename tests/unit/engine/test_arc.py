"""Adaptive replacement: what came back is not pushed out by what never does."""

from __future__ import annotations

from engine.manager import TierManager
from engine.policies import ArcPolicy
from engine.pool import Slot, SlotPool
from tests.unit.engine.chains import Clock, Request, counts, layout, run


def tier(policy: str, token_slots: int = 8, state_slots: int = 4, store_threshold: int = 1) -> TierManager:
    return TierManager(layout(token_slots, state_slots), clock=Clock(), policy=policy, store_threshold=store_threshold)


def flood(manager: TierManager) -> None:
    """Prompts that are asked once and never again."""
    for name in ("mn", "op", "qr", "st", "uv", "wx"):
        run(manager, name, name)


def test_a_flood_pushes_out_what_is_used_again_under_lru_and_not_under_arc() -> None:
    """The session that came back stays; with lru it is simply the oldest."""
    for policy, found in (("lru", 0), ("arc", 3)):
        manager = tier(policy)
        run(manager, "cold", "abcd")
        assert run(manager, "back", "abcd") == 3
        flood(manager)
        assert run(manager, "back again", "abcd") == found


def test_what_comes_back_after_it_went_counts_as_used_again() -> None:
    """Evicted too early: it is remembered, and not taken for something new."""
    pool = SlotPool(2, 1, ArcPolicy(2), Clock())
    for block_hash in (b"a", b"b", b"c"):
        store(pool, block_hash)
    assert b"a" not in pool.slots
    assert store(pool, b"a").again
    assert not store(pool, b"d").again


def store(pool: SlotPool, block_hash: bytes) -> Slot:
    slot = pool.place(block_hash, 100, None)
    assert slot is not None
    pool.begin_write(slot, 1)
    pool.end_write(slot, 1, True)
    return slot


def test_the_metrics_name_the_policy() -> None:
    """Evictions of the policy's own choice are told apart from those of superseded states."""
    manager = tier("arc")
    flood(manager)
    found = counts(manager)
    assert found["tierdeck_host_evictions_total", "token", "arc"] > 0


def test_superseded_states_go_first_under_arc_too() -> None:
    """A growing session's old states, however often they were used."""
    manager = tier("arc", 40, 6)
    run(manager, "short", "xy")
    for end in range(2, 8):
        run(manager, f"turn {end}", "abcdefg"[:end])
    run(manager, "new", "mnop")
    found = counts(manager)
    assert found["tierdeck_host_evictions_total", "state", "superseded"] >= 1
    assert ("tierdeck_host_evictions_total", "state", "arc") not in found


def test_below_the_store_threshold_nothing_is_stored() -> None:
    """A prompt must have been seen twice; the third time it comes from the host."""
    manager = tier("lru", store_threshold=2)
    assert [run(manager, f"r{number}", "abcd") for number in range(3)] == [0, 0, 3]
    probe = Request(manager, "probe", "xy")
    assert probe.store(probe.tokens()) == []
