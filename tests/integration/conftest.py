"""A migrated database, or one of each kind that is installed."""

from tests.databases import database, postgres_url, sqlite_database

__all__ = ["database", "postgres_url", "sqlite_database"]
