"""Rollouts: a profile version applied to a fleet, engine by engine, with the way back at every step.

One task owns each running rollout (`app.services.rollout_run`). Each step is written before it is taken,
so a deck that was stopped or killed in the middle picks the rollout up where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any

import httpx
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Conflict, InvalidInput, NotFound, in_short
from app.events import Event, Events
from app.rollouts.decide import failure, goes_back
from app.rollouts.said import NOTHING, Said, as_json, say
from app.rollouts.steps import Rollout, Wish
from app.rollouts.strategy import STRATEGIES, Member, Strategy, in_order, obstacle, usual
from app.services import rollout_view
from app.services.engines import Engines
from app.services.fleets import Fleets
from app.services.preview import Previews
from app.services.profiles import Profiles, VersionView
from app.services.rollout_beside import BesideWork
from app.services.rollout_records import RolloutRecords, rollout_of
from app.services.rollout_run import RolloutRun
from app.services.rollout_view import LogLineView, RolloutView
from app.services.rollout_work import StepWork, Tools
from app.store.database import Database
from app.store.models import RolloutRow
from app.store.queries import engines as engine_queries
from app.store.queries import fleets, requests
from app.store.queries import rollouts as queries
from app.store.queries.rollouts import NewTurn

log = structlog.get_logger(__name__)

__all__ = ["RolloutView", "Rollouts"]

LOG_LINES = 200


class Rollouts:
    """Starts rollouts, sees them through, and takes them back."""

    def __init__(
        self,
        database: Database,
        events: Events,
        engines: Engines,
        profiles: Profiles,
        previews: Previews,
        fleets: Fleets,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._database = database
        self._events = events
        self._engines = engines
        self._profiles = profiles
        self._previews = previews
        self._fleets = fleets
        self._runs: dict[int, RolloutRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deciding = asyncio.Lock()
        """So that of two rollouts asked for at once one is refused."""
        # Engines are on this machine: a proxy from the environment must not come between.
        self._client = client or httpx.AsyncClient(trust_env=False)

    async def open(self) -> None:
        """Go on with the rollouts that a stopped deck left running; their engines are held from here on."""
        async with self._database.session() as session:
            running = list(await queries.running(session))
        for row in running:
            await self._take_over(row)

    async def close(self) -> None:
        """Leave running rollouts as they are; the next deck goes on with them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def list(self, limit: int = 20, fleet: str | None = None) -> Sequence[RolloutView]:
        """Rollouts, newest first; of one fleet if it is given. Raises NotFound (fleet)."""
        async with self._database.session() as session:
            row = None if fleet is None else await fleets.by_name(session, fleet)
            if fleet is not None and row is None:
                raise NotFound('There is no fleet named "%(name)s".', path="fleet", values={"name": fleet})
            ids = await queries.newest_ids(session, limit, row.id if row is not None else None)
        return [await self.get(rollout_id) for rollout_id in ids]

    async def get(self, rollout_id: int) -> RolloutView:
        """One rollout. Raises NotFound."""
        async with self._database.session() as session:
            row = await queries.get(session, rollout_id)
            turns = await queries.turns_of(session, rollout_id)
            fleet = await queries.fleet_name(session, row.fleet_id)
            is_newest = await queries.newest_on(session, row.fleet_id) == rollout_id
        rollout = rollout_of(row, turns)
        version = await self._profiles.by_version_id(row.version_id)
        statuses = {one.name: one for one in self._engines.statuses()}
        told = rollout_view.sentences(row, rollout, {one.name for one in self._engines.statuses(fleet) if one.serves})
        running = [rows.engine.running_version_id for rows in turns]
        labels = await self._labels({row.previous_version_id, *running, *(turn.before for turn in rollout.turns)})
        engines = [
            rollout_view.turn_view(
                turn,
                self._engines,
                statuses.get(turn.engine),
                labels.get(rows.engine.running_version_id),
                labels.get(turn.before) or "",
            )
            for turn, rows in zip(rollout.turns, turns, strict=True)
        ]
        return RolloutView(
            id=row.id,
            fleet=fleet,
            profile=version.profile,
            version=version.number,
            previous_version=labels.get(row.previous_version_id),
            strategy=row.strategy,
            state=row.state,
            goes_back=row.state == "running" and goes_back(rollout),
            step=rollout_view.step_line(rollout, self._engines) or row.step,
            reason=_text(told["reason"]),
            author=row.author,
            started_at=row.started_at,
            ended_at=row.ended_at,
            wish=row.wish,
            wish_by=row.wish_by,
            waits_for=_text(told["waits_for"]),
            drain_timeout_seconds=row.drain_timeout_seconds,
            drain_timeout_why=_text(told["drain_timeout_why"]),
            can_cancel=rollout_view.can_cancel(row, rollout),
            can_roll_back=rollout_view.can_roll_back(row, rollout, is_newest),
            engines=tuple(engines),
            sentences=told,
        )

    async def log(self, rollout_id: int) -> tuple[LogLineView, ...]:
        """What happened in a rollout, oldest first. Raises NotFound."""
        async with self._database.session() as session:
            await queries.get(session, rollout_id)
            return rollout_view.log_view(await queries.log_of(session, rollout_id, LOG_LINES))

    async def failed_requests(self, rollout_id: int) -> int:
        """Requests to the fleet that failed since it began, until its end. Raises NotFound."""
        async with self._database.session() as session:
            row = await queries.get(session, rollout_id)
            fleet = await queries.fleet_name(session, row.fleet_id)
            return await requests.count_failed(session, fleet, row.started_at, row.ended_at or time.time())

    async def start(
        self,
        fleet: str,
        profile: str,
        version: int,
        strategy: str | None = None,
        author: str = "",
        drain_timeout_seconds: float | None = None,
    ) -> RolloutView:
        """Begin applying a version to a fleet; returns at once, progress comes as `rollout` events.

        Raises NotFound (fleet, profile, version), InvalidInput (strategy, drain time), Conflict (one runs already).
        """
        if strategy is not None and strategy not in STRATEGIES:
            raise InvalidInput(f"Write one of: {', '.join(STRATEGIES)}.", path="strategy")
        wanted = await self._profiles.version(profile, version)
        limit = await self._previews.drain_limit(fleet, drain_timeout_seconds)
        async with self._deciding:
            members = self._previews.members(fleet)
            chosen = next((one for one in STRATEGIES if one == strategy), usual(members))
            cramped = await self._previews.no_room(fleet, wanted) if chosen == "blue_green" else NOTHING
            if (reason := obstacle(chosen, members, cramped)).sentence:
                raise Conflict(reason.sentence, path="strategy", values=reason.values)
            said = {"drain_timeout_why": as_json(limit.why)}
            row = await self._add(fleet, wanted, chosen, members, author=author, seconds=limit.seconds, said=said)
        self._begin(self._run_of(row, limit.seconds), row.id)
        return await self.get(row.id)

    async def cancel(self, rollout_id: int, author: str) -> RolloutView:
        """Begin no further engine; the one in work goes back to the version before, those that are done stay.

        Raises NotFound, Conflict (it has ended, was cancelled, or goes back as a whole).
        """
        async with self._deciding:
            async with self._database.begin() as session:
                row = await queries.get(session, rollout_id)
                if row.state != "running":
                    raise Conflict("Rollout %(id)s has ended.", path="id", values={"id": rollout_id})
                rollout = rollout_of(row, await queries.turns_of(session, rollout_id))
                if not rollout_view.can_cancel(row, rollout):
                    raise _goes_back(row, rollout)
                await self._wish(session, row, Wish.CANCEL, author, say("%(who)s cancels it.", who=author))
            self._wake(rollout_id)
        return await self.get(rollout_id)

    async def roll_back(self, rollout_id: int, author: str) -> RolloutView:
        """Every engine that was begun goes back to the version before; also after the end of the last rollout.

        Raises NotFound, Conflict (it goes or went back already, failed, or another rollout followed).
        """
        async with self._deciding:
            async with self._database.begin() as session:
                row = await queries.get(session, rollout_id)
                turns = await queries.turns_of(session, rollout_id)
                is_newest = await queries.newest_on(session, row.fleet_id) == rollout_id
                if not rollout_view.can_roll_back(row, rollout_of(row, turns), is_newest):
                    raise _no_rollback(row, rollout_of(row, turns), is_newest)
                seconds = await self._drain_seconds(row)
                await self._wish(session, row, Wish.ROLLBACK, author, say("%(who)s rolls it back.", who=author))
            self._wake(rollout_id)
            if rollout_id not in self._runs:
                self._begin(self._run_of(row, seconds), row.id)
        return await self.get(rollout_id)

    async def refuse_to_empty(self, engine: str) -> None:
        """Raises Conflict where a rollout runs on the engine's fleet, and no other engine of that serves; NotFound."""
        status = self._engines.status(engine)
        if not status.serves or any(one.serves and one.name != engine for one in self._engines.statuses(status.fleet)):
            return
        async with self._database.session() as session:
            row = await fleets.by_name(session, status.fleet)
            running = None if row is None else await queries.running_on(session, row.id)
        if running is not None:
            sentence = (
                "Rollout %(id)s, started by %(who)s, is running on this fleet, and no other engine of it serves; "
                "wait for its end, or ask with force=true."
            )
            raise Conflict(sentence, path="name", values={"id": running.id, "who": running.author})

    async def _add(
        self, fleet: str, wanted: VersionView, strategy: Strategy, members: Sequence[Member], **content: Any
    ) -> RolloutRow:
        async with self._database.begin() as session:
            found = {one.engine.name: one for one in await engine_queries.all_definitions(session)}
            own = [found[one.name] for one in in_order(members) if one.name in found]
            if not own:
                raise NotFound(f"There is no fleet named {fleet!r} with an engine.", path="fleet")
            if (running := await queries.running_on(session, own[0].fleet.id)) is not None:
                sentence = "Rollout %(id)s, started by %(who)s, is still running on this fleet."
                raise Conflict(sentence, path="fleet", values={"id": running.id, "who": running.author})
            stopped = {one.name for one in members if one.stopped_on_purpose}
            turns = [
                NewTurn(one.engine.id, one.engine.running_version_id or one.version.id, one.engine.name in stopped)
                for one in own
            ]
            row = await queries.add(
                session,
                turns,
                now := time.time(),
                fleet_id=own[0].fleet.id,
                version_id=wanted.id,
                strategy=strategy,
                author=content["author"],
                drain_timeout_seconds=content["seconds"],
                said=content["said"],
            )
            version = f"{wanted.profile} v{wanted.number}"
            told = say("%(who)s takes %(fleet)s to %(version)s.", who=row.author, fleet=fleet, version=version)
            await queries.add_log(session, row.id, now, "", as_json(told))
            return row

    async def _take_over(self, row: RolloutRow) -> None:
        """Go on with a rollout of the last deck; one of an earlier release is given its turns first."""
        async with self._database.begin() as session:
            if not await queries.turns_of(session, row.id):
                definitions = [
                    one for one in await engine_queries.all_definitions(session) if one.fleet.id == row.fleet_id
                ]
                turns = [
                    NewTurn(one.engine.id, row.previous_version_id or one.version.id, False) for one in definitions
                ]
                await queries.add_turns(session, row.id, turns)
        await RolloutRecords(self._database, row.id).note(say("A deck was started and goes on with it."))
        run = self._run_of(row, await self._drain_seconds(row))
        await run.open()
        self._begin(run, row.id)

    async def _drain_seconds(self, row: RolloutRow) -> float:
        if row.drain_timeout_seconds is not None:
            return row.drain_timeout_seconds
        return (await self._previews.drain_limit(await self._fleet_name(row), None)).seconds

    def _run_of(self, row: RolloutRow, seconds: float) -> RolloutRun:
        records = RolloutRecords(self._database, row.id)
        tools = Tools(self._engines, self._profiles, self._client)
        work: StepWork = StepWork(records, tools, seconds)
        if row.strategy == "blue_green":
            work = BesideWork(records, tools, seconds, self._fleets)

        async def tell() -> None:
            await self._tell(row.id)

        return RolloutRun(records, work, self._engines, tell)

    def _begin(self, run: RolloutRun, rollout_id: int) -> None:
        """From here on somebody sees it through: nothing that the database could refuse stands before that."""
        self._runs[rollout_id] = run
        task = asyncio.create_task(self._see_through(rollout_id, run), name=f"rollout-{rollout_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, rollout_id: int, run: RolloutRun) -> None:
        try:
            await run.run()
        except Exception as error:  # the task's edge: whatever went wrong is the rollout's end
            log.exception("rollout failed", rollout=rollout_id)
            await run.give_up(say("The deck could not go on: %(error)s", error=in_short(error)))
        finally:
            if self._runs.get(rollout_id) is run:
                del self._runs[rollout_id]

    async def _wish(self, session: AsyncSession, row: RolloutRow, wish: Wish, author: str, said: Said) -> None:
        await queries.set_wish(session, row.id, wish, author)
        await queries.add_log(session, row.id, time.time(), "", as_json(said))

    def _wake(self, rollout_id: int) -> None:
        if (run := self._runs.get(rollout_id)) is not None:
            run.wake()

    async def _fleet_name(self, row: RolloutRow) -> str:
        async with self._database.session() as session:
            return await queries.fleet_name(session, row.fleet_id)

    async def _tell(self, rollout_id: int) -> None:
        """Whoever watches reads it again with the next change; not told is not lost."""
        try:
            view = await self.get(rollout_id)
        except SQLAlchemyError as error:
            log.warning("a rollout could not be told of", rollout=rollout_id, why=in_short(error))
            return
        told = {name: value for name, value in asdict(view).items() if name != "sentences"}
        self._events.publish(Event("rollout", str(rollout_id), told))

    async def _labels(self, version_ids: Set[int | None]) -> dict[int | None, str]:
        """`profile v3` of each: engines of a fleet run one or two versions between them."""
        versions = [await self._profiles.by_version_id(one) for one in version_ids if one is not None]
        return {one.id: f"{one.profile} v{one.number}" for one in versions}


def _text(said: Sequence[Any]) -> str:
    return " ".join(one.text for one in said)


def _goes_back(row: RolloutRow, rollout: Rollout) -> Conflict:
    if (failed := failure(rollout)) is not None:
        sentence = "Rollout %(id)s goes back already: %(why)s"
        return Conflict(sentence, path="id", values={"id": row.id, "why": failed[1].detail.text})
    if Wish(row.wish) is Wish.CANCEL:
        sentence = "Rollout %(id)s was cancelled already, by %(who)s."
        return Conflict(sentence, path="id", values={"id": row.id, "who": row.wish_by})
    sentence = "Rollout %(id)s goes back already, asked for by %(who)s."
    return Conflict(sentence, path="id", values={"id": row.id, "who": row.wish_by})


def _no_rollback(row: RolloutRow, rollout: Rollout, is_newest: bool) -> Conflict:
    if row.state == "running" and rollout.turns:
        return _goes_back(row, rollout)
    sentence = "Rollout %(id)s has ended and cannot be gone back from; apply the version that is wanted."
    if not rollout.turns:
        sentence = "Rollout %(id)s is from an earlier release, which kept no steps; apply the version that is wanted."
    elif not is_newest:
        sentence = "Rollout %(id)s was followed by another; roll that one back, or apply the version that is wanted."
    return Conflict(sentence, path="id", values={"id": row.id})
