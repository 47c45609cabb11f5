"""When a version that was written to and read back from is right."""

from __future__ import annotations

import pytest

from app.rollouts.canary import Answered, Shape, judge, passed, prompt

COLD = Answered(("a", "b"), {"a": -0.5, "c": -1.0})


@pytest.mark.parametrize(("chunk", "longest", "length"), [(384, 32768, 785), (16, None, 529), (784, 900, 892)])
def test_the_prompt_has_whole_chunks_and_a_bit(chunk: int, longest: int | None, length: int) -> None:
    """As long as is needed, no longer than the engine takes."""
    tokens = prompt("a", Shape(chunk, longest))
    assert tokens is not None
    assert len(tokens) == length > chunk


def test_no_two_rollouts_share_a_block() -> None:
    """A canary of before must not be found; the same one is the same."""
    shape = Shape(16, None)
    assert prompt("1", shape) == prompt("1", shape)
    first, second = prompt("1", shape), prompt("2", shape)
    assert first is not None
    assert second is not None
    assert first[:16] != second[:16]


def test_no_prompt_is_long_enough() -> None:
    """Then nothing could ever come back."""
    assert prompt("1", Shape(784, 700)) is None


def test_the_same_answer_passes() -> None:
    """Host hits and the first token's logprob are the proof."""
    assert judge(COLD, COLD, 768) is None
    assert "768 of 785 tokens" in passed(785, COLD, COLD, 768).text
    assert "asked twice" in passed(785, COLD, COLD, None).text


def test_a_near_tie_passes() -> None:
    """Another first token is fine while the cold one lies as near as batching alone would put it."""
    assert judge(COLD, Answered(("c", "d"), {"a": -0.6, "c": -0.55}), 768) is None


@pytest.mark.parametrize(
    ("back", "host_tokens", "told"),
    [
        (COLD, 0, "none of it came back"),
        (Answered(("c", "d"), {"c": -0.1, "d": -3.0}), 768, "begins with c, the cold one with a"),
        (Answered(("a", "b"), {"a": -0.9}), 768, "0.400"),
        (Answered((), {}), 768, "no token"),
    ],
)
def test_a_wrong_restore_fails(back: Answered, host_tokens: float, told: str) -> None:
    """Each in a sentence with its numbers."""
    failure = judge(COLD, back, host_tokens)
    assert failure is not None
    assert told in failure.text
