"""Payloads, signatures, and how answers are judged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from app.alerts.channels import CHANNELS, channel_named
from app.alerts.channels.base import ANSWER_LIMIT, Answer, Notice, Outcome, Target, judge
from app.alerts.delivery import ATTEMPT_LIMIT, LONGEST_RETRY_SECONDS, alerts_link, retry_delay_seconds, verdict
from app.alerts.secrecy import check_url, scrub, secrets_of, shown_url
from app.config import Settings
from app.errors import InvalidInput

NOW = 1_700_000_000.5
SECRET = "SEC0123456789"
ROBOT = "https://oapi.dingtalk.com/robot/send?access_token=abcdef0123456789"
NOTICE = Notice(
    7,
    "alert",
    "Host hits near 0",
    "main",
    "firing",
    "Host hits serve only 1.0 %.",
    NOW,
    {"host_share": 0.01},
    "http://deck/alerts",
)


def body(channel: str, secret: str | None = None, keyword: str = "", notice: Notice = NOTICE):
    return json.loads(CHANNELS[channel].compose(notice, Target(channel, ROBOT, secret, keyword), NOW).body)


def test_generic_tells_everything_and_nothing_else():
    """The documented fields, the evidence as an object."""
    assert body("generic") == {
        "event": "alert",
        "rule": "Host hits near 0",
        "fleet": "main",
        "state": "firing",
        "sentence": "Host hits serve only 1.0 %.",
        "at": NOW,
        "evidence": {"host_share": 0.01},
        "link": "http://deck/alerts",
    }


def test_generic_signs_time_and_body():
    """The signature is HMAC-SHA256 over `timestamp.body`; without a secret there is none."""
    sent = channel_named("generic").compose(NOTICE, Target("generic", ROBOT, SECRET), NOW)
    timestamp = sent.headers["X-Tierdeck-Timestamp"]
    expected = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + sent.body, hashlib.sha256).hexdigest()
    assert timestamp == "1700000000"
    assert sent.headers["X-Tierdeck-Signature"] == f"sha256={expected}"
    unsigned = channel_named("generic").compose(NOTICE, Target("generic", ROBOT), NOW)
    assert not any(name.startswith("X-Tierdeck") for name in unsigned.headers)


TEXT = "[Tierdeck FIRING] Host hits near 0 / main\nHost hits serve only 1.0 %.\nhttp://deck/alerts"


def test_each_chat_gets_its_own_shape():
    """Field names as the vendors want them."""
    slack = body("slack")
    assert slack["text"] == TEXT
    assert slack["blocks"] == [{"type": "section", "text": {"type": "mrkdwn", "text": TEXT}}]
    assert body("discord") == {"content": TEXT, "allowed_mentions": {"parse": []}}
    assert body("feishu") == {"msg_type": "text", "content": {"text": TEXT}}
    assert body("dingtalk") == {"msgtype": "text", "text": {"content": TEXT}}


@pytest.mark.parametrize("channel", ["slack", "discord", "feishu", "dingtalk"])
def test_the_keyword_is_in_the_message_once(channel):
    """Robots throw away what lacks their keyword; a message that has it is not changed."""
    assert TEXT.replace("[", "监控 [", 1) in json.dumps(body(channel, keyword="监控"), ensure_ascii=False).replace(
        "\\n", "\n"
    )
    assert body(channel, keyword="Tierdeck") == body(channel)


def test_feishu_signs_in_the_body():
    """Key = `timestamp\\nsecret`, message empty."""
    signed = body("feishu", SECRET)
    expected = hmac.new(f"1700000000\n{SECRET}".encode(), b"", hashlib.sha256).digest()
    assert signed["timestamp"] == "1700000000"
    assert signed["sign"] == base64.b64encode(expected).decode()


def test_dingtalk_signs_in_the_address():
    """Key = secret, message = `milliseconds\\nsecret`, both in the query, the token kept."""
    sent = channel_named("dingtalk").compose(NOTICE, Target("dingtalk", ROBOT, SECRET), NOW)
    query = parse_qs(urlsplit(sent.url).query)
    expected = hmac.new(SECRET.encode(), f"1700000000500\n{SECRET}".encode(), hashlib.sha256).digest()
    assert query == {
        "access_token": ["abcdef0123456789"],
        "timestamp": ["1700000000500"],
        "sign": [base64.b64encode(expected).decode()],
    }


def test_a_name_cannot_shout_at_a_channel():
    """Markup of Slack and mentions of Discord do not come through a fleet's name."""
    rude = Notice(1, "alert", "r", "<!channel> @everyone & co", "ok", "s", NOW, {}, None)
    assert "&lt;!channel&gt; @everyone &amp; co" in body("slack", notice=rude)["text"]
    assert body("discord", notice=rude)["allowed_mentions"] == {"parse": []}


