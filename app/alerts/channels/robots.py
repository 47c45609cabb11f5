"""Feishu's and DingTalk's group robots. Both answer 200 for what they throw away."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any
from urllib.parse import quote_plus

from app.alerts.channels.base import (
    Answer,
    Notice,
    Outcome,
    Outgoing,
    Target,
    delivered,
    failed,
    json_request,
    plain_text,
    robot_code,
    said,
)

BUSY_CODES = frozenset({-1, 11232, 130101})
"""Not a refusal: too many messages at once (11232 Feishu, 130101 DingTalk) or a busy system (-1)."""


class Feishu:
    """`msg_type` and `content`; the signature goes into the body."""

    name = "feishu"
    signs = True

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """A text message."""
        payload: dict[str, Any] = {"msg_type": "text", "content": {"text": plain_text(notice, target.keyword)}}
        if target.secret:
            timestamp = str(int(now))
            payload |= {"timestamp": timestamp, "sign": feishu_sign(target.secret, timestamp)}
        return json_request(target.url, payload)

    def judge(self, answer: Answer) -> Outcome:
        """`code` or `StatusCode` 0."""
        return judge_robot(answer)


class DingTalk:
    """`msgtype` and `text`; the signature goes into the address."""

    name = "dingtalk"
    signs = True

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """A text message."""
        payload = {"msgtype": "text", "text": {"content": plain_text(notice, target.keyword)}}
        return json_request(_signed_url(target, now), payload)

    def judge(self, answer: Answer) -> Outcome:
        """`errcode` 0."""
        return judge_robot(answer)


def judge_robot(answer: Answer) -> Outcome:
    """Success is a code of 0 and nothing else; a body without a code did not come from the robot."""
    code = robot_code(answer.body)
    if code is None:
        return failed(answer, f"not a robot's answer: {said(answer) or 'empty'}", permanent=False)
    if code[0] == 0:
        return delivered(answer)
    return failed(answer, said(answer), permanent=code[0] not in BUSY_CODES)


def feishu_sign(secret: str, timestamp: str) -> str:
    """Feishu's scheme: the text to sign is the key, and the message is empty."""
    return _base64_hmac(key=f"{timestamp}\n{secret}", message="")


def dingtalk_sign(secret: str, timestamp: str) -> str:
    """DingTalk's scheme: milliseconds and secret, signed with the secret."""
    return _base64_hmac(key=secret, message=f"{timestamp}\n{secret}")


def _base64_hmac(key: str, message: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()).decode()


def _signed_url(target: Target, now: float) -> str:
    if not target.secret:
        return target.url
    timestamp = str(int(now * 1000))
    joint = "&" if "?" in target.url else "?"
    return f"{target.url}{joint}timestamp={timestamp}&sign={quote_plus(dingtalk_sign(target.secret, timestamp))}"
