"""A migrated database, or one of each kind that is installed; and the event loops that a module's tests run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.databases import database, postgres_url, sqlite_database

__all__ = ["database", "postgres_url", "sqlite_database"]

ONE_LOOP = {"asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Those that its module has as LOOPS."""
    return getattr(item.module, "LOOPS", ONE_LOOP)
