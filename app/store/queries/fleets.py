"""Fleets and their engines: which there are, and going into and out of service. No row is ever removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import inspect, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import EngineRow, FleetRow
from app.store.queries import profiles


@dataclass(frozen=True)
class FirstEngine:
    """An engine of a first fleet. `devices` are those it sees; empty = all."""

    name: str
    port: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstProfile:
    """A profile that is made together with the first fleets."""

    name: str
    comment: str
    kv_transfer_config: Mapping[str, Any]
    flags: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstFleet:
    """What the first run puts into an empty database: a fleet, its engines, and the profile that they start with.

    `columns`: model, served_model_name, interpreter and whatever else of the row is not its default.
    """

    name: str
    columns: Mapping[str, Any]
    engines: tuple[FirstEngine, ...]
    profile: FirstProfile


async def all_fleets(session: AsyncSession) -> Sequence[FleetRow]:
    """Every fleet in service, by name."""
    return (await session.scalars(_in_service().order_by(FleetRow.name))).all()


async def by_name(session: AsyncSession, name: str) -> FleetRow | None:
    """One fleet in service."""
    row: FleetRow | None = await session.scalar(_in_service().where(FleetRow.name == name))
    return row


async def engines_of(session: AsyncSession, fleet_id: int) -> Sequence[EngineRow]:
    """The engines of a fleet in service, by name."""
    query = select(EngineRow).where(EngineRow.fleet_id == fleet_id, EngineRow.retired_at.is_(None))
    return (await session.scalars(query.order_by(EngineRow.name))).all()


async def engine_names(session: AsyncSession, fleet_id: int) -> Sequence[str]:
    """Names of the engines of a fleet in service, in order."""
    return [row.name for row in await engines_of(session, fleet_id)]


async def left_since(session: AsyncSession, fleet: str | None, since: float) -> Sequence[int]:
    """Ids of the engines that went out of service after `since`, of one fleet or of all."""
    query = select(EngineRow.id).join(FleetRow, FleetRow.id == EngineRow.fleet_id).where(EngineRow.retired_at > since)
    return (await session.scalars(query if fleet is None else query.where(FleetRow.name == fleet))).all()


async def every_engine(session: AsyncSession) -> Sequence[EngineRow]:
    """All that there ever were, by name."""
    return (await session.scalars(select(EngineRow).order_by(EngineRow.name))).all()


async def is_new(session: AsyncSession) -> bool:
    """True for a database that never had a fleet; also for one without tables."""
    connection = await session.connection()
    if not await connection.run_sync(lambda sync: inspect(sync).has_table(FleetRow.__tablename__)):
        return True
    return await session.scalar(select(FleetRow.id).limit(1)) is None


async def add(session: AsyncSession, name: str, now: float, **columns: Any) -> FleetRow:
    """A fleet in service. One of this name that is out of service comes back, with its history."""
    row = await session.scalar(select(FleetRow).where(FleetRow.name == name))
    if row is None:
        row = FleetRow(name=name, created_at=now, **columns)
        session.add(row)
    else:
        change(row, retired_at=None, **columns)
    await session.flush()
    return row


async def add_engine(
    session: AsyncSession, fleet_id: int, engine: FirstEngine, version_id: int, now: float, wanted: str = "running"
) -> EngineRow:
    """An engine in service. One of this name that is out of service comes back, with its history."""
    placed = {"port": engine.port, "devices": [*engine.devices], "profile_version_id": version_id, "wanted": wanted}
    row = await session.scalar(select(EngineRow).where(EngineRow.name == engine.name))
    if row is None:
        row = EngineRow(fleet_id=fleet_id, name=engine.name, created_at=now, **placed)
        session.add(row)
    else:
        change(row, retired_at=None, state="stopped", state_since=now, cause="", **placed)
    await session.flush()
    return row


def change(row: FleetRow | EngineRow, **columns: Any) -> None:
    """Set columns of a row of an open session."""
    for name, value in columns.items():
        setattr(row, name, value)


async def retire_engine(session: AsyncSession, name: str, now: float) -> None:
    """Out of service; its row and all that points to it stay."""
    await session.execute(update(EngineRow).where(EngineRow.name == name).values(retired_at=now, wanted="stopped"))


async def retire(session: AsyncSession, fleet_id: int, now: float) -> None:
    """The fleet and its engines out of service."""
    await session.execute(update(FleetRow).where(FleetRow.id == fleet_id).values(retired_at=now))
    engines = update(EngineRow).where(EngineRow.fleet_id == fleet_id, EngineRow.retired_at.is_(None))
    await session.execute(engines.values(retired_at=now, wanted="stopped"))


async def seed(session: AsyncSession, first: Sequence[FirstFleet], now: float) -> bool:
    """Add the first fleets to a database that never had one; False when it has."""
    if not await is_new(session):
        return False
    versions: dict[str, int] = {}
    for fleet in first:
        if fleet.profile.name not in versions:
            versions[fleet.profile.name] = await _add_profile(session, fleet.profile, now)
        row = await add(session, fleet.name, now, **fleet.columns)
        for engine in fleet.engines:
            await add_engine(session, row.id, engine, versions[fleet.profile.name], now)
    return True


async def only_follower(session: AsyncSession) -> FleetRow | None:
    """The only fleet, if it still follows the settings."""
    known = await all_fleets(session)
    return known[0] if len(known) == 1 and known[0].follows_settings else None


async def follow_settings(session: AsyncSession, first: FirstFleet) -> None:
    """Point the only fleet, and its only engine, at the model, interpreter and port of the settings.

    As long as the fleet was not edited, the environment is where the operator sets them; a deck started anew
    with another model must serve that one. With more fleets, or after an edit, the database alone says. An
    engine that may still run keeps its port, or it could not be found again.
    """
    row = await only_follower(session)
    if row is None:
        return
    change(row, **first.columns)
    engines = await engines_of(session, row.id)
    if len(engines) == 1 and engines[0].pid is None:
        engines[0].port = first.engines[0].port


def _in_service() -> Any:
    return select(FleetRow).where(FleetRow.retired_at.is_(None))


async def _add_profile(session: AsyncSession, profile: FirstProfile, now: float) -> int:
    _, version = await profiles.add_version(
        session,
        profile.name,
        now=now,
        author="tierdeck",
        comment=profile.comment,
        kv_transfer_config=dict(profile.kv_transfer_config),
        flags=dict(profile.flags),
        environment=dict(profile.environment),
        allow=[*profile.allow],
    )
    return version.id
