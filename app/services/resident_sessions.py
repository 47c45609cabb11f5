"""The sessions in the host memory of engines: up to which token each could go on, and which goes next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.scrape.residents import Residents, read_residents
from app.supervisor import residentmemory
from app.supervisor.status import EngineStatus
from engine.residency_place import MOUNT, directory_of


@dataclass(frozen=True)
class SessionView:
    """A session in host memory. `id` is of its last restorable boundary: when it goes on, it has another one."""

    engine: str
    fleet: str
    id: str
    tokens: int
    restorable_tokens: int
    idle_seconds: float
    bytes: int
    superseded: bool
    victim_rank: int | None
    """0 goes first, of its engine; None while it is in use, or when it could not go on anyway."""


@dataclass(frozen=True)
class EngineSessions:
    """What is known of one engine. `sessions` is None, with the `reason`, where it does not tell.

    `is_cut`: it has more sessions than it lists, so `restorable_sessions` is "at least".
    """

    engine: str
    fleet: str
    sessions: int | None
    restorable_sessions: int | None
    is_cut: bool
    told_seconds_ago: float | None
    reason: str | None


@dataclass(frozen=True)
class SessionsAnswer:
    """Those that go next come first, engine by engine; at most as many as were asked for."""

    engines: list[EngineSessions]
    sessions: list[SessionView]


async def resident_sessions(
    statuses: Sequence[EngineStatus], data_dir: Path, now: float, limit: int, mount: Path | None = None
) -> SessionsAnswer:
    """Of these engines, also of those that do not run: their memory waits for them."""
    told = await asyncio.gather(*(asyncio.to_thread(_read, status, data_dir, mount) for status in statuses))
    pairs = list(zip(statuses, told, strict=True))
    views = [view for status, residents in pairs for view in _views(status, residents, now)]
    return SessionsAnswer([_engine(*pair, now) for pair in pairs], views[:limit])


def _read(status: EngineStatus, data_dir: Path, mount: Path | None) -> Residents:
    name = residentmemory.identifier(data_dir, status.name)
    return read_residents(directory_of(name, mount or MOUNT), status.started_at)


def _engine(status: EngineStatus, told: Residents, now: float) -> EngineSessions:
    known = told.count is not None
    return EngineSessions(
        engine=status.name,
        fleet=status.fleet,
        sessions=told.count,
        restorable_sessions=sum(one.restorable_tokens > 0 for one in told.sessions) if known else None,
        is_cut=(told.count or 0) > len(told.sessions),
        told_seconds_ago=max(now - told.written_at, 0.0) if told.written_at is not None else None,
        reason=told.reason,
    )


def _views(status: EngineStatus, told: Residents, now: float) -> list[SessionView]:
    order = sorted(told.sessions, key=lambda one: (one.victim_rank is None, one.victim_rank or 0))
    return [
        SessionView(
            engine=status.name,
            fleet=status.fleet,
            id=one.id,
            tokens=one.tokens,
            restorable_tokens=one.restorable_tokens,
            idle_seconds=max(now - one.used_at, 0.0),
            bytes=one.bytes,
            superseded=one.superseded,
            victim_rank=one.victim_rank,
        )
        for one in order
    ]
