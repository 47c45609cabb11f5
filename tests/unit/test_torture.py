"""What the torture benchmark takes for wrong."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.torture import SAME_LOGPROB, Doubt, Reply, Torture


def reply(first: float, tokens: tuple[int, ...] = (7, 8)) -> Reply:
    """An answer whose first token has this log-probability."""
    return Reply(tokens, ({tokens[0]: first, 99: -9.0}, {tokens[1]: -0.1}))


def settled(found: Reply, *computed: Reply, answer_tokens: int = 1) -> Torture:
    """After the engine, asked again and again, has computed these in turn."""
    torture = Torture("http://127.0.0.1:1", seed=1)
    again = itertools.cycle(computed)
    torture.doubts.append(Doubt("told", found, answer_tokens, lambda: next(again)))
    torture.settle()
    return torture


@pytest.mark.parametrize("own", [-1.41, -1.41 + SAME_LOGPROB / 2])
def test_an_answer_that_the_engine_gives_by_itself_is_rounding(own: float) -> None:
    """Also if it is not the first that it gives."""
    report = settled(reply(-1.41), reply(-1.90), reply(-1.88), reply(own)).report
    assert (report.rounding, report.wrong) == (["told"], [])


@pytest.mark.parametrize("answer_tokens", [1, 2])
def test_an_answer_that_the_engine_never_gives_is_wrong(answer_tokens: int) -> None:
    """However often it is asked, and also where it is as likely but goes on otherwise."""
    other = reply(-1.90) if answer_tokens == 1 else reply(-1.41, (7, 9))
    report = settled(reply(-1.41), other, answer_tokens=answer_tokens).report
    assert (report.rounding, report.wrong) == ([], ["told"])
    assert not report.fine
