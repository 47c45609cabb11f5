"""What applying a version would do, told before it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.config import Settings
from app.derive.lines import bucket_gains
from app.derive.profile_text import Change
from app.derive.quantiles import quantile
from app.errors import InvalidInput, NotFound
from app.profiles.context import Claim
from app.profiles.memory import told_claims
from app.profiles.sizes import exact_size
from app.rollouts import expect
from app.rollouts.expect import DrainLimit, Lengths, Observed, StateChange
from app.rollouts.risk import AtRisk, Contents, Room, at_risk
from app.rollouts.room import Asked, Free, no_room
from app.rollouts.said import NOTHING, Said, say
from app.rollouts.strategy import STRATEGIES, Member, Strategy, in_order, obstacle, usual, wanted_of
from app.scrape.names import SeriesKey
from app.services.consequences import Consequence, both_sides
from app.services.engines import Engines
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.profiles import Profiles, VersionView, differences
from app.services.readings import FRESH_SECONDS, read_gains, read_gauges, read_slots
from app.services.surroundings import claims_of, host_bytes
from app.store.database import Database
from app.store.queries import engines as queries
from app.store.queries.engines import EngineDefinition
from app.supervisor import machine, residentmemory
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from engine.config import TierConfig

TRANSITIONS_READ = 60
#: Flags that change what a slot holds or which bytes a key names: contents of before are of no use then.
CHANGES_CONTENTS = (
    "block-size",
    "dtype",
    "kv-cache-dtype",
    "kv-cache-dtype-skip-layers",
    "mamba-block-size",
    "mamba-cache-dtype",
    "mamba-ssm-cache-dtype",
    "pipeline-parallel-size",
    "prefix-caching-hash-algo",
    "quantization",
    "revision",
    "tensor-parallel-size",
)


@dataclass(frozen=True)
class StrategyChoice:
    """A way to apply it; `reason` says why it is not open."""

    name: Strategy
    is_open: bool
    reason: str


@dataclass(frozen=True)
class EnginePreview:
    """An engine of the fleet, in the order they are taken."""

    name: str
    state: str
    runs: str | None
    """`profile v3` of its process; None without one."""
    restarts: bool
    """False for one that was stopped on purpose: it uses the version at its next start."""
    in_flight: int


@dataclass(frozen=True)
class MemoryCheck:
    """Host memory that the version asks for, over all engines of the fleet, and what the machine gives."""

    asked_bytes: int
    usable_bytes: int
    fits: bool
    """Beside what the other fleets ask for."""
    sentence: str
    others_bytes: int = 0
    """What the engines of all other fleets ask for."""


@dataclass(frozen=True)
class RolloutPreview:
    """Seconds are medians of what was observed; None = never seen, and `expected_reason` says so."""

    fleet: str
    profile: str
    version: int
    replaces: str
    """`profile v3` that the first engine runs, or would."""
    strategy: Strategy
    strategies: tuple[StrategyChoice, ...]
    changes: tuple[Change, ...]
    consequences: tuple[Consequence, ...]
    engines: tuple[EnginePreview, ...]
    drain_timeout_seconds: float
    drain_timeout_why: str
    expected_drain_seconds: float | None
    expected_stop_seconds: float | None
    expected_start_seconds: float | None
    expected_total_seconds: float | None
    expected_reason: str
    tokens_held: float | None
    tokens_at_risk: float | None
    sessions_held: float | None
    sessions_at_risk: float | None
    at_risk_reason: str
    memory: MemoryCheck
    sentences: dict[str, Said]
    """The same sentences as template and values, by field, for other languages."""


class Previews:
    """Makes previews, and the numbers that a rollout takes from them."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        engines: Engines,
        profiles: Profiles,
        planning: Planning,
        fleets: Fleets,
    ) -> None:
        self._fleets = fleets
        self._settings = settings
        self._database = database
        self._engines = engines
        self._profiles = profiles
        self._planning = planning

    async def preview(
        self,
        fleet: str,
        profile: str,
        version: int,
        strategy: Strategy | None = None,
        drain_timeout_seconds: float | None = None,
    ) -> RolloutPreview:
        """What applying this version would do. Raises NotFound, InvalidInput."""
        now = time.time()
        new = await self._profiles.version(profile, version)
        found, others = await self._definitions(fleet), await self._others(fleet)
        old = await self._profiles.by_version_id(found[0].engine.running_version_id or found[0].version.id)
        members = self.members(fleet)
        chosen = strategy or usual(members)
        limit = await self.drain_limit(fleet, drain_timeout_seconds)
        seen = await self._observed(found)
        both = await both_sides(self._planning, old, new, now, self._engines.statuses(fleet))
        cramped = await self.no_room(fleet, new)
        risk = await self._at_risk(found, old, new, both, now, chosen)
        engines = in_order(members)
        restarts = len(wanted_of(engines))
        total = expect.expected_seconds(seen, restarts if chosen == "rolling" else min(restarts, 1))
        unseen = expect.unseen(seen)
        memory, memory_said = _memory(new, found, claims_of(others))
        return RolloutPreview(
            fleet=fleet,
            profile=new.profile,
            version=new.number,
            replaces=f"{old.profile} v{old.number}",
            strategy=chosen,
            strategies=tuple(_choice(name, members, cramped) for name in STRATEGIES),
            changes=tuple(differences(old, new)),
            consequences=tuple(one for one in both if one.old != one.new),
            engines=tuple([await self._engine(one, found) for one in engines]),
            drain_timeout_seconds=limit.seconds,
            drain_timeout_why=limit.why.text,
            expected_drain_seconds=seen.drain_seconds,
            expected_stop_seconds=seen.stop_seconds,
            expected_start_seconds=seen.start_seconds,
            expected_total_seconds=total,
            expected_reason=unseen.text,
            tokens_held=risk.tokens_held,
            tokens_at_risk=risk.tokens,
            sessions_held=risk.sessions_held,
            sessions_at_risk=risk.sessions,
            at_risk_reason=risk.reason.text,
            memory=memory,
            sentences={
                "drain_timeout_why": limit.why,
                "expected_reason": unseen,
                "at_risk_reason": risk.reason,
                "memory": memory_said,
                **{f"strategy.{name}": obstacle(name, members, cramped) for name in STRATEGIES},
            },
        )

    def members(self, fleet: str) -> list[Member]:
        """The engines of a fleet as a rollout finds them now."""
        return [_member(status) for status in self._engines.statuses(fleet) if not status.leaving]

    async def drain_limit(self, fleet: str, asked_seconds: float | None) -> DrainLimit:
        """How long a drain of this fleet waits for open requests. Raises InvalidInput, NotFound."""
        if asked_seconds is not None and not 0 <= asked_seconds <= 86_400:
            raise InvalidInput("Write seconds between 0 and 86400.", path="drain_timeout_seconds")
        found = await self._definitions(fleet)
        now = time.time()
        async with self._database.session() as session:
            ids = [one.engine.id for one in found]
            read = await read_gains(session, ids, ("request_seconds_bucket",), now - expect.OBSERVED_SECONDS, now)
        buckets = bucket_gains((one.increases for one in read.values()), "request_seconds_bucket")
        lengths = Lengths(max(buckets.values(), default=0.0), quantile(0.99, buckets))
        own = found[0].fleet.drain_timeout_seconds
        return expect.drain_limit(asked_seconds, own, lengths, self._settings.drain_timeout_seconds)

    async def no_room(self, fleet: str, version: VersionView) -> Said:
        """Why new engines with this version do not fit beside the fleet's own; NOTHING when they do."""
        count = len(wanted_of(self.members(fleet)))
        plan = await self._fleets.new_engine(fleet, version.id)
        if plan.refusal is not None:
            return Said(plan.refusal.sentence, plan.refusal.values)
        markers = [one.engine.marker for one in await self._definitions(fleet) if one.engine.marker]
        free, process_bytes = await asyncio.to_thread(_measured, markers)
        return no_room(Asked(count, plan.host_bytes, process_bytes), free)

    async def _definitions(self, fleet: str) -> list[EngineDefinition]:
        async with self._database.session() as session:
            found = [one for one in await queries.all_definitions(session) if one.fleet.name == fleet]
        if not found:
            raise NotFound(f"There is no fleet named {fleet!r} with an engine.", path="fleet")
        return found

    async def _others(self, fleet: str) -> list[EngineDefinition]:
        async with self._database.session() as session:
            return [one for one in await queries.all_definitions(session) if one.fleet.name != fleet]

    async def _observed(self, found: Sequence[EngineDefinition]) -> Observed:
        async with self._database.session() as session:
            rows = [await queries.newest_transitions(session, one.engine.id, TRANSITIONS_READ) for one in found]
        return expect.observed(
            [StateChange(row.at, EngineState(row.old_state), EngineState(row.new_state)) for row in reversed(own)]
            for own in rows
        )

    async def _at_risk(
        self,
        found: Sequence[EngineDefinition],
        old: VersionView,
        new: VersionView,
        both: Sequence[Consequence],
        now: float,
        strategy: Strategy,
    ) -> AtRisk:
        ids, by_name = [one.engine.id for one in found], {one.name: one for one in both}
        async with self._database.session() as session:
            slots = await read_slots(session, ids, now)
            gauges = await read_gauges(session, ids, ("host_restorable_sessions",), now)
        points = [one[SeriesKey("host_restorable_sessions")] for one in gauges.values() if one]
        fresh = [point.value for point in points if now - point.at <= FRESH_SECONDS]
        held = Contents(slots.token_used, slots.state_used, sum(fresh) if fresh else None)
        room = Room(_times(by_name["token_slots"].new, len(ids)), _times(by_name["state_slots"].new, len(ids)))
        per_slot = _ratio(by_name["tokens_held"].old, by_name["token_slots"].old)
        if strategy == "blue_green":
            empty: Said | None = say("Each engine's host memory is its own: the new ones begin with none.")
        else:
            empty = await self._begins_empty(old, new, found[0].fleet.name)
        return at_risk(held, room, per_slot, empty)

    async def _begins_empty(self, old: VersionView, new: VersionView, fleet: str) -> Said | None:
        before = residentmemory.kept_config(await self._profiles.engine_spec(old, fleet))
        after = residentmemory.kept_config(await self._profiles.engine_spec(new, fleet))
        return begins_empty(before, after, old.flags, new.flags)

    async def _engine(self, member: Member, found: Sequence[EngineDefinition]) -> EnginePreview:
        status = self._engines.status(member.name)
        running = next((one.engine.running_version_id for one in found if one.engine.name == member.name), None)
        version = await self._profiles.by_version_id(running) if running is not None else None
        return EnginePreview(
            name=status.name,
            state=status.state.value,
            runs=f"{version.profile} v{version.number}" if version is not None else None,
            restarts=not member.stopped_on_purpose,
            in_flight=self._engines.in_flight(status.name),
        )


