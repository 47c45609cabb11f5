"""Alerts as people see them: rules, their present state, what flipped, and the webhooks that tell it.

Secrets go in and never come out: a webhook's secret and the full address of it are written, used by the
delivery loop, and not part of any view.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.alerts.channels import channel_named
from app.alerts.delivery import LEASE_SECONDS, DeliveryLoop
from app.alerts.kinds import KINDS, Kind, kind_named
from app.alerts.machine import AlertState, Memory
from app.alerts.secrecy import check_url, shown_url
from app.errors import Conflict, InvalidInput, NotFound
from app.events import Event, Events
from app.store.database import Database
from app.store.models import AlertRuleRow, AlertStateRow, DeliveryRow, FleetRow, WebhookRow
from app.store.queries import alerts as queries
from app.store.queries import fleets
from app.store.queries.alerts import Letter

TEXT_LIMIT = 64
SECRET_LIMIT = 256
TEST_SENTENCE = "This is a test message from Tierdeck. No alert is firing because of it."


@dataclass(frozen=True)
class RuleView:
    """A rule; `parameters` has every default written out."""

    id: int
    name: str
    kind: str
    parameters: dict[str, Any]
    enabled: bool


@dataclass(frozen=True)
class AlertView:
    """What one rule says of one fleet now. `since` and `updated_at` are None before the first look."""

    rule_id: int
    rule: str
    fleet: str
    state: AlertState
    since: float | None
    sentence: str
    evidence: dict[str, Any]
    updated_at: float | None


@dataclass(frozen=True)
class FlipView:
    """An alert that changed."""

    id: int
    at: float
    rule: str | None
    fleet: str | None
    old: str
    new: str
    sentence: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class DeliveryView:
    """One message to one webhook. `answer` is what the receiver said, or why there was no answer."""

    id: int
    flip_id: int
    webhook_id: int
    webhook: str
    event: str
    """`firing`, `ok` or `test`."""
    sentence: str
    state: str
    """`pending`, `sending`, `delivered`, `failed`."""
    attempts: int
    next_at: float | None
    """When it is tried again; None when it will not be."""
    last_at: float | None
    status: int | None
    answer: str


@dataclass(frozen=True)
class WebhookView:
    """A webhook without its secrets."""

    id: int
    name: str
    channel: str
    url_shown: str
    has_secret: bool
    keyword: str
    enabled: bool
    last_delivery: DeliveryView | None


@dataclass(frozen=True)
class WebhookDraft:
    """A webhook as entered. For an existing one, None keeps the address or secret; "" removes the secret."""

    name: str
    channel: str
    url: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    keyword: str = ""
    enabled: bool = True


class Alerts:
    """Reads and changes rules and webhooks."""

    def __init__(
        self, database: Database, events: Events, delivery: DeliveryLoop, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._events = events
        self._delivery = delivery
        self._clock = clock

    async def open(self) -> None:
        """Give a deck a rule of each kind.

        Rules are switched off, never deleted, so a kind without a rule is new to this database; a rule that
        was switched off or renamed is left alone.
        """
        async with self._database.session() as session:
            known = {rule.kind for rule in await queries.rules(session)}
        for kind in KINDS.values():
            if kind.name not in known:
                await self._add_first(kind)

    async def _add_first(self, kind: Kind) -> None:
        try:
            async with self._database.begin() as session:
                session.add(_first_rule(kind, self._clock()))
        except IntegrityError:
            return  # another deck on this database was faster

    async def rules(self) -> list[RuleView]:
        """Every rule."""
        async with self._database.session() as session:
            return [_rule_view(row) for row in await queries.rules(session)]

    async def alerts(self, fleet: str | None = None) -> list[AlertView]:
        """The present state of every rule that is switched on, for every fleet (or one)."""
        async with self._database.session() as session:
            states = await queries.states(session)
            every_fleet = await fleets.all_fleets(session)
            every_rule = await queries.rules(session)
        return [
            _alert_view(rule, row, states.get((rule.id, row.id)))
            for rule in every_rule
            for row in every_fleet
            if rule.enabled and fleet in (None, row.name)
        ]

    async def flips(self, limit: int = 50) -> list[FlipView]:
        """The newest changes, newest first."""
        async with self._database.session() as session:
            rows = await queries.flips(session, limit)
        return [
            FlipView(row.id, row.at, rule, fleet, row.old, row.new, row.sentence, row.evidence)
            for row, rule, fleet in rows
        ]

    async def save_rule(
        self,
        rule_id: int,
        *,
        name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
    ) -> RuleView:
        """Change what is given and keep the rest. Raises NotFound, InvalidInput, Conflict."""
        try:
            async with self._database.begin() as session:
                row = await _rule(session, rule_id)
                row.name = row.name if name is None else _text(name, "name")
                row.parameters = _complete(row.kind, {**row.parameters, **(parameters or {})})
                row.enabled = row.enabled if enabled is None else enabled
        except IntegrityError:
            raise Conflict("Another rule has this name.", path="name") from None
        self._events.publish(Event("alert", str(rule_id), {"changed": "rule"}))
        return _rule_view(row)

    async def webhooks(self) -> list[WebhookView]:
        """Every webhook with its newest delivery."""
        async with self._database.session() as session:
            newest = await queries.newest_letters(session)
            return [_webhook_view(row, newest.get(row.id)) for row in await queries.webhooks(session)]

    async def webhook(self, webhook_id: int) -> WebhookView:
        """One webhook. Raises NotFound."""
        async with self._database.session() as session:
            row = await _webhook(session, webhook_id)
            newest = await queries.letters(session, 1, webhook_id)
        return _webhook_view(row, newest[0] if newest else None)

    async def save_webhook(self, draft: WebhookDraft, webhook_id: int | None = None) -> WebhookView:
        """Add a webhook, or change the one with this id. Raises InvalidInput, NotFound, Conflict."""
        try:
            async with self._database.begin() as session:
                row = (
                    WebhookRow(created_at=self._clock()) if webhook_id is None else await _webhook(session, webhook_id)
                )
                _fill(row, draft)
                session.add(row)
        except IntegrityError:
            raise Conflict(f"There is a webhook named {draft.name.strip()!r} already.", path="name") from None
        self._events.publish(Event("alert", f"webhook:{row.id}", {"changed": "webhook"}))
        return await self.webhook(row.id)

    async def delete_webhook(self, webhook_id: int) -> None:
        """Remove a webhook and the record of its deliveries. Raises NotFound."""
        async with self._database.begin() as session:
            if not await queries.delete_webhook(session, webhook_id):
                raise _no_webhook(webhook_id)
        self._events.publish(Event("alert", f"webhook:{webhook_id}", {"changed": "webhook"}))

    async def test_webhook(self, webhook_id: int) -> DeliveryView:
        """Send a real message now, once, and tell how it went; `state` is `delivered` or `failed`."""
        now = self._clock()
        async with self._database.begin() as session:
            await _webhook(session, webhook_id)
            delivery = await _claimed_test(session, webhook_id, now)
        await self._delivery.send_claimed(delivery.id, attempt_limit=1)
        async with self._database.session() as session:
            letter = await queries.letter(session, delivery.id)
        if letter is None:
            raise _no_webhook(webhook_id)
        return _delivery_view(letter)

    async def deliveries(self, limit: int = 50, webhook_id: int | None = None) -> list[DeliveryView]:
        """The newest deliveries, newest first. Raises NotFound for an unknown webhook."""
        async with self._database.session() as session:
            if webhook_id is not None:
                await _webhook(session, webhook_id)
            return [_delivery_view(letter) for letter in await queries.letters(session, limit, webhook_id)]


async def _rule(session: AsyncSession, rule_id: int) -> AlertRuleRow:
    row = await session.get(AlertRuleRow, rule_id)
    if row is None:
        raise NotFound(f"There is no alert rule with id {rule_id}.", path="id")
    return row


async def _webhook(session: AsyncSession, webhook_id: int) -> WebhookRow:
    row = await session.get(WebhookRow, webhook_id)
    if row is None:
        raise _no_webhook(webhook_id)
    return row


def _no_webhook(webhook_id: int) -> NotFound:
    return NotFound(f"There is no webhook with id {webhook_id}.", path="id")


async def _claimed_test(session: AsyncSession, webhook_id: int, now: float) -> DeliveryRow:
    """A test is stored as claimed, so that only its caller sends it."""
    flip = queries.NewFlip(None, None, now, "test", "test", TEST_SENTENCE, {})
    row = DeliveryRow(
        flip_id=await queries.add_flip(session, flip),
        webhook_id=webhook_id,
        state="sending",
        attempts=1,
        next_at=now + LEASE_SECONDS,
        last_at=now,
    )
    session.add(row)
    await session.flush()
    return row


def _first_rule(kind: Kind, now: float) -> AlertRuleRow:
    parameters = kind.rule({}).parameters()
    return AlertRuleRow(name=kind.first_name, kind=kind.name, parameters=parameters, enabled=True, created_at=now)


def _complete(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return kind_named(kind).rule(parameters).parameters()


def _fill(row: WebhookRow, draft: WebhookDraft) -> None:
    """Write a checked draft into a row. Raises InvalidInput."""
    channel = channel_named(draft.channel)
    if draft.secret and not channel.signs:
        raise InvalidInput(f"{channel.name} does not check signatures; leave the secret empty.", path="secret")
    if draft.url is None and row.url is None:
        raise InvalidInput("Write the address to send to, for example https://example.org/hook.", path="url")
    row.name = _text(draft.name, "name")
    row.channel = channel.name
    row.url = row.url if draft.url is None else check_url(draft.url)
    row.secret = _secret(row.secret if draft.secret is None else draft.secret) if channel.signs else None
    row.keyword = _keyword(draft.keyword)
    row.enabled = draft.enabled


def _secret(secret: str | None) -> str | None:
    if secret is not None and (len(secret) > SECRET_LIMIT or not secret.isprintable()):
        raise InvalidInput(f"Write a secret of at most {SECRET_LIMIT} printable characters.", path="secret")
    return secret or None


def _text(text: str, path: str) -> str:
    stripped = text.strip()
    if not stripped or len(stripped) > TEXT_LIMIT or not stripped.isprintable():
        raise InvalidInput(f"Write a {path} of 1 to {TEXT_LIMIT} printable characters.", path=path)
    return stripped


def _keyword(keyword: str) -> str:
    return _text(keyword, "keyword") if keyword.strip() else ""


def _rule_view(row: AlertRuleRow) -> RuleView:
    return RuleView(row.id, row.name, row.kind, dict(row.parameters), row.enabled)


def _alert_view(rule: AlertRuleRow, fleet: FleetRow, stored: AlertStateRow | None) -> AlertView:
    memory = Memory() if stored is None else Memory.from_json(stored.state)
    return AlertView(
        rule_id=rule.id,
        rule=rule.name,
        fleet=fleet.name,
        state=memory.state,
        since=memory.since,
        sentence=memory.sentence,
        evidence=memory.evidence,
        updated_at=None if stored is None else stored.updated_at,
    )


def _webhook_view(row: WebhookRow, newest: Letter | None) -> WebhookView:
    return WebhookView(
        id=row.id,
        name=row.name,
        channel=row.channel,
        url_shown=shown_url(row.url),
        has_secret=row.secret is not None,
        keyword=row.keyword,
        enabled=row.enabled,
        last_delivery=None if newest is None else _delivery_view(newest),
    )


def _delivery_view(letter: Letter) -> DeliveryView:
    row = letter.delivery
    return DeliveryView(
        id=row.id,
        flip_id=row.flip_id,
        webhook_id=row.webhook_id,
        webhook=letter.webhook.name,
        event=letter.flip.new,
        sentence=letter.flip.sentence,
        state=row.state,
        attempts=row.attempts,
        next_at=row.next_at if row.state in queries.OPEN_STATES else None,
        last_at=row.last_at,
        status=row.status,
        answer=row.answer,
    )
