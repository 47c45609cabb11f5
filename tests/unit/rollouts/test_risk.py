"""What of the host tier's contents finds no room after a change."""

from __future__ import annotations

from app.rollouts.risk import Contents, Room, at_risk
from app.rollouts.said import say
from app.services.preview import begins_empty
from engine.config import TierConfig


def test_fewer_slots_than_are_used() -> None:
    """Tokens by the slots that are missing; sessions by the pool that gives out first."""
    risk = at_risk(Contents(100, 40, 20), Room(80, 20), 384.0, None)
    assert (risk.tokens_held, risk.tokens) == (38_400, 20 * 384)
    assert (risk.sessions_held, risk.sessions) == (20, 10)
    assert "least valuable" in risk.reason.text


def test_room_for_all() -> None:
    """Nothing is at risk, and there is nothing to explain."""
    risk = at_risk(Contents(100, 40, 20), Room(300, 90), 384.0, None)
    assert (risk.tokens, risk.sessions, risk.reason.text) == (0, 0, "")


def test_a_tier_that_begins_empty_loses_all() -> None:
    """Whatever room there is."""
    risk = at_risk(Contents(100, 40, 20), Room(300, 90), 384.0, say("Because."))
    assert (risk.tokens, risk.sessions, risk.reason.text) == (38_400, 20, "Because.")


def test_what_is_not_known_is_not_zero() -> None:
    """Missing numbers stay missing, with a reason."""
    for held, room in ((Contents(None, None, None), Room(1, 1)), (Contents(9, 9, 9), Room(None, None))):
        risk = at_risk(held, room, 384.0, None)
        assert (risk.tokens, risk.sessions) == (None, None)
        assert risk.reason.text
    assert at_risk(Contents(100, 40, None), Room(80, 20), None, None).sessions is None


def test_what_lies_otherwise_comes_along_and_what_is_something_else_does_not() -> None:
    """Another eviction_policy moves what is there; a block of another size has other bytes."""
    split, arena = (TierConfig(1 << 30, eviction_policy=policy) for policy in ("lru", "value"))
    for before, after in ((split, arena), (arena, split)):
        assert begins_empty(before, after, {}, {}) is None
        changed = begins_empty(before, after, {"block-size": 16}, {"block-size": 32})
        assert changed is not None
        assert "block-size changes what a slot holds" in changed.text
