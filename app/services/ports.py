"""Which port an engine of a fleet may have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.config import Settings
from app.fleets.placing import new_port, ports_of
from app.store.queries import fleets
from app.supervisor.checks import port_is_free
from app.supervisor.status import EngineStatus


async def free_port(
    session: AsyncSession,
    settings: Settings,
    statuses: Sequence[EngineStatus],
    port_from: int | None,
    port_to: int | None,
) -> int | None:
    """The first of a fleet's range that no engine of any fleet has and on which nothing listens; None without one."""
    ports = ports_of(port_from, port_to, settings.engine_port)
    taken = {status.port for status in statuses} | {settings.port}
    taken |= {one.port for one in await fleets.every_engine(session) if one.retired_at is None}
    return await asyncio.to_thread(new_port, ports, taken, lambda port: port_is_free("127.0.0.1", port))
