"""The split of the host tier's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sizing import SizingError, SlotPlan, plan_slots, states_per_request

GIB = 1 << 30


@pytest.mark.parametrize(
    ("reference", "retention", "expected"),
    [
        (None, None, SlotPlan(107, 107)),
        (65_536, 8 * 784, SlotPlan(280, 48)),
        (65_536, 0, SlotPlan(390, 10)),
        (16_384, 0, SlotPlan(326, 32)),
    ],
)
def test_the_published_table_comes_out(reference: int | None, retention: int | None, expected: SlotPlan) -> None:
    """16 GiB over 4 workers, blocks of 784 tokens, 10.24 MB and 29.7 MB per worker."""
    assert plan_slots(16 * GIB, 4, 10.24e6, 29.7e6, 784, reference, retention) == expected


def test_a_kept_state_is_the_newest_the_periodic_ones_and_one_junction() -> None:
    """What the retention keeps decides how many states a request needs."""
    assert states_per_request(65_536, 0) == 2
    assert states_per_request(65_536, 8 * 784) == 1 + 10 + 1


def test_attention_alone_gets_all_the_memory() -> None:
    """A model without states is an ordinary host tier."""
    assert plan_slots(1000, 2, 50, 0, 16, None, None) == SlotPlan(10, 0)


def test_a_budget_below_one_session_says_how_much_it_takes() -> None:
    """And that much is then enough."""
    with pytest.raises(SizingError, match="at least 4000 bytes"):
        plan_slots(3999, 4, 400, 300, 784, 784, 0)
    assert plan_slots(4000, 4, 400, 300, 784, 784, 0) == SlotPlan(1, 2)


@given(
    budget=st.integers(1, 10**12),
    world=st.integers(1, 16),
    token=st.integers(1, 10**8),
    state=st.integers(0, 10**9),
    block=st.integers(1, 2000),
    reference=st.none() | st.integers(1, 10**6),
    retention=st.none() | st.just(0) | st.integers(1, 10**5),
)
def test_a_plan_never_exceeds_the_budget(
    budget: int, world: int, token: int, state: int, block: int, reference: int | None, retention: int | None
) -> None:
    """Whatever is asked: the slots fit, and there is at least one of each kind, or it is refused."""
    try:
        plan = plan_slots(budget, world, token, state, block, reference, retention)
    except SizingError:
        return
    assert plan.token_slots >= 1
    assert plan.state_slots >= (state > 0)
    assert world * (plan.token_slots * token + plan.state_slots * state) <= budget


@given(reference=st.integers(784, 10**6))
def test_a_longer_reference_never_gives_more_state_slots(reference: int) -> None:
    """The knob works in one direction."""
    shorter = plan_slots(64 * GIB, 4, 3_200_000, 52_000_000, 784, reference, 0)
    longer = plan_slots(64 * GIB, 4, 3_200_000, 52_000_000, 784, reference * 2, 0)
    assert longer.state_slots <= shorter.state_slots
    assert longer.token_slots >= shorter.token_slots
