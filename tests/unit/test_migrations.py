"""The database's schema: made and changed by migrations alone, and never at the cost of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from app.store.database import Database, alembic_config, upgrade
from app.store.models import Base

VERSION_TABLE = "alembic_version"
REVISIONS = [
    script.revision
    for script in reversed(list(ScriptDirectory.from_config(alembic_config("sqlite://")).walk_revisions()))
]

Rows = dict[str, list[dict[str, Any]]]


def _urls(tmp_path: Path) -> tuple[str, sa.Engine]:
    """The address the migrations get, and a plain engine on the same file to look inside."""
    file = tmp_path / "deck.db"
    return f"sqlite+aiosqlite:///{file}", sa.create_engine(f"sqlite:///{file}")


def _reflect(engine: sa.Engine) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(engine)
    metadata.remove(metadata.tables[VERSION_TABLE])
    return metadata


def _fill(engine: sa.Engine) -> Rows:
    """One row in every table, every column set; parents first."""
    metadata = _reflect(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.insert().values({column.name: _value(column) for column in table.columns}))
    return _read(engine)


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


def _read(engine: sa.Engine) -> Rows:
    metadata = _reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in metadata.sorted_tables
        }


def test_empty_database_comes_to_the_models_tables(tmp_path: Path) -> None:
    """From nothing to the newest revision gives exactly the tables the code knows."""
    url, engine = _urls(tmp_path)
    upgrade(url)
    assert set(_reflect(engine).tables) == set(Base.metadata.tables)


def test_models_and_migrations_agree(tmp_path: Path) -> None:
    """A changed model without a migration fails here, not on an operator's box."""
    url, _ = _urls(tmp_path)
    upgrade(url)
    command.check(alembic_config(url))


def test_there_is_one_line_of_migrations() -> None:
    """Two heads would leave it to chance which one a deck gets."""
    assert len(ScriptDirectory.from_config(alembic_config("sqlite://")).get_heads()) == 1


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_outlive_every_later_migration(tmp_path: Path, revision: str) -> None:
    """A deck upgraded from any earlier release finds every row and value it had."""
    url, engine = _urls(tmp_path)
    upgrade(url, revision)
    before = _fill(engine)
    assert before
    upgrade(url)
    after = _read(engine)
    for table, [row] in before.items():
        [kept] = after[table]
        surviving = row.keys() & kept.keys()
        assert {name: kept[name] for name in surviving} == {name: row[name] for name in surviving}, table


def test_migrating_again_changes_nothing(tmp_path: Path) -> None:
    """Every start of the deck migrates; nearly always there is nothing to do."""
    url, engine = _urls(tmp_path)
    upgrade(url)
    before = _fill(engine)
    upgrade(url)
    assert _read(engine) == before


async def test_database_makes_its_folder_and_migrates(tmp_path: Path) -> None:
    """A first run has no data directory yet."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'new' / 'folder' / 'deck.db'}")
    try:
        await database.migrate()
        async with database.session() as session:
            assert (await session.execute(sa.text("SELECT count(*) FROM profiles"))).scalar_one() == 0
    finally:
        await database.close()
