"""What the page of requests is made of: frozen, ready to be shown, every word in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass

from app.web.blocks import Share, StateBadge
from app.web.formats import Quantity


@dataclass(frozen=True)
class RequestLine:
    """One request that ended."""

    id: int
    at: float
    session: str
    session_href: str
    what: str
    """Path and model."""
    engine: str
    engine_href: str
    runs: str
    """Profile and version."""
    input: Quantity
    output: Quantity
    shares: tuple[Share, ...]
    """Where the input came from; empty when the engine did not say."""
    origin: str
    """The same in words."""
    queue: Quantity
    first_byte: Quantity
    total: Quantity
    badge: StateBadge
    notes: tuple[str, ...]
