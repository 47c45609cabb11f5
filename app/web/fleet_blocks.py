"""What the fleets' page is made of: frozen, ready to be shown, every word already in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass

from app.web.blocks import StateBadge
from app.web.formats import Quantity


@dataclass(frozen=True)
class FleetFact:
    """A field of a fleet as it is set. `is_code` for what is written to a machine."""

    label: str
    value: str
    is_code: bool = False


@dataclass(frozen=True)
class FleetButton:
    """A button that opens a dialog: what it fills the dialog with, and why it is off, if it is."""

    heading: str
    api: str
    fill: str
    """The dialog's fields as a JSON object; `what` is what will happen, in words."""
    why_not: str = ""


@dataclass(frozen=True)
class FleetEngineLine:
    """An engine of a fleet."""

    name: str
    href: str
    badge: StateBadge
    since: float
    cause: str
    is_leaving: bool
    waits_for: str
    """Fields of the fleet that it takes up with its next start; empty when there are none."""
    port: int
    devices: str
    profile: str
    profile_href: str
    in_flight: Quantity
    remove: FleetButton


@dataclass(frozen=True)
class FleetBlock:
    """A fleet with its engines and what can be done."""

    name: str
    summary: str
    tone: str
    facts: tuple[FleetFact, ...]
    engines: tuple[FleetEngineLine, ...]
    waits_for: str
    change: FleetButton
    add: FleetButton
    delete: FleetButton
