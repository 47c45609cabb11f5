"""Fleets, and the first one a new deck is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import EngineRow, FleetRow
from app.store.queries import profiles


@dataclass(frozen=True)
class FirstFleet:
    """What the first run puts into an empty database: one fleet of one engine and its profile."""

    fleet: str
    engine: str
    model: str
    served_model_name: str
    interpreter: str
    port: int
    profile: str
    comment: str
    kv_transfer_config: dict[str, Any]
    flags: dict[str, Any]


async def all_fleets(session: AsyncSession) -> Sequence[FleetRow]:
    """Every fleet, by name."""
    return (await session.scalars(select(FleetRow).order_by(FleetRow.name))).all()


async def by_name(session: AsyncSession, name: str) -> FleetRow | None:
    """One fleet."""
    row: FleetRow | None = await session.scalar(select(FleetRow).where(FleetRow.name == name))
    return row


async def engine_names(session: AsyncSession, fleet_id: int) -> Sequence[str]:
    """Names of the engines of a fleet, in order."""
    rows = await session.scalars(select(EngineRow.name).where(EngineRow.fleet_id == fleet_id).order_by(EngineRow.name))
    return rows.all()


async def seed(session: AsyncSession, first: FirstFleet, now: float) -> bool:
    """Add `first` to a database that has no fleet; False when there is one already."""
    if await session.scalar(select(FleetRow.id).limit(1)) is not None:
        return False
    _, version = await profiles.add_version(
        session,
        first.profile,
        now=now,
        author="tierdeck",
        comment=first.comment,
        kv_transfer_config=first.kv_transfer_config,
        flags=first.flags,
        environment={},
    )
    fleet = FleetRow(
        name=first.fleet,
        model=first.model,
        served_model_name=first.served_model_name,
        interpreter=first.interpreter,
        created_at=now,
    )
    session.add(fleet)
    await session.flush()
    session.add(
        EngineRow(fleet_id=fleet.id, name=first.engine, port=first.port, profile_version_id=version.id, created_at=now)
    )
    return True


async def follow_settings(session: AsyncSession, first: FirstFleet) -> None:
    """Point the only fleet, and its only engine, at the model, interpreter and port of the settings.

    With one engine, the environment is where the operator sets them; a deck started anew with another
    model must serve that one. With more, the database alone says. An engine that may still run keeps
    its port, or it could not be found again.
    """
    known = await all_fleets(session)
    if len(known) != 1:
        return
    known[0].model, known[0].served_model_name = first.model, first.served_model_name
    known[0].interpreter = first.interpreter
    engines = (await session.scalars(select(EngineRow).where(EngineRow.fleet_id == known[0].id))).all()
    if len(engines) == 1 and engines[0].pid is None:
        engines[0].port = first.port
