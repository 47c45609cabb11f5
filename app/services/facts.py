"""Gathers what the overview's sentence is decided from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.headline import EngineCounts, Facts, LastTraffic, Outage
from app.derive.origin import SOURCE_METRICS, Origin, origin, together
from app.derive.slots import add_gauges
from app.scrape.names import SeriesKey
from app.services.origins import token_origin_of
from app.services.readings import FleetEngines, Reading, last_rise, read_gains, read_slots
from app.store.queries.running import running_flag
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

#: The rise itself is in the sample after the last lower one.
LAST_SEEN_SLACK_SECONDS = 70.0


async def read_facts(session: AsyncSession, chosen: FleetEngines, window_seconds: float, now: float) -> Facts:
    """Read everything `headline` looks at."""
    ids = list(chosen.ids.values())
    metrics = (*SOURCE_METRICS, "offload_stored_bytes", "offload_loaded_bytes", "external_queries")
    readings = await read_gains(session, [*ids, *chosen.left], metrics, now - window_seconds, now)
    told = token_origin_of(chosen, readings, window_seconds, now)
    gained = add_gauges(reading.increases for reading in readings.values())
    worst = _worst(chosen.statuses)
    return Facts(
        window_seconds=window_seconds,
        engines=_counts(chosen.statuses),
        down_since=worst.since if worst else None,
        down_cause=worst.cause if worst else "",
        outage=_outage(chosen, readings),
        origin=Origin(told.vram_tokens, told.host_tokens, told.recomputed_tokens, told.avoidable_tokens),
        complete=told.complete,
        reason=told.reason,
        last_traffic=await _last_traffic(session, ids, window_seconds) if told.input_tokens == 0 else None,
        slots=await read_slots(session, ids, now),
        stored_bytes=gained.get(SeriesKey("offload_stored_bytes")),
        loaded_bytes=gained.get(SeriesKey("offload_loaded_bytes")),
        external_queries=gained.get(SeriesKey("external_queries")),
        kv_cache_dtype=await running_flag(session, ids, "kv-cache-dtype") or "auto",
    )


async def _last_traffic(session: AsyncSession, ids: Sequence[int], window_seconds: float) -> LastTraffic | None:
    """When input last came in, and the share that was cached in the window before."""
    seen = [at for id_ in ids for at in [await _last_prompt(session, id_)] if at is not None]
    if not seen:
        return None
    at = max(seen) + LAST_SEEN_SLACK_SECONDS
    readings = await read_gains(session, ids, SOURCE_METRICS, at - window_seconds, at)
    part = together(origin(one.increases) for one in readings.values() if one.coverage.has_numbers)
    return LastTraffic(max(seen), part.cached_share)


async def _last_prompt(session: AsyncSession, id_: int) -> float | None:
    return await last_rise(session, id_, "prompt_tokens_by_source") or await last_rise(session, id_, "prompt_tokens")


def _outage(chosen: FleetEngines, readings: Mapping[int, Reading]) -> Outage | None:
    """Set when no serving engine's page can be read: the longest outage."""
    serving = [chosen.ids[status.name] for status in chosen.statuses if _is_serving(status)]
    outages = [readings[id_].coverage.outage for id_ in serving]
    known = [outage for outage in outages if outage is not None]
    return min(known, key=lambda outage: outage.since) if known and len(known) == len(serving) else None


def _is_serving(status: EngineStatus) -> bool:
    return status.state in {EngineState.READY, EngineState.DRAINING}


def _counts(statuses: Sequence[EngineStatus]) -> EngineCounts:
    def count(*states: EngineState) -> int:
        return sum(status.state in states for status in statuses)

    return EngineCounts(
        serving=count(EngineState.READY, EngineState.DRAINING),
        starting=count(EngineState.STARTING),
        stalled=count(EngineState.STALLED),
        stopped=count(EngineState.STOPPED, EngineState.STOPPING),
        broken=count(EngineState.BACKOFF, EngineState.FAILED),
    )


def _worst(statuses: Sequence[EngineStatus]) -> EngineStatus | None:
    """The engine whose cause explains best why nothing serves."""
    order = (EngineState.STALLED, EngineState.STARTING, EngineState.FAILED, EngineState.BACKOFF)
    ranks = {state: rank for rank, state in enumerate(order)}
    return min(statuses, key=lambda status: ranks.get(status.state, len(order)), default=None)
