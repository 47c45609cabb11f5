"""Where sessions are at home."""

from __future__ import annotations

from app.proxy.sessions import Answers, Homes


def test_a_home_is_kept_however_often_a_session_is_served_elsewhere() -> None:
    """A stand-in does not become the home."""
    homes = Homes()
    homes.settle("s", "a")
    homes.settle("s", "b")
    assert homes.of("s") == "a" and homes.count("a") == 1 and homes.count("b") == 0


def test_the_session_that_was_away_longest_is_forgotten() -> None:
    """Memory is bounded, and the counts follow."""
    homes = Homes(limit=2)
    for session in ("s1", "s2", "s1", "s3"):
        homes.settle(session, "a")
    assert [homes.of(session) for session in ("s1", "s2", "s3")] == ["a", None, "a"]
    assert homes.count("a") == 2


def test_homes_of_an_earlier_deck_come_back() -> None:
    """The newest record of a session counts."""
    homes = Homes(limit=2)
    homes.restore([("s1", "b"), ("s2", "a"), ("s1", "a"), ("s3", "a")])
    assert homes.of("s1") == "b" and homes.of("s2") == "a" and homes.of("s3") is None


def test_answers_lead_back_to_their_session() -> None:
    """The oldest are forgotten first."""
    answers = Answers(limit=1)
    answers.remember("resp_1", "s")
    answers.remember("resp_2", "s")
    assert answers.session_of("resp_1") is None and answers.session_of("resp_2") == "s"
