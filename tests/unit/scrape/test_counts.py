"""What a page says of an engine's life."""

from __future__ import annotations

from app.scrape.counts import counts_of
from app.scrape.parse import Page, parse_page
from app.supervisor.liveness import Counts
from tests.unit.scrape.pages import CAPTURED, OLD

STUCK = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 5.12e+08
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} 100.0
"""


def test_requests_and_tokens_of_a_page() -> None:
    assert counts_of(parse_page(STUCK)) == Counts(running=0, waiting=3, tokens=512000100)
    assert counts_of(parse_page(CAPTURED.read_text())) is not None


def test_a_page_that_lacks_one_of_them_says_nothing() -> None:
    """What is missing is not zero: an engine is not stalled because it does not tell."""
    assert counts_of(None) is None
    assert counts_of(Page()) is None
    assert counts_of(parse_page(OLD)) is None
