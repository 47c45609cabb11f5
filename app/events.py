"""In-process events: what changed, told to whoever watches (pages over SSE, tests).

Watchers have bounded queues. A slow one loses the oldest events and is told how many,
so that nothing a browser does can hold up the supervisor or the scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

EventKind = Literal["engine", "fleet", "scrape", "log", "alert", "profile", "rollout", "request"]


@dataclass(frozen=True)
class Event:
    """One change. `key` is the name of the thing that changed (an engine's name, a rule's id)."""

    kind: EventKind
    key: str
    data: dict[str, Any] = field(default_factory=dict)


class Subscription:
    """A watcher's bounded queue; `skipped` counts what it was too slow to see."""

    def __init__(self, capacity: int) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue(capacity)
        self.skipped = 0

    def offer(self, event: Event) -> None:
        """Take an event, dropping the oldest when full."""
        if self._queue.full():
            self._queue.get_nowait()
            self.skipped += 1
        self._queue.put_nowait(event)

    async def next(self) -> Event:
        """Wait for the next event."""
        return await self._queue.get()


class Events:
    """The deck's event bus. Publish from the event loop's thread only."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def publish(self, event: Event) -> None:
        """Hand `event` to every watcher; never blocks."""
        for subscription in self._subscriptions:
            subscription.offer(event)

    @contextmanager
    def subscribe(self, capacity: int = 256) -> Iterator[Subscription]:
        """Watch for the length of the `with` block."""
        subscription = Subscription(capacity)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
