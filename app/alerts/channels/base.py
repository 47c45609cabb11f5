"""What a channel is: a message's shape, and how the receiver's answer is read. Pure.

A chat robot answers 200 for a message that it throws away; only its body tells. So a channel decides from
status and body together, and whether a failure is permanent: the same message would fail again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

ANSWER_LIMIT = 300

RETRY_STATUSES = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Notice:
    """What is told."""

    flip_id: int
    event: str
    """`alert` or `test`."""
    rule: str | None
    fleet: str | None
    state: str
    """`firing`, `ok` or `test`."""
    sentence: str
    at: float
    evidence: dict[str, Any]
    link: str | None


@dataclass(frozen=True)
class Target:
    """To whom. Its address and secret stay out of reprs and so out of logs."""

    channel: str
    url: str = field(repr=False)
    secret: str | None = field(repr=False, default=None)
    keyword: str = ""


@dataclass(frozen=True)
class Outgoing:
    """A request ready to be sent."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What the receiver said; the body is cut at the limit of the sender."""

    status: int
    body: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a delivery went. `answer` is what people are shown."""

    ok: bool
    permanent: bool
    status: int | None
    answer: str
    retry_after_seconds: float | None = None


class Channel(Protocol):
    """One kind of receiver."""

    name: str
    signs: bool
    """True when a secret is of use to it."""

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """The request that tells `notice`."""

    def judge(self, answer: Answer) -> Outcome:
        """What an answer with a 2xx status means."""


def judge(channel: Channel, answer: Answer) -> Outcome:
    """What the answer means: the status first, then the channel's reading of the body."""
    if answer.status in RETRY_STATUSES or answer.status >= 500:
        return failed(answer, said(answer), permanent=False)
    if 300 <= answer.status < 400:
        return failed(answer, "redirects are not followed; enter the final address", permanent=True)
    if not 200 <= answer.status < 300:
        return failed(answer, said(answer), permanent=True)
    return channel.judge(answer)


def delivered(answer: Answer) -> Outcome:
    """The receiver took the message."""
    return Outcome(True, False, answer.status, said(answer))


def failed(answer: Answer, sentence: str, *, permanent: bool) -> Outcome:
    """The receiver did not take the message."""
    return Outcome(False, permanent, answer.status, sentence[:ANSWER_LIMIT], answer.retry_after_seconds)


def said(answer: Answer) -> str:
    """The answer in short: a robot's code and message if it gave them, else the beginning of the body."""
    code = robot_code(answer.body)
    if code is not None:
        return f"{code[0]}: {code[1]}"[:ANSWER_LIMIT] if code[1] else str(code[0])
    return " ".join(answer.body.split())[:ANSWER_LIMIT]


def robot_code(body: str) -> tuple[int, str] | None:
    """Code and message of a chat robot's answer, whatever it calls them; None when there is no code."""
    answer = json_object(body)
    for name in ("errcode", "code", "StatusCode"):
        code = answer.get(name)
        if isinstance(code, int) and not isinstance(code, bool):
            return code, _message(answer)
    return None


def json_object(body: str) -> dict[str, Any]:
    """The body as a JSON object; empty when it is none."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def as_json(payload: Mapping[str, Any]) -> bytes:
    """The bytes that are sent and signed."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_request(url: str, payload: Mapping[str, Any]) -> Outgoing:
    """A POST of `payload`."""
    return Outgoing(url, as_json(payload), {"Content-Type": "application/json; charset=utf-8"})


def plain_text(notice: Notice, keyword: str) -> str:
    """The message for people, with the robot's keyword in it."""
    words = {"firing": "FIRING", "ok": "RESOLVED", "test": "TEST"}
    about = " / ".join(part for part in (notice.rule, notice.fleet) if part)
    head = f"[Tierdeck {words.get(notice.state, notice.state)}]" + (f" {about}" if about else "")
    text = "\n".join(line for line in (head, notice.sentence, notice.link) if line)
    return text if not keyword or keyword in text else f"{keyword} {text}"


def _message(answer: Mapping[str, Any]) -> str:
    for name in ("errmsg", "msg", "StatusMessage", "message"):
        if isinstance(answer.get(name), str):
            return " ".join(str(answer[name]).split())
    return ""
