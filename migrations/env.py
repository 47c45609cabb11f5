"""Alembic environment: async engines, and on PostgreSQL one migration at a time.

The advisory lock lets several decks start against one database at once; the timeouts keep a
migration from holding the tables of a running deck.
"""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine

from app.store.models import Base

ADVISORY_LOCK = 0x7469657264  # "tierd"


def run(connection: Connection) -> None:
    """Run the migrations on an open connection."""
    is_postgres = connection.dialect.name == "postgresql"
    if is_postgres:
        connection.execute(text("SET lock_timeout = '10s'"))
        connection.execute(text("SET statement_timeout = '300s'"))
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        connection.commit()
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=not is_postgres,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()


async def main() -> None:
    """Open the configured database and migrate it."""
    engine = create_async_engine(context.config.attributes["url"], poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


asyncio.run(main())
