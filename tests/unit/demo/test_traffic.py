"""The demo's script: the field report's pattern, the same for the same seed."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from app.demo.traffic import Kind, Sizes, Step, Turn, acts, session_text

SIZES = Sizes()


def first_act(seed: int = 1) -> list[Step]:
    steps = []
    for step in acts(seed, SIZES):
        steps.append(step)
        if step.sessions[0][0].session.startswith("control"):
            return steps
    raise AssertionError("an act never ended")


def turns_of(steps: list[Step], prefix: str) -> list[Turn]:
    return [t for step in steps for session in step.sessions for t in session if t.session.startswith(prefix)]


def test_the_same_seed_plays_the_same() -> None:
    """Two runs can be compared; another seed asks other things."""
    assert list(islice(acts(7, SIZES), 40)) == list(islice(acts(7, SIZES), 40))
    assert first_act(1) != first_act(2)


def test_a_main_session_only_grows() -> None:
    """Each of its turns holds the one before, and all fit the model."""
    tokens = [turn.tokens for turn in turns_of(first_act(), "main-1")]
    assert tokens == sorted(tokens) and tokens[0] == SIZES.main_first
    assert 20_000 < tokens[-1] <= SIZES.main_last


def test_between_two_visits_the_sub_sessions_fill_the_vram() -> None:
    """A returning turn comes only after a burst that pushed it out."""
    steps = first_act()
    for before, step in pairwise(steps):
        if step.sessions[0][0].kind is Kind.RETURNS:
            burst = sum(session[-1].tokens for session in before.sessions)
            assert burst >= SIZES.vram * SIZES.pressure
            assert all(
                SIZES.short_least <= t.tokens <= SIZES.short_most + SIZES.follow_up
                for session in before.sessions
                for t in session
            )


def test_there_are_dozens_of_short_sessions() -> None:
    """As an agent opens them, each with a second turn that finds its first in VRAM."""
    shorts = turns_of(first_act(), "sub-")
    assert len({turn.session for turn in shorts}) >= 36
    assert {turn.kind for turn in shorts} == {Kind.NEW, Kind.GROWS}


def test_the_control_is_as_long_as_the_last_return() -> None:
    """Cold and back from the host are compared at the same length."""
    steps = first_act()
    (control,) = turns_of(steps, "control")
    last_return = [t for t in turns_of(steps, "main-") if t.kind is Kind.RETURNS][-1]
    assert control.tokens == last_return.tokens and control.kind is Kind.NEW


def test_no_session_is_opened_twice() -> None:
    """What is called new was never sent before, over several acts too."""
    opened = [t.session for step in islice(acts(3, SIZES), 60) for s in step.sessions for t in s if t.kind is Kind.NEW]
    assert len(opened) == len(set(opened))


@pytest.mark.parametrize("shorter", [1, 500, 4999])
def test_a_longer_prompt_continues_a_shorter_one_to_the_letter(shorter: int) -> None:
    """Else nothing of it could be found again."""
    long = session_text(5, "main-1", 5000)
    assert len(long) == 5000
    assert long.startswith(session_text(5, "main-1", shorter))
    assert not long.startswith(session_text(5, "main-2", 40))
