"""docs/alerts.md says what the code does."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

from app.alerts.channels import CHANNELS
from app.alerts.channels.base import Notice, Target
from app.alerts.engine_rule import EngineDown
from app.alerts.rules import HostHitsLow, Observation

PAGE = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def documented() -> dict[str, object]:
    return dict(json.loads(block("json")))


def test_the_documented_payload_is_the_one_that_is_sent():
    """Field by field, the evidence included."""
    shown = documented()
    judged = HostHitsLow().judge(Observation(1764460800.0, 0.004, 0.41, 812_000))
    notice = Notice(
        1,
        "alert",
        "Host hits near 0",
        "main",
        "firing",
        f"{judged.sentence} This has held for 2 min.",
        1764460800.0,
        judged.evidence,
        "http://127.0.0.1:8700/alerts",
    )
    sent = CHANNELS["generic"].compose(notice, Target("generic", "http://x/"), 0.0)
    assert json.loads(sent.body) == shown


def test_the_documented_check_accepts_what_is_signed_and_nothing_else():
    """A receiver can copy it as it is."""
    scope: dict[str, object] = {}
    exec(block("python"), scope)
    is_genuine = scope["is_genuine"]
    notice = Notice(1, "test", None, None, "test", "s", 0.0, {}, None)
    sent = CHANNELS["generic"].compose(notice, Target("generic", "http://x/", "secret"), time.time())
    old = CHANNELS["generic"].compose(notice, Target("generic", "http://x/", "secret"), time.time() - 900)
    assert is_genuine(sent.headers, sent.body, "secret")
    assert not is_genuine(sent.headers, sent.body + b" ", "secret")
    assert not is_genuine(sent.headers, sent.body, "other")
    assert not is_genuine(old.headers, old.body, "secret")
    assert not is_genuine(replace(sent, headers={**sent.headers, **old.headers}).headers, sent.body, "secret")


def test_every_parameter_and_channel_is_documented():
    """With the default that is in force."""
    for name, value in HostHitsLow().parameters().items():
        row = re.search(rf"\| `{name}` \| ([\d.]+) \|", PAGE)
        assert row, name
        assert float(row[1]) == value
    (hold,) = re.findall(r"`engine_down`.*?`hold_seconds` is ([\d.]+) s", PAGE, re.DOTALL)
    assert float(hold) == EngineDown().hold_seconds
    for name in CHANNELS:
        assert f"| `{name}` |" in PAGE
