"""One GET of an engine's metrics page; what went wrong becomes a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import httpx

from app.scrape.parse import NotMetrics, Page, parse_page
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

#: While an engine is in one of these states, a page that does not come is no fault.
EXPECTED_FAILURES = {EngineState.STARTING: "starting", EngineState.STOPPING: "stopping"}


class EngineStatuses(Protocol):
    """Where the states of the engines are read (`app.services.engines.Engines`)."""

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        """The engines of a fleet, or all."""


@dataclass(frozen=True)
class Outcome:
    """What one scrape of one engine brought: a page, or the reason why not."""

    status: EngineStatus
    page: Page | None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True when there are numbers."""
        return self.page is not None


async def fetch(client: httpx.AsyncClient, status: EngineStatus) -> Outcome:
    """Scrape one engine."""
    try:
        response = await client.get(f"{status.base_url}/metrics", headers={"Accept": "text/plain"})
        response.raise_for_status()
        return Outcome(status, parse_page(response.text))
    except (httpx.HTTPError, NotMetrics) as error:
        return Outcome(status, None, EXPECTED_FAILURES.get(status.state) or _sentence(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"answered {error.response.status_code}"
    if isinstance(error, httpx.ConnectError):
        return "refused the connection"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, NotMetrics):
        return str(error)
    return f"broke off ({type(error).__name__})"
