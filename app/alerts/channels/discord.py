"""Discord's webhooks."""

from __future__ import annotations

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

CONTENT_LIMIT = 2000


class Discord:
    """Plain `content`; nobody is mentioned, whatever a fleet is called."""

    name = "discord"
    signs = False

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """The text, cut at Discord's limit."""
        content = plain_text(notice, target.keyword)[:CONTENT_LIMIT]
        return json_request(target.url, {"content": content, "allowed_mentions": {"parse": []}})

    def judge(self, answer: Answer) -> Outcome:
        """204 without a body, or 200 with the message when the address ends in `?wait=true`."""
        code = robot_code(answer.body)
        if code is not None and code[0] != 0:
            return failed(answer, said(answer), permanent=True)
        return delivered(answer)
