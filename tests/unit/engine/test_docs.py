"""The connector's page says what the code says."""

from pathlib import Path

from engine import config, metric_names
from engine.sizing import plan_slots

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "connector.md").read_text()


def test_keys_and_metrics_are_those_of_the_code() -> None:
    """Both tables are generated: paste the new one when this fails."""
    assert config.reference() in PAGE
    assert metric_names.reference() in PAGE


def test_the_table_of_splits_is_what_the_code_gives() -> None:
    """16 GiB, 4 workers, blocks of 784 tokens, 10.24 MB and 29.7 MB per worker."""
    for reference, retention in ((None, None), (65_536, 6_272), (65_536, 0), (16_384, 0)):
        plan = plan_slots(16 << 30, 4, 10.24e6, 29.7e6, 784, reference, retention)
        assert f"| {plan.token_slots} | {plan.state_slots} |" in PAGE
