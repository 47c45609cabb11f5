"""REST: alerts, their rules, and webhooks. Addresses and secrets of webhooks are written, never read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from app.services.alerts import WebhookDraft
from app.web.deps import DeckDep, Id

router = APIRouter(prefix="/api/v1", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=500, description="How many, newest first.")]


class RuleBody(BaseModel):
    """Changes of a rule; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="Thresholds and times; others keep their value.")
    enabled: bool | None = None


class WebhookBody(BaseModel):
    """A webhook. On a change, an address or secret left out stays; a secret of "" is removed."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str
    channel: str = Field("generic", description="generic, slack, discord, feishu or dingtalk.")
    url: SecretStr | None = Field(None, description="Write-only: the address of a chat robot is a password.")
    secret: SecretStr | None = Field(None, description="Write-only. Signs what is sent.")
    keyword: str = Field("", description="Put into the message when it is not in it; some robots demand one.")
    enabled: bool = True

    def draft(self) -> WebhookDraft:
        """As the service takes it."""
        return WebhookDraft(
            self.name, self.channel, _revealed(self.url), _revealed(self.secret), self.keyword, self.enabled
        )


@router.get("/alerts")
async def alerts(deck: DeckDep, fleet: str | None = None, limit: Limit = 50) -> dict[str, Any]:
    """What every rule says of every fleet now, and the newest changes."""
    return {
        "alerts": [asdict(view) for view in await deck.alerts.alerts(fleet)],
        "flips": [asdict(view) for view in await deck.alerts.flips(limit)],
    }


@router.get("/alert-rules")
async def rules(deck: DeckDep) -> dict[str, Any]:
    """Every rule."""
    return {"rules": [asdict(view) for view in await deck.alerts.rules()]}


@router.put("/alert-rules/{rule_id}")
async def save_rule(rule_id: Id, body: RuleBody, deck: DeckDep) -> dict[str, Any]:
    """Change a rule; it is in force within seconds."""
    saved = await deck.alerts.save_rule(rule_id, name=body.name, parameters=body.parameters, enabled=body.enabled)
    return asdict(saved)


@router.get("/webhooks")
async def webhooks(deck: DeckDep) -> dict[str, Any]:
    """Every webhook with its newest delivery."""
    return {"webhooks": [asdict(view) for view in await deck.alerts.webhooks()]}


@router.post("/webhooks", status_code=201)
async def add_webhook(body: WebhookBody, deck: DeckDep) -> dict[str, Any]:
    """Add a webhook."""
    return asdict(await deck.alerts.save_webhook(body.draft()))


@router.get("/webhooks/{webhook_id}")
async def webhook(webhook_id: Id, deck: DeckDep) -> dict[str, Any]:
    """One webhook."""
    return asdict(await deck.alerts.webhook(webhook_id))


@router.put("/webhooks/{webhook_id}")
async def change_webhook(webhook_id: Id, body: WebhookBody, deck: DeckDep) -> dict[str, Any]:
    """Change a webhook."""
    return asdict(await deck.alerts.save_webhook(body.draft(), webhook_id))


@router.delete("/webhooks/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: Id, deck: DeckDep) -> None:
    """Remove a webhook and the record of its deliveries."""
    await deck.alerts.delete_webhook(webhook_id)


@router.post("/webhooks/{webhook_id}/test")
async def test_webhook(webhook_id: Id, deck: DeckDep) -> dict[str, Any]:
    """Send a test message now. `state` tells how it went: `delivered`, or `failed` with the `answer`."""
    return asdict(await deck.alerts.test_webhook(webhook_id))


@router.get("/webhooks/{webhook_id}/deliveries")
async def deliveries(webhook_id: Id, deck: DeckDep, limit: Limit = 50) -> dict[str, Any]:
    """What was sent to a webhook and what came back."""
    return {"deliveries": [asdict(view) for view in await deck.alerts.deliveries(limit, webhook_id)]}


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
