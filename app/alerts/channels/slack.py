"""Slack's incoming webhooks, and what speaks like them (Mattermost, Rocket.Chat)."""

from __future__ import annotations

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
    plain_text,
    said,
)


class Slack:
    """`text` for notifications, `blocks` for the message itself."""

    name = "slack"
    signs = False

    def compose(self, notice: Notice, target: Target, now: float) -> Outgoing:
        """One section; the three characters that Slack reads as markup are escaped."""
        text = _escape(plain_text(notice, target.keyword))
        block = {"type": "section", "text": {"type": "mrkdwn", "text": text[:3000]}}
        return json_request(target.url, {"text": text, "blocks": [block]})

    def judge(self, answer: Answer) -> Outcome:
        """Slack says `ok`; look-alikes say `{"ok": true}` or `{"success": true}`."""
        if answer.body.strip().lower() == "ok":
            return delivered(answer)
        parsed = json_object(answer.body)
        if parsed.get("ok") is True or parsed.get("success") is True:
            return delivered(answer)
        return failed(answer, said(answer) or "an empty answer instead of 'ok'", permanent=True)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
