"""What the rest of the deck sees of an engine. A leaf beside the states."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.supervisor.states import PORT_IN_USE, EngineState

Routing = Literal["sticky", "least_busy"]


@dataclass(frozen=True)
class FleetSettings:
    """How requests are dealt to the engines of a fleet; in force as soon as it is saved."""

    routing: Routing = "sticky"
    """`sticky`: a session goes to the engine that has its cache; `least_busy`."""
    join_identical: bool = False
    """Whether an identical prompt in flight is joined instead of started again."""
    drain_timeout_seconds: float | None = None
    """Longest wait for requests in flight before a stop; None = that of the deck's settings."""


@dataclass(frozen=True)
class EngineStatus:
    """One engine at one moment. `cause` is the sentence that explains `state`."""

    name: str
    fleet: str
    model: str
    state: EngineState
    since: float
    cause: str
    base_url: str
    port: int
    pid: int | None
    started_at: float | None
    """When the present process was started; None without one."""
    wanted_profile: str
    wanted_version: int
    running_version: int | None
    phase: str | None = None
    """What a starting engine is doing, as a sentence; None when it is not starting."""
    progress: float | None = None
    """0 to 1 through the start, by phases; None when it is not starting."""
    restarts: int = 0
    """Tries made by the deck itself since the last start that was asked for."""
    next_try_at: float | None = None
    leftover_processes: int = 0
    """Processes of the engine that are alive although it is not meant to run."""
    error_code: str | None = None
    leftover_bytes: int | None = None
    """Device memory that they hold; on a machine without devices, memory of the machine. None: nothing is left."""
    last_token_at: float | None = None
    """When a token was last seen to come, at a scrape or in answer to the deck; None before the first."""
    wanted: str = "running"
    """`running` or `stopped`: what the operator last asked for. A restart passes through STOPPED."""
    served_model_name: str = ""
    """The name that requests ask for; of a running engine, the one it was started with."""
    devices: tuple[str, ...] = ()
    """The devices it sees; empty = all."""
    routing: Routing = "sticky"
    join_identical: bool = False
    """Whether its fleet has an identical prompt in flight joined instead of started again."""
    restart_for: tuple[str, ...] = ()
    """What of its fleet has changed since it was started, by field: in force from the next start on."""
    leaving: bool = False
    """It goes out of service: drained, stopped, then no longer listed."""
    held: str = ""
    """Why traffic is kept from it, as a sentence; empty when it is not. Requests then wait or go elsewhere."""

    @property
    def serves(self) -> bool:
        """True when requests may be sent to it."""
        return self.state is EngineState.READY and not self.held

    @property
    def waits_for_port(self) -> bool:
        """True when it will start by itself: as soon as its port is free, or on another one."""
        lost = self.state is EngineState.FAILED and self.error_code == PORT_IN_USE
        return lost and self.wanted == "running"

    def as_json(self) -> dict[str, Any]:
        """For REST and events."""
        return {**asdict(self), "state": self.state.value, "serves": self.serves}


@dataclass(frozen=True)
class Transition:
    """One recorded change of state."""

    at: float
    old_state: EngineState
    new_state: EngineState
    cause: str
    evidence: dict[str, Any]
