"""A migrated database of each kind that is installed."""

from tests.databases import database, postgres_url

__all__ = ["database", "postgres_url"]
