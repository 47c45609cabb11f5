"""Any HTTP receiver: plain JSON, signed when there is a secret."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict, replace

from app.alerts.channels.base import (
    Answer,
    Notice,
    Outcome,
    Outgoing,
    Target,
    delivered,
    failed,
    json_object,
    json_request,
    robot_code,
    said,
)

LOWEST_ROBOT_CODE = 1000
"""Robots' error codes are at least this; a smaller `code` is some service's own way to say OK."""


class Generic:
    """The documented payload; see docs/alerts.md."""

    name = "generic"
    signs = True

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """The notice as JSON."""
        payload = {name: value for name, value in asdict(notice).items() if name != "flip_id"}
        request = json_request(target.url, payload)
        if not target.secret:
            return request
        return replace(request, headers={**request.headers, **signature(target.secret, request.body, now)})

    def judge(self, answer: Answer) -> Outcome:
        """The status decides, unless the body is a chat robot's refusal (a robot's address entered as generic)."""
        return failed(answer, said(answer), permanent=True) if _is_refusal(answer.body) else delivered(answer)


def signature(secret: str, body: bytes, now: float) -> dict[str, str]:
    """Headers that prove who sent `body`, and when."""
    timestamp = str(int(now))
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Tierdeck-Timestamp": timestamp, "X-Tierdeck-Signature": f"sha256={digest}"}


def _is_refusal(body: str) -> bool:
    code = robot_code(body)
    if code is None:
        return False
    return code[0] != 0 if "errcode" in json_object(body) else code[0] >= LOWEST_ROBOT_CODE
