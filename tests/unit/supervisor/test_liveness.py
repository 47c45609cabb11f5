"""Life and stall from series of readings, without an engine, a clock or a loop."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from app.supervisor.liveness import (
    AskToken,
    Counts,
    Dead,
    Fine,
    Life,
    Limits,
    Moves,
    Pulse,
    Reading,
    Verdict,
    answered,
    asked,
    follow,
    judge,
    judge_stalled,
    refused,
)

LIMITS = Limits.of(stall_seconds=120, idle_probe_seconds=60)
BEAT = 2.0


AWAKE = Pulse()


def reading(
    at: float, running: float = 0, waiting: float = 0, tokens: float = 1000, in_flight: int = 0, pulse: Pulse = AWAKE
) -> Reading:
    return Reading(at, Counts(running, waiting, tokens), in_flight, pulse)


def no_page(at: float) -> Reading:
    return Reading(at, None)


def first_trouble(readings: Iterable[Reading], life: Life | None = None) -> tuple[Reading, Dead] | None:
    """The reading at which an engine that never answers a question counts as dead."""
    life = life or Life(alive_at=0.0, last_token_at=0.0)
    for one in readings:
        life = follow(life, one)
        verdict = judge(life, one.at, LIMITS)
        if isinstance(verdict, AskToken):
            life = asked(life, one.at)
        if isinstance(verdict, Dead):
            return one, verdict
    return None


def steady(seconds: float, running: float = 0, waiting: float = 0, in_flight: int = 0) -> list[Reading]:
    """The same numbers beat by beat."""
    return [reading(at, running, waiting, in_flight=in_flight) for at in _beats(seconds)]


def _beats(seconds: float) -> list[float]:
    return [BEAT * index for index in range(1, int(seconds / BEAT) + 1)]


def test_nobody_runs_and_some_wait_is_a_stall_at_the_third_look() -> None:
    """The field case: three scrapes a minute apart, requests pile up, no counter moves."""
    series = [reading(1000, waiting=3), reading(1060, waiting=5), reading(1120, waiting=6)]
    found = first_trouble(series, Life(alive_at=990.0, last_token_at=978.0))
    assert found is not None
    at, dead = found
    assert at.at == 1120 and dead.fault.code == "requests_stuck"
    assert dead.fault.sentence == (
        "The engine is stalled: none of its 6 waiting requests runs for 120 s; last token 142 s ago."
    )
    assert dead.evidence == {
        "running": 0,
        "waiting": 6,
        "tokens": 1000,
        "in_flight": 0,
        "seconds_since_last_token": 142.0,
    }


def test_stuck_requests_are_seen_at_the_usual_beat_within_the_limit() -> None:
    found = first_trouble(steady(300, waiting=2))
    assert found is not None and found[0].at <= LIMITS.stall_seconds + BEAT


def test_a_token_in_between_begins_the_wait_anew() -> None:
    """Requests that wait for others to end are not stuck."""
    series = [reading(at, waiting=4, tokens=1000 + (at > 100)) for at in _beats(200)]
    assert first_trouble(series) is None


@pytest.mark.parametrize("waiting", [0, 7])
def test_a_running_prefill_of_half_an_hour_is_no_stall(waiting: int) -> None:
    """One request runs, others pile up behind it, no counter moves: the engine works."""
    assert first_trouble(steady(1800, running=1, waiting=waiting, in_flight=1 + waiting)) is None


def test_a_first_step_that_computes_for_half_an_hour_is_no_stall() -> None:
    """A compile pause, or a prefill in one piece: until the step ends, the numbers do not tell of the request."""
    series = [reading(at, in_flight=1, pulse=Pulse(cpu_seconds=0.9 * at)) for at in _beats(1700)]
    assert first_trouble(series) is None


def test_a_first_step_that_computes_for_ever_is_a_stall() -> None:
    series = [reading(at, in_flight=1, pulse=Pulse(cpu_seconds=0.9 * at)) for at in _beats(2400)]
    found = first_trouble(series)
    assert found is not None and 1700 < found[0].at < 1900


@pytest.mark.parametrize("in_flight", [0, 3])
def test_deadlock_behind_a_front_end_that_answers(in_flight: int) -> None:
    """Health and numbers come, tokens do not: out of rotation within the limit, whether requests came or not."""
    found = first_trouble(steady(300, in_flight=in_flight))
    assert found is not None
    at, dead = found
    assert LIMITS.stall_seconds <= at.at <= LIMITS.stall_seconds + 2 * BEAT
    assert dead.fault.code == "no_token"
    assert "asked for one token, it gave none" in dead.fault.sentence and "last token 122 s ago" in dead.fault.sentence


def test_an_engine_whose_numbers_do_not_come_is_asked_too() -> None:
    found = first_trouble([no_page(at) for at in _beats(300)])
    assert found is not None and found[1].fault.code == "no_token"


def test_missing_pages_do_not_undo_what_was_seen() -> None:
    """A page that fails to come between two that tell of stuck requests changes nothing."""
    series = [no_page(at) if at % 20 == 0 else reading(at, waiting=2) for at in _beats(200)]
    found = first_trouble(series)
    assert found is not None and found[1].fault.code == "requests_stuck" and found[0].at <= 126


def test_no_question_while_tokens_come() -> None:
    """Real requests that progress are proof enough, and so is one that runs."""
    life = Life(alive_at=0.0)
    for at in _beats(600):
        life = follow(life, reading(at, running=1 if at < 300 else 0, tokens=1000 + at))
        assert judge(life, at, LIMITS) == Fine()


def test_an_idle_engine_is_asked_once_a_minute() -> None:
    """Each answer is a sign of life for the next minute."""
    life, questions = Life(alive_at=0.0), []
    for at in _beats(600):
        life = follow(life, reading(at))
        if isinstance(judge(life, at, LIMITS), AskToken):
            questions.append(at)
            life = answered(asked(life, at), at)
    assert 8 <= len(questions) <= 10


def test_idle_questions_can_be_switched_off() -> None:
    life, limits = Life(alive_at=0.0), Limits.of(120, 0)
    for at in _beats(600):
        life = follow(life, reading(at))
        assert judge(life, at, limits) == Fine()


def test_a_refusal_is_shown_and_asked_again_before_it_counts() -> None:
    """An engine that answers 500 is asked until the limit; the last answer is the reason."""
    life, questions = Life(alive_at=0.0), 0
    verdict: Verdict = Fine()
    for at in _beats(130):
        life = follow(life, reading(at))
        verdict = judge(life, at, LIMITS)
        if isinstance(verdict, AskToken):
            questions += 1
            life = refused(asked(life, at), "a completion answered 500")
        if isinstance(verdict, Dead):
            break
    assert isinstance(verdict, Dead) and "(a completion answered 500)" in verdict.fault.sentence
    assert 5 <= questions <= 15


def test_a_stopped_process_is_told_by_name() -> None:
    """SIGSTOP of any of its processes, though numbers say that a request runs."""
    halted = Pulse(halted=("pid 12, VLLM::EngineCor",))
    series = [reading(at, running=1, pulse=halted if at > 20 else Pulse()) for at in _beats(60)]
    found = first_trouble(series)
    assert found is not None and found[0].at == 32
    assert found[1].fault.sentence == (
        "The engine is stalled: pid 12, VLLM::EngineCor is stopped (SIGSTOP) for 10 s; last token 32 s ago."
    )


def test_a_debugger_s_moment_is_no_stall() -> None:
    halted = Pulse(halted=("pid 12, x",))
    series = [reading(at, running=1, pulse=halted if 20 < at < 28 else Pulse()) for at in _beats(60)]
    assert first_trouble(series) is None


def test_only_a_token_made_since_ends_a_stall() -> None:
    """What was counted between the last scrape and the stall is no proof."""
    life = follow(Life(alive_at=0.0), reading(10))
    before = follow(life, reading(12, tokens=1001))
    assert not isinstance(judge_stalled(before, 12, since=11), Moves)
    after = follow(before, reading(14, tokens=1002))
    assert judge_stalled(after, 14, since=11) == Moves("It gives tokens again, 3 s after it stalled.")


def test_a_stalled_engine_is_asked_until_it_answers() -> None:
    life = follow(Life(alive_at=0.0), reading(200, waiting=3))
    assert judge_stalled(life, 200, since=190) == AskToken()
    life = asked(life, 200)
    assert judge_stalled(life, 202, since=190) == Fine()
    assert isinstance(judge_stalled(answered(life, 203), 204, since=190), Moves)


def test_nobody_asks_a_stopped_process() -> None:
    life = follow(Life(alive_at=0.0), reading(200, pulse=Pulse(halted=("pid 1, x",))))
    assert judge_stalled(life, 200, since=190) == Fine()
