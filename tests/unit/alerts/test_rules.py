"""The rule itself and its parameters, and how an observation is made."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.alerts.engine_rule import EngineDown
from app.alerts.kinds import KINDS, kind_named
from app.alerts.observe import ScrapeRun, from_origin, scrape_gap
from app.alerts.rules import HostHitsLow, Observation, span
from app.errors import InvalidInput

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("host", "recomputed", "tokens", "verdict"),
    [
        (0.01, 0.31, 20_000, "bad"),
        (0.02, 0.90, 20_000, "good"),  # not below
        (0.00, 0.30, 20_000, "good"),  # not above
        (0.00, 1.00, 19_999, "idle"),
        (None, 1.00, 20_000, "no_data"),
        (None, None, None, "no_data"),
        (None, None, 0, "idle"),
    ],
)
def test_both_thresholds_and_enough_input_make_it_bad(host, recomputed, tokens, verdict):
    """Too little input and missing numbers are no verdict, and never 0 %."""
    assert HostHitsLow().judge(Observation(NOW, host, recomputed, tokens)).verdict == verdict


def test_the_sentence_has_the_numbers():
    """What is sent can be understood without opening the page."""
    judged = HostHitsLow().judge(Observation(NOW, 0.01, 0.455, 120_000))
    assert judged.sentence == (
        "Host hits serve only 1.0 % of the input tokens while 45.5 % are recomputed "
        "(120,000 input tokens in the last 5 min)."
    )
    assert judged.evidence["host_share"] == 0.01
    assert judged.evidence["hold_seconds"] == 120


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"host_share_below": 2}, "parameters.host_share_below"),
        ({"host_share_below": "0.02"}, "parameters.host_share_below"),
        ({"host_share_below": None}, "parameters.host_share_below"),
        ({"recomputed_share_above": float("nan")}, "parameters.recomputed_share_above"),
        ({"recomputed_share_above": -0.1}, "parameters.recomputed_share_above"),
        ({"min_input_tokens": 1.5}, "parameters.min_input_tokens"),
        ({"min_input_tokens": True}, "parameters.min_input_tokens"),
        ({"hold_seconds": -1}, "parameters.hold_seconds"),
        ({"window_seconds": 5}, "parameters.window_seconds"),
        ({"windw_seconds": 300}, "parameters.windw_seconds"),
    ],
)
def test_a_wrong_parameter_is_named_and_mended(parameters, path):
    """The error names the field and says what to write."""
    with pytest.raises(InvalidInput) as raised:
        HostHitsLow.parse(parameters)
    assert raised.value.path == path
    assert "write for example" in raised.value.message or "it has: window_seconds" in raised.value.message


def test_missing_parameters_get_their_defaults():
    """A rule stored by an older deck stays valid."""
    assert KINDS["host_hits_low"].rule({"hold_seconds": 60}).parameters() == {
        "window_seconds": 300.0,
        "host_share_below": 0.02,
        "recomputed_share_above": 0.3,
        "min_input_tokens": 20_000,
        "hold_seconds": 60.0,
    }


def test_an_unknown_kind_is_refused():
    """The sentence lists the kinds there are."""
    with pytest.raises(InvalidInput, match="host_hits_low"):
        kind_named("nope")


@pytest.mark.parametrize(("seconds", "words"), [(300, "5 min"), (90, "90 s"), (7200, "2 h"), (0, "0 s")])
def test_spans_are_short(seconds, words):
    """Whole units where there are any."""
    assert span(seconds) == words


@dataclass(frozen=True)
class Origin:
    input_tokens: float | None
    host_tokens: float | None
    recomputed_tokens: float | None
    reason: str | None = None


def test_shares_are_of_all_input_tokens():
    """The denominator is the input of the window."""
    made = from_origin(NOW, Origin(200_000, 50_000, 20_000))
    assert (made.host_share, made.recomputed_share, made.input_tokens) == (0.25, 0.1, 200_000)


@pytest.mark.parametrize(("origin", "tokens"), [(Origin(0, 0, 0), 0), (Origin(None, None, None, "no samples"), None)])
def test_without_input_there_is_no_share(origin, tokens):
    """0 of 0 is neither 0 nor 100 %."""
    made = from_origin(NOW, origin)
    assert (made.host_share, made.recomputed_share, made.input_tokens) == (None, None, tokens)


def run(engine: str, ok: bool, first: float, last: float, reason: str = "") -> ScrapeRun:
    return ScrapeRun(engine, ok, NOW + first, NOW + last, reason)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no engine of the fleet has been scraped yet"),
        ([run("a", True, -900, -1)], None),
        ([run("a", True, -900, -60)], "a has not been scraped since 2023-11-14 22:12 UTC"),
        ([run("a", False, -120, -1, "timeout")], "scrape of a failed since 2023-11-14 22:11 UTC: timeout"),
        ([run("a", False, -120, -1, "timeout"), run("b", True, -900, -2)], None),
        ([run("a", False, -120, -1, "timeout"), run("b", True, -900, -60)], "scrape of a failed since"),
    ],
)
def test_old_numbers_are_not_judged(runs, said):
    """Data counts while at least one engine of the fleet was scraped just now."""
    found = scrape_gap(runs, NOW, 15)
    assert (found is None) if said is None else found.startswith(said)


def test_engine_rule_knows_its_one_parameter():
    """Without engines it has no verdict; a parameter of another kind is refused."""
    assert EngineDown.parse({}).parameters() == {"hold_seconds": 0.0}
    assert EngineDown().judge(Observation(NOW, None, None, None)).verdict == "no_data"
    with pytest.raises(InvalidInput) as raised:
        EngineDown.parse({"window_seconds": 5})
    assert raised.value.path == "parameters.window_seconds"
