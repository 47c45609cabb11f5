"""The database's schema: made and changed by migrations alone, and never at the cost of a row."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import create_async_engine

from app.store.database import Database, alembic_config, upgrade
from app.store.models import Base
from tests.databases import kinds, postgres_url

__all__ = ["postgres_url"]

VERSION_TABLE = "alembic_version"
REVISIONS = [
    script.revision
    for script in reversed(list(ScriptDirectory.from_config(alembic_config("sqlite://")).walk_revisions()))
]

Rows = dict[str, list[dict[str, Any]]]
Result = TypeVar("Result")


@pytest.fixture(params=kinds())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that is installed."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'deck.db'}"
    server: str = request.getfixturevalue("postgres_url")
    name = f"migrations_{uuid.uuid4().hex}"
    _inside(
        server,
        lambda connection: connection.execute(sa.text(f"CREATE DATABASE {name}")),
        outside_transaction=True,
    )
    return f"{server.rpartition('/')[0]}/{name}"


def _inside(url: str, look: Callable[[sa.Connection], Result], *, outside_transaction: bool = False) -> Result:
    """What `look` finds or does on a connection of its own."""

    async def run() -> Result:
        options = {"isolation_level": "AUTOCOMMIT"} if outside_transaction else {}
        engine = create_async_engine(url, **options)
        async with engine.begin() as connection:
            result = await connection.run_sync(look)
        await engine.dispose()
        return result

    return asyncio.run(run())


def _reflect(connection: sa.Connection) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(connection)
    metadata.remove(metadata.tables[VERSION_TABLE])
    return metadata


def _fill(connection: sa.Connection) -> Rows:
    """One row in every table, every column set; parents first."""
    for table in _reflect(connection).sorted_tables:
        connection.execute(table.insert().values({column.name: _value(column) for column in table.columns}))
    return _read(connection)


def _value(column: sa.Column[Any]) -> Any:
    match column.type:
        case sa.JSON():
            return {"key": [1, "two"]}
        case sa.Boolean():
            return True
        case sa.Integer():
            return 1
        case sa.Float():
            return 1.5
        case sa.String():
            return "words"
    raise AssertionError(f"no value known for {column.table.name}.{column.name} of type {column.type!r}")


def _read(connection: sa.Connection) -> Rows:
    return {
        table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
        for table in _reflect(connection).sorted_tables
    }


def test_empty_database_comes_to_the_models_tables(url: str) -> None:
    """From nothing to the newest revision gives exactly the tables the code knows."""
    upgrade(url)
    assert _inside(url, lambda connection: set(_reflect(connection).tables)) == set(Base.metadata.tables)


def test_models_and_migrations_agree(url: str) -> None:
    """A changed model without a migration fails here, not on an operator's box."""
    upgrade(url)
    command.check(alembic_config(url))


def test_there_is_one_line_of_migrations() -> None:
    """Two heads would leave it to chance which one a deck gets."""
    assert len(ScriptDirectory.from_config(alembic_config("sqlite://")).get_heads()) == 1


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_outlive_every_later_migration(url: str, revision: str) -> None:
    """A deck upgraded from any earlier release finds every row and value it had."""
    upgrade(url, revision)
    before = _inside(url, _fill)
    assert before
    upgrade(url)
    after = _inside(url, _read)
    for table, [row] in before.items():
        [kept] = after[table]
        surviving = row.keys() & kept.keys()
        assert {name: kept[name] for name in surviving} == {name: row[name] for name in surviving}, table


def test_fleets_of_before_keep_working(url: str) -> None:
    """A fleet from before it could be set up gives its engines nothing of its own, and is in service."""
    upgrade(url, "0002")
    _inside(url, _fill)
    upgrade(url)
    rows = _inside(url, _read)
    [fleet], [engine] = rows["fleets"], rows["engines"]
    assert (fleet["base_flags"], fleet["environment"], fleet["devices"], engine["devices"]) == ({}, {}, [], [])
    assert (fleet["routing"], fleet["join_identical"], fleet["retired_at"], engine["retired_at"]) == (
        "sticky",
        False,
        None,
        None,
    )


def test_rollouts_of_before_keep_working(url: str) -> None:
    """A rollout from before it went step by step has no wish, no limit of its own and no turns."""
    upgrade(url, "0005")
    _inside(url, _fill)
    upgrade(url)
    rows = _inside(url, _read)
    [rollout] = rows["rollouts"]
    assert (rollout["wish"], rollout["wish_by"], rollout["said"]) == ("", "", {})
    assert rollout["drain_timeout_seconds"] is None
    assert not rows.get("rollout_turns")


def test_migrating_again_changes_nothing(url: str) -> None:
    """Every start of the deck migrates; nearly always there is nothing to do."""
    upgrade(url)
    before = _inside(url, _fill)
    upgrade(url)
    assert _inside(url, _read) == before


async def test_database_makes_its_folder_and_migrates(tmp_path: Path) -> None:
    """A first run has no data directory yet."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'new' / 'folder' / 'deck.db'}")
    try:
        await database.migrate()
        async with database.session() as session:
            assert (await session.execute(sa.text("SELECT count(*) FROM profiles"))).scalar_one() == 0
    finally:
        await database.close()
