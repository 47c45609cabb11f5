"""What the rest of the deck sees of an engine. A leaf beside the states."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from app.supervisor.states import EngineState


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
    phase: str | None
    """What a starting engine is doing, as a sentence; None when it is not starting."""
    progress: float | None
    """0 to 1 through the start, by phases; None when it is not starting."""
    restarts: int
    """Tries made by the deck itself since the last start that was asked for."""
    next_try_at: float | None
    leftover_processes: int
    """Processes of the engine that are alive although it is not meant to run."""
    error_code: str | None
    wanted: str = "running"
    """`running` or `stopped`: what the operator last asked for. A restart passes through STOPPED."""

    @property
    def serves(self) -> bool:
        """True when requests may be sent to it."""
        return self.state is EngineState.READY

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
