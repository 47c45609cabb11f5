"""The states of a supervised engine and the moves between them. A leaf: imports nothing of ours."""

from __future__ import annotations

from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine is in its life. `BACKOFF` waits for another try; `FAILED` has given up."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


#: The moves that exist. Anything else is a fault of the supervisor itself.
TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    EngineState.STOPPED: frozenset({EngineState.STARTING, EngineState.FAILED}),
    EngineState.STARTING: frozenset({EngineState.READY, EngineState.BACKOFF, EngineState.FAILED, EngineState.STOPPING}),
    EngineState.READY: frozenset(
        {
            EngineState.STALLED,
            EngineState.DRAINING,
            EngineState.STOPPING,
            EngineState.BACKOFF,
            EngineState.FAILED,
        }
    ),
    EngineState.STALLED: frozenset(
        {EngineState.READY, EngineState.DRAINING, EngineState.STOPPING, EngineState.BACKOFF, EngineState.FAILED}
    ),
    EngineState.DRAINING: frozenset({EngineState.READY, EngineState.STOPPING, EngineState.BACKOFF, EngineState.FAILED}),
    EngineState.STOPPING: frozenset({EngineState.STOPPED, EngineState.FAILED}),
    EngineState.BACKOFF: frozenset(
        {EngineState.STARTING, EngineState.STOPPING, EngineState.STOPPED, EngineState.FAILED}
    ),
    EngineState.FAILED: frozenset({EngineState.STARTING, EngineState.STOPPED, EngineState.STOPPING}),
}

#: States in which a process of the engine may be alive.
ALIVE = frozenset(
    {
        EngineState.STARTING,
        EngineState.READY,
        EngineState.STALLED,
        EngineState.DRAINING,
        EngineState.STOPPING,
    }
)

#: The fault that passes by itself, once somebody else gives the port back or the engine has moved to another one.
PORT_IN_USE = "port_in_use"

#: States in which its present process answers requests, or may answer some still.
ANSWERING = frozenset({EngineState.READY, EngineState.STALLED, EngineState.DRAINING})

#: States of an engine that came up and is to go on.
SERVING = frozenset({EngineState.READY, EngineState.STALLED})


def can_move(old: EngineState, new: EngineState) -> bool:
    """True when the supervisor may record `old` -> `new`."""
    return new in TRANSITIONS[old]
