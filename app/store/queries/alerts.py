"""Alert rules, what they remember, their flips, webhooks and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, Select, delete, exists, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.store.models import (
    AlertRuleRow,
    AlertStateRow,
    DeliveryRow,
    EngineRow,
    FleetRow,
    FlipRow,
    ScrapeRow,
    WebhookRow,
)

OPEN_STATES = ("pending", "sending")


@dataclass(frozen=True)
class NewFlip:
    """A flip to be stored."""

    rule_id: int | None
    fleet_id: int | None
    at: float
    old: str
    new: str
    sentence: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Letter:
    """A delivery with everything that is told and to whom. ORM rows keep secrets out of reprs."""

    delivery: DeliveryRow
    flip: FlipRow
    webhook: WebhookRow
    rule: str | None
    fleet: str | None


# --- rules and their memory


async def rules(session: AsyncSession) -> Sequence[AlertRuleRow]:
    """Every rule, oldest first."""
    return (await session.scalars(select(AlertRuleRow).order_by(AlertRuleRow.id))).all()


async def states(session: AsyncSession) -> Mapping[tuple[int, int], AlertStateRow]:
    """What each rule remembers, by rule id and fleet id."""
    rows = await session.scalars(select(AlertStateRow))
    return {(row.rule_id, row.fleet_id): row for row in rows}


async def replace_state(
    session: AsyncSession, key: tuple[int, int], state: dict[str, Any], at: float, seen: float | None
) -> bool:
    """Store what a rule remembers, unless another deck did since it was read at `seen`; False then."""
    rule_id, fleet_id = key
    if seen is None:
        session.add(AlertStateRow(rule_id=rule_id, fleet_id=fleet_id, state=state, updated_at=at))
        await session.flush()
        return True
    changed = await session.execute(
        update(AlertStateRow)
        .where(AlertStateRow.rule_id == rule_id, AlertStateRow.fleet_id == fleet_id, AlertStateRow.updated_at == seen)
        .values(state=state, updated_at=at)
    )
    return _one(changed)


async def newest_scrapes(session: AsyncSession, fleet_id: int) -> Sequence[tuple[str, ScrapeRow]]:
    """For each engine of a fleet that was ever scraped: its name and newest outcome."""
    newest = (
        select(func.max(ScrapeRow.last_at)).where(ScrapeRow.engine_id == EngineRow.id).correlate(EngineRow)
    ).scalar_subquery()
    rows = await session.execute(
        select(EngineRow.name, ScrapeRow)
        .join(ScrapeRow, (ScrapeRow.engine_id == EngineRow.id) & (ScrapeRow.last_at == newest))
        .where(EngineRow.fleet_id == fleet_id, EngineRow.retired_at.is_(None))
    )
    return [(name, row) for name, row in rows]


# --- flips


async def add_flip(session: AsyncSession, flip: NewFlip) -> int:
    """Store a flip; its id."""
    row = FlipRow(
        rule_id=flip.rule_id,
        fleet_id=flip.fleet_id,
        at=flip.at,
        old=flip.old,
        new=flip.new,
        sentence=flip.sentence,
        evidence=flip.evidence,
    )
    session.add(row)
    await session.flush()
    return row.id


async def address_to_all(session: AsyncSession, flip_id: int, due_at: float) -> None:
    """One pending delivery of a flip for each webhook that is switched on."""
    chosen = select(
        literal(flip_id), WebhookRow.id, literal("pending"), literal(0), literal(due_at), literal("")
    ).where(WebhookRow.enabled)
    columns = ["flip_id", "webhook_id", "state", "attempts", "next_at", "answer"]
    await session.execute(insert(DeliveryRow).from_select(columns, chosen))


async def flips(session: AsyncSession, limit: int) -> Sequence[tuple[FlipRow, str | None, str | None]]:
    """The newest flips of rules with the names of rule and fleet; tests of webhooks are not among them."""
    rows = await session.execute(
        select(FlipRow, AlertRuleRow.name, FleetRow.name)
        .outerjoin(AlertRuleRow, AlertRuleRow.id == FlipRow.rule_id)
        .outerjoin(FleetRow, FleetRow.id == FlipRow.fleet_id)
        .where(FlipRow.new != "test")
        .order_by(FlipRow.id.desc())
        .limit(limit)
    )
    return [(flip, rule, fleet) for flip, rule, fleet in rows]


# --- webhooks


async def webhooks(session: AsyncSession) -> Sequence[WebhookRow]:
    """Every webhook, by name."""
    return (await session.scalars(select(WebhookRow).order_by(WebhookRow.name))).all()


async def delete_webhook(session: AsyncSession, webhook_id: int) -> bool:
    """Remove a webhook and the record of its deliveries; False when there is none."""
    await session.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id))
    return _one(await session.execute(delete(WebhookRow).where(WebhookRow.id == webhook_id)))


# --- deliveries


async def letters(session: AsyncSession, limit: int, webhook_id: int | None = None) -> Sequence[Letter]:
    """The newest deliveries."""
    query = _letters().order_by(DeliveryRow.id.desc()).limit(limit)
    if webhook_id is not None:
        query = query.where(DeliveryRow.webhook_id == webhook_id)
    return _as_letters(await session.execute(query))


async def letter(session: AsyncSession, delivery_id: int) -> Letter | None:
    """One delivery."""
    found = _as_letters(await session.execute(_letters().where(DeliveryRow.id == delivery_id)))
    return found[0] if found else None


async def newest_letters(session: AsyncSession) -> Mapping[int, Letter]:
    """The newest delivery of each webhook."""
    newest = select(func.max(DeliveryRow.id)).group_by(DeliveryRow.webhook_id)
    found = _as_letters(await session.execute(_letters().where(DeliveryRow.id.in_(newest))))
    return {letter.webhook.id: letter for letter in found}


async def due_letters(session: AsyncSession, now: float, limit: int) -> Sequence[Letter]:
    """Deliveries to be sent now: the first open one of each webhook, if its time has come."""
    query = _letters().where(*_first_open(), DeliveryRow.next_at <= now).order_by(DeliveryRow.id).limit(limit)
    return _as_letters(await session.execute(query))


async def next_due_at(session: AsyncSession) -> float | None:
    """When the next delivery is due; None when nothing is open."""
    due: float | None = await session.scalar(select(func.min(DeliveryRow.next_at)).where(*_first_open()))
    return due


async def claim(session: AsyncSession, seen: DeliveryRow, now: float, lease_until: float) -> bool:
    """Take a delivery as it was seen, for one attempt; False when somebody else was faster.

    A claim is a lease: a deck that dies while sending leaves a row that is due again at `lease_until`.
    """
    changed = await session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.id == seen.id, DeliveryRow.state == seen.state, DeliveryRow.attempts == seen.attempts)
        .values(state="sending", attempts=seen.attempts + 1, last_at=now, next_at=lease_until)
    )
    return _one(changed)


async def record(
    session: AsyncSession, delivery_id: int, attempt: int, state: str, next_at: float, status: int | None, answer: str
) -> bool:
    """Write how attempt number `attempt` went; False when the claim was lost meanwhile."""
    changed = await session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.id == delivery_id, DeliveryRow.state == "sending", DeliveryRow.attempts == attempt)
        .values(state=state, next_at=next_at, status=status, answer=answer)
    )
    return _one(changed)


def _letters() -> Select[DeliveryRow, FlipRow, WebhookRow, str, str]:
    return (
        select(DeliveryRow, FlipRow, WebhookRow, AlertRuleRow.name, FleetRow.name)
        .join(FlipRow, FlipRow.id == DeliveryRow.flip_id)
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        .outerjoin(AlertRuleRow, AlertRuleRow.id == FlipRow.rule_id)
        .outerjoin(FleetRow, FleetRow.id == FlipRow.fleet_id)
    )


def _as_letters(rows: Any) -> list[Letter]:
    return [Letter(*row) for row in rows]


def _first_open() -> tuple[Any, ...]:
    """A webhook's messages go out in order: "resolved" never before the "firing" it ends."""
    earlier = aliased(DeliveryRow)
    is_behind = exists().where(
        earlier.webhook_id == DeliveryRow.webhook_id, earlier.id < DeliveryRow.id, earlier.state.in_(OPEN_STATES)
    )
    return DeliveryRow.state.in_(OPEN_STATES), ~is_behind


def _one(result: Any) -> bool:
    return cast("CursorResult[Any]", result).rowcount == 1
