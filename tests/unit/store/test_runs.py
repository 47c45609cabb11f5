"""Which version ran where, on SQLite and on PostgreSQL."""

from __future__ import annotations

from sqlalchemy import select

from app.store.database import Database
from app.store.models import EngineRow, ProfileRow
from app.store.queries import runs
from tests.databases import T0, add_engine


async def test_runs_are_told_newest_first_with_their_end(database: Database) -> None:
    """A start ends what was still open; what runs has no end yet."""
    engine_id = await add_engine(database)
    async with database.begin() as session:
        version = (await session.get_one(EngineRow, engine_id)).profile_version_id
        name = (await session.scalars(select(ProfileRow.name))).one()
        await runs.begin(session, engine_id, version, "a", T0)
        await runs.begin(session, engine_id, version, "b", T0 + 10)
        await runs.end(session, engine_id, T0 + 20)
        await runs.end(session, engine_id, T0 + 99)
        await runs.begin(session, engine_id, version, "c", T0 + 30)
    async with database.session() as session:
        found = await runs.of_profile(session, name, 10)
        assert await runs.of_profile(session, "another", 10) == []
    assert [(one.run.marker, one.run.ended_at) for one in found] == [("c", None), ("b", T0 + 20), ("a", T0 + 10)]