def _measured(markers: Sequence[str]) -> tuple[Free, int]:
    """What is free, and what the largest of the running engines takes beside its host tier (blocking)."""
    free = Free(machine.free_bytes(), machine.free_shared_bytes())
    return free, max((machine.private_bytes(marker) for marker in markers), default=0)


def begins_empty(
    before: TierConfig | None, after: TierConfig | None, old_flags: dict[str, Any], new_flags: dict[str, Any]
) -> Said | None:
    """Why nothing in the host tier outlives the restart; None when it does. Pure."""
    if before is None:
        return say("The version before keeps nothing in host memory beyond its process.")
    if after is None:
        return say("The new version keeps no host tier of before.")
    if before.blocks_per_chunk != after.blocks_per_chunk:
        return say("%(name)s changes what a slot holds: the tier begins empty.", name="blocks_per_chunk")
    for name in CHANGES_CONTENTS:
        if old_flags.get(name) != new_flags.get(name):
            return say("%(name)s changes what a slot holds: the tier begins empty.", name=name)
    return None


def _member(status: EngineStatus) -> Member:
    on_purpose = status.wanted == "stopped" and status.state in {EngineState.STOPPED, EngineState.STOPPING}
    return Member(status.name, status.serves, on_purpose)


def _choice(name: Strategy, members: Sequence[Member], no_room: Said) -> StrategyChoice:
    reason = obstacle(name, members, no_room)
    return StrategyChoice(name, not reason.sentence, reason.text)