KEYWORDS = '{"errcode":310000,"errmsg":"keywords not in content"}'
EMPTY_MESSAGE = '{"message": "Cannot send an empty message", "code": 50006}'
SIGN_IN = "<html>Please sign in</html>"
DELIVERED, REFUSED, AGAIN = (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("channel", "status", "answer", "expected", "shown"),
    [
        ("dingtalk", 200, KEYWORDS, REFUSED, "310000: keywords not in content"),
        ("feishu", 200, '{"code":19024,"msg":"Key Words Not Found","data":{}}', REFUSED, "19024: Key Words Not Found"),
        ("feishu", 200, '{"code":0}', DELIVERED, "0"),
        ("feishu", 200, '{"StatusCode":0,"StatusMessage":"success"}', DELIVERED, "0: success"),
        ("slack", 200, "ok", DELIVERED, "ok"),
        ("discord", 204, "", DELIVERED, ""),
        ("dingtalk", 200, '{"errcode":0,"errmsg":"ok"}', DELIVERED, "0: ok"),
        ("dingtalk", 200, '{"errcode":130101,"errmsg":"send too fast"}', AGAIN, "130101: send too fast"),
        ("dingtalk", 200, SIGN_IN, AGAIN, f"not a robot's answer: {SIGN_IN}"),
        ("feishu", 200, "", AGAIN, "not a robot's answer: empty"),
        ("generic", 200, KEYWORDS, REFUSED, "310000: keywords not in content"),
        ("generic", 200, '{"code":19024,"msg":"Key Words Not Found","data":{}}', REFUSED, "19024: Key Words Not Found"),
        ("generic", 200, '{"code":200,"msg":"OK"}', DELIVERED, "200: OK"),
        ("generic", 202, "accepted", DELIVERED, "accepted"),
        ("generic", 200, '["errcode"]', DELIVERED, '["errcode"]'),
        ("slack", 200, '{"ok":false,"error":"x"}', REFUSED, '{"ok":false,"error":"x"}'),
        ("slack", 404, "no_service", REFUSED, "no_service"),
        ("slack", 429, "", AGAIN, ""),
        ("discord", 400, EMPTY_MESSAGE, REFUSED, "50006: Cannot send an empty message"),
        ("generic", 500, "boom", AGAIN, "boom"),
        ("generic", 302, "", REFUSED, "redirects are not followed; enter the final address"),
        ("generic", 410, "gone", REFUSED, "gone"),
    ],
)  # fmt: skip
def test_only_the_receivers_own_success_is_success(channel, status, answer, expected, shown):
    """Status and body together decide; a refusal is permanent and shown with code and message."""
    outcome = judge(channel_named(channel), Answer(status, answer))
    assert (outcome.ok, outcome.permanent) == expected
    assert outcome.answer == shown


def test_a_long_answer_is_cut():
    """A page of HTML does not fill the table."""
    assert len(judge(channel_named("generic"), Answer(500, "x" * 9000)).answer) == ANSWER_LIMIT


def test_retries_grow_to_a_limit_and_end():
    """5 s, 15 s, 45 s, ... at most ten minutes, ten attempts; a receiver may ask for longer waits."""
    assert [retry_delay_seconds(n) for n in range(1, 7)] == [5, 15, 45, 135, 405, 600]
    assert retry_delay_seconds(1, asked_seconds=60) == 60
    assert retry_delay_seconds(1, asked_seconds=1e9) == LONGEST_RETRY_SECONDS
    broken = Outcome(False, False, 500, "boom")
    assert verdict(broken, 1, NOW).state == "pending"
    assert verdict(broken, 1, NOW).next_at == NOW + 5
    assert verdict(broken, ATTEMPT_LIMIT, NOW).answer == "boom (given up after 10 attempts)"
    assert verdict(Outcome(False, True, 200, "310000"), 1, NOW).state == "failed"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (ROBOT, "https://oapi.dingtalk.com/…6789"),
        ("https://hooks.slack.com/services/T000/B000/XXXXsecret", "https://hooks.slack.com/…cret"),
        ("http://10.0.0.5:9000/hook", "http://10.0.0.5:9000/…"),
    ],
)
def test_an_address_shows_its_host_and_a_tail(url, shown):
    """Enough to tell two robots apart, not enough to post."""
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    ["", "rookery", "ftp://host/x", "file:///etc/passwd", "http://", "http://u:p@host/x", "http://host:99999/x", "http://[::1/x",
     "http://host/a b", "http://host/a\r\nX: y", "javascript:alert(1)"],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_repeating_it(url):
    """http and https to a host, nothing else; the sentence says what to write."""
    with pytest.raises(InvalidInput) as raised:
        check_url(url)
    assert raised.value.path == "url"
    assert not url.strip("htp:/") or url not in raised.value.message


def test_private_addresses_are_allowed():
    """Operators' receivers live on their own networks."""
    assert check_url(" http://127.0.0.1:9000/hook ") == "http://127.0.0.1:9000/hook"


def test_what_a_receiver_echoes_is_blotted_out():
    """Neither token nor secret nor address survives in an answer."""
    echoed = f"POST {ROBOT} with {SECRET}: unknown token abcdef0123456789"
    kept = scrub(echoed, secrets_of(ROBOT, SECRET))
    assert "abcdef" not in kept
    assert SECRET not in kept


def test_targets_do_not_print_their_secrets():
    """A repr may end in a log."""
    target = Target("generic", ROBOT, SECRET)
    sent = channel_named("dingtalk").compose(NOTICE, target, NOW)
    assert "abcdef" not in repr(target) + repr(sent)
    assert SECRET not in repr(target)


def test_the_link_is_an_address_people_can_open():
    """IPv6 in brackets; never 0.0.0.0."""
    assert alerts_link(Settings(host="127.0.0.1", port=8700)) == "http://127.0.0.1:8700/alerts"
    assert alerts_link(Settings(host="::1", port=8700)) == "http://[::1]:8700/alerts"
    assert "0.0.0.0" not in alerts_link(Settings(host="0.0.0.0", port=8700))
