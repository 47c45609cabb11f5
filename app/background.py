"""The deck's loops: each one task, begun again after a fault, its last fault kept to be shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from app.errors import in_short

log = structlog.get_logger(__name__)

RESTART_SECONDS = 5.0
#: Longer than a loop can be held up by a database that is locked before it fails again.
STEADY_SECONDS = 30.0


class Loops:
    """Named loops that run until `close`. A loop that raises is logged, reported and begun again; it counts as
    recovering until it has run for a while without a fault.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._faults: dict[str, str] = {}

    @property
    def faults(self) -> Mapping[str, str]:
        """Loop name -> sentence of the fault it is recovering from."""
        return self._faults

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run` for ever under `name`."""
        self._tasks.append(asyncio.create_task(self._keep_running(name, run), name=name))

    async def close(self) -> None:
        """Stop every loop and wait until it has stopped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            steady = asyncio.get_running_loop().call_later(STEADY_SECONDS, self._faults.pop, name, None)
            try:
                await run()
            except Exception as error:  # the loop's edge: the deck goes on, and says so
                log.exception("loop failed", loop=name)
                self._faults[name] = in_short(error)
            finally:
                steady.cancel()
            await asyncio.sleep(RESTART_SECONDS)