def _memory(
    version: VersionView, found: Sequence[EngineDefinition], claims: Sequence[Claim]
) -> tuple[MemoryCheck, Said]:
    fleet, engines = found[0].fleet, len(found)
    asked, usable = host_bytes(version, fleet.base_flags, fleet.environment) * engines, machine.usable_bytes()
    taken = sum(claim.bytes for claim in claims)
    said = _memory_said(asked, engines, claims, usable) if asked else NOTHING
    return MemoryCheck(asked, usable, not asked or asked + taken <= usable, said.text, taken), said


def _memory_said(asked: int, engines: int, claims: Sequence[Claim], usable: int) -> Said:
    if engines == 1:
        sentence = "The host tier asks for %(asked)s; the machine or its group has %(has)s."
    else:
        sentence = "The host tier asks for %(asked)s over %(engines)s engines; the machine or its group has %(has)s."
    if claims and engines == 1:
        sentence = "The host tier asks for %(asked)s beside %(others)s; the machine or its group has %(has)s."
    elif claims:
        sentence = (
            "The host tier asks for %(asked)s over %(engines)s engines beside %(others)s; "
            "the machine or its group has %(has)s."
        )
    values = {"asked": exact_size(asked), "engines": engines, "has": exact_size(usable)}
    return say(sentence, **values, **({"others": told_claims(claims)} if claims else {}))


def _times(value: float | None, count: int) -> float | None:
    return None if value is None else value * count


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
