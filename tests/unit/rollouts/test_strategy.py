"""Which ways of applying a version are open."""

from __future__ import annotations

from app.rollouts.said import say
from app.rollouts.strategy import Member, in_order, obstacle, usual

A, B = Member("a", True, False), Member("b", True, False)
DOWN, OFF = Member("c", False, False), Member("d", False, True)


def test_engines_that_serve_nobody_go_first() -> None:
    """Then by name; those stopped on purpose last."""
    assert [one.name for one in in_order([OFF, B, DOWN, A])] == ["c", "a", "b", "d"]


def test_rolling_needs_another_engine() -> None:
    """Refused with the way that is open; one stopped on purpose is no other."""
    assert "in_place" in obstacle("rolling", [A]).text
    assert "a is the only engine" in obstacle("rolling", [A, OFF]).text
    assert obstacle("rolling", [OFF]).text
    assert obstacle("rolling", [A, DOWN]).text == ""
    assert obstacle("in_place", [A]).text == ""


def test_new_engines_need_room() -> None:
    """Beside the old ones: what stands against it is told as it is."""
    assert obstacle("blue_green", [A]).text == ""
    assert obstacle("blue_green", [A], say("No room.")).text == "No room."
    assert obstacle("in_place", [A], say("No room.")).text == ""


def test_the_usual_way() -> None:
    """Rolling where several engines are meant to run."""
    assert usual([A, B]) == "rolling"
    assert usual([A, OFF]) == "in_place"
