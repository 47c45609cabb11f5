"""Fleets and engines in the database: the first ones, going out of service and coming back."""

from __future__ import annotations

from app.store.database import Database
from app.store.models import EngineRow
from app.store.queries import engines, fleets
from app.store.queries.fleets import FirstEngine, FirstFleet, FirstProfile
from tests.databases import T0

COLUMNS = {"model": "/models/a", "served_model_name": "a", "interpreter": "python"}
PROFILE = FirstProfile("p", "first", {}, {"max-model-len": 1024})


def first(name: str = "main", **columns: object) -> FirstFleet:
    engines = (FirstEngine(f"{name}-1", 8710, ("0",)), FirstEngine(f"{name}-2", 8711, ("1",)))
    return FirstFleet(name, COLUMNS | columns, engines, PROFILE)


async def seeded(database: Database, *made: FirstFleet) -> None:
    async with database.begin() as session:
        assert await fleets.seed(session, made or [first()], T0)


async def test_the_first_fleets_are_made_once(database: Database) -> None:
    """Two fleets may share a profile; a deck that ever had a fleet is left as it is, even when all are gone."""
    await seeded(database, first(), first("other", served_model_name="b"))
    async with database.begin() as session:
        assert not await fleets.seed(session, [first("third")], T0)
        found = await engines.all_definitions(session)
        assert [(one.engine.name, one.engine.devices) for one in found[:2]] == [("main-1", ["0"]), ("main-2", ["1"])]
        assert {one.version.id for one in found} == {found[0].version.id}
        for row in await fleets.all_fleets(session):
            await fleets.retire(session, row.id, T0)
    async with database.begin() as session:
        assert not await fleets.seed(session, [first("third")], T0)
        assert await fleets.all_fleets(session) == []


async def test_out_of_service_and_back(database: Database) -> None:
    """A retired engine is nobody's any more, is still supervised while it may have a process, and keeps its row."""
    await seeded(database)
    async with database.begin() as session:
        await engines.change(session, 2, marker="m", pid=7)
        await fleets.retire_engine(session, "main-2", T0 + 10)
    async with database.session() as session:
        assert await fleets.engine_names(session, 1) == ["main-1"]
        assert [one.engine.name for one in await engines.all_definitions(session)] == ["main-1"]
        assert [one.engine.name for one in await engines.supervised(session)] == ["main-1", "main-2"]
        assert (await session.get_one(EngineRow, 2)).wanted == "stopped", "a deck that comes up does not start it"
        assert await fleets.left_since(session, "main", T0) == [2]
        assert await fleets.left_since(session, None, T0 + 10) == []
        assert await fleets.left_since(session, "other", T0) == []
    async with database.begin() as session:
        await engines.change(session, 2, marker=None)
        assert [one.engine.name for one in await engines.supervised(session)] == ["main-1"]
        row = await fleets.add_engine(session, 1, FirstEngine("main-2", 9000), 1, T0 + 20)
        assert (row.id, row.port, row.devices, row.wanted, row.retired_at) == (2, 9000, [], "running", None)


async def test_an_only_fleet_follows_the_settings_until_it_is_edited(database: Database) -> None:
    """Another model in the environment is taken up; once somebody edited the fleet, or there are two, it is not."""
    await seeded(database)
    other = first(model="/models/b")
    async with database.begin() as session:
        await fleets.follow_settings(session, other)
        row = await fleets.by_name(session, "main")
        assert row is not None and row.model == "/models/b"
        fleets.change(row, model="/models/mine", follows_settings=False)
    async with database.begin() as session:
        assert await fleets.only_follower(session) is None
        await fleets.follow_settings(session, other)
        row = await fleets.by_name(session, "main")
        assert row is not None and row.model == "/models/mine"


async def test_a_database_without_tables_is_new() -> None:
    """Asked before the first migration, to check the file of the first run before anything is written."""
    database = Database("sqlite+aiosqlite://")
    async with database.session() as session:
        assert await fleets.is_new(session)
    await database.close()
