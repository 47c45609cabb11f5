"""The alerts page's object: rules as they stand, what flipped, who was told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.services.alerts import AlertView, DeliveryView, FlipView, RuleView, WebhookView
from app.web import formats, words
from app.web.blocks import AlertLine, Choice, DeliveryLine, FlipLine, RuleField, RuleForm, Shell, WebhookLine
from app.web.contexts import AlertsPage
from app.web.i18n import Gettext, Language
from app.web.retold import retold

CHANNELS = ("generic", "slack", "discord", "feishu", "dingtalk")


@dataclass(frozen=True)
class AlertFacts:
    """What the service told."""

    rules: Sequence[RuleView]
    alerts: Sequence[AlertView]
    flips: Sequence[FlipView]
    webhooks: Sequence[WebhookView]
    deliveries: Sequence[DeliveryView]


def alerts_page(shell: Shell, language: Language, facts: AlertFacts) -> AlertsPage:
    """Everything the alerts page shows."""
    _ = language.gettext
    return AlertsPage(
        shell=shell,
        refresh_href="/alerts",
        rules=tuple(_rule_form(rule, facts.alerts, _) for rule in facts.rules),
        flips=tuple(_flip_line(flip, _) for flip in facts.flips),
        webhooks=tuple(_webhook_line(webhook, _) for webhook in facts.webhooks),
        deliveries=tuple(_delivery_line(delivery, _) for delivery in facts.deliveries),
        channels=tuple(Choice(name, channel_label(name, _)) for name in CHANNELS),
    )


def channel_label(name: str, _: Gettext) -> str:
    """A channel's name as people know it."""
    labels = {
        "generic": _("Generic JSON"),
        "slack": "Slack",
        "discord": "Discord",
        "feishu": _("Feishu / Lark"),
        "dingtalk": _("DingTalk"),
    }
    return labels.get(name, name)


def _rule_form(rule: RuleView, alerts: Sequence[AlertView], _: Gettext) -> RuleForm:
    return RuleForm(
        id=rule.id,
        name=rule.name,
        explanation=_explanation(rule.kind, _),
        is_enabled=rule.enabled,
        fields=tuple(_rule_field(name, value, _) for name, value in rule.parameters.items()),
        alerts=tuple(
            AlertLine(alert.fleet, words.alert_badge(alert.state, _), alert.since, retold(alert.sentence, _))
            for alert in alerts
            if alert.rule_id == rule.id
        ),
    )


def _explanation(kind: str, _: Gettext) -> str:
    texts = {
        "host_hits_low": _("Fires when host memory serves almost nothing while much of the input is recomputed."),
        "engine_down": _("Fires when an engine was given up after equal failures, or is stalled."),
    }
    return texts.get(kind, kind)


def _rule_field(name: str, value: float, _: Gettext) -> RuleField:
    labels = {
        "window_seconds": _("Look back"),
        "host_share_below": _("Host hits below"),
        "recomputed_share_above": _("Recomputed above"),
        "min_input_tokens": _("Judge from this much input"),
        "hold_seconds": _("Hold for"),
    }
    unit, scale = _unit(name)
    return RuleField(name, labels.get(name, name), unit, formats.significant(value / scale, 12), scale)


def _unit(name: str) -> tuple[str, float]:
    if "share" in name or "ratio" in name:
        return "%", 0.01
    if name.endswith("_seconds"):
        return "s", 1
    return ("tok", 1) if name.endswith("_tokens") else ("", 1)


def _flip_line(flip: FlipView, _: Gettext) -> FlipLine:
    return FlipLine(
        at=flip.at,
        rule=flip.rule or _("Test message"),
        fleet=flip.fleet or "",
        old=words.alert_badge(flip.old, _),
        new=words.alert_badge(flip.new, _),
        sentence=retold(flip.sentence, _),
    )


def _webhook_line(webhook: WebhookView, _: Gettext) -> WebhookLine:
    return WebhookLine(
        id=webhook.id,
        name=webhook.name,
        channel=webhook.channel,
        channel_label=channel_label(webhook.channel, _),
        url_shown=webhook.url_shown,
        keyword=webhook.keyword,
        has_secret=webhook.has_secret,
        is_enabled=webhook.enabled,
    )


def _delivery_line(delivery: DeliveryView, _: Gettext) -> DeliveryLine:
    tone, label = words.delivery_label(delivery.state, _)
    return DeliveryLine(
        id=delivery.id,
        at=delivery.last_at,
        webhook=delivery.webhook,
        about=words.alert_badge(delivery.event, _).label,
        state=delivery.state,
        tone=tone,
        label=label,
        attempts=delivery.attempts,
        next_at=delivery.next_at,
        status="" if delivery.status is None else str(delivery.status),
        answer=delivery.answer,
    )
