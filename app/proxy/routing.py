"""Which engine serves a request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

#: An engine that was stopped or gave up a moment ago may be on its way through a restart.
SETTLED_AFTER_SECONDS = 1.0


@dataclass(frozen=True)
class Serve:
    """Send it there."""

    engine: str
    base_url: str


@dataclass(frozen=True)
class Wait:
    """An engine is on its way; look again when something changed, at the latest after `look_again_seconds`."""

    sentence: str
    look_again_seconds: float | None = None


@dataclass(frozen=True)
class Refuse:
    """Nothing will serve this before somebody acts."""

    code: str
    sentence: str


Choice = Serve | Wait | Refuse

#: Which engine's sentence a waiting client is told: the one nearest to serving.
NEARNESS = (
    EngineState.READY,
    EngineState.STARTING,
    EngineState.DRAINING,
    EngineState.STALLED,
    EngineState.STOPPING,
    EngineState.BACKOFF,
    EngineState.FAILED,
    EngineState.STOPPED,
)
GIVEN_UP = frozenset({EngineState.FAILED, EngineState.STOPPED})


def choose(
    engines: Sequence[EngineStatus],
    in_flight: Callable[[str], int],
    now: float,
    avoid_until: Mapping[str, float],
) -> Choice:
    """The least busy ready engine, else whether waiting makes sense.

    `avoid_until`: engines that just took no connection, and the time at which to try them again.
    """
    ready = [e for e in engines if e.state is EngineState.READY and avoid_until.get(e.name, now) <= now]
    if ready:
        best = min(ready, key=lambda engine: (in_flight(engine.name), engine.name))
        return Serve(best.name, best.base_url)
    if not engines:
        return Refuse("no_engine", "The deck has no engine.")
    return _without_a_ready_one(engines, now, avoid_until)


def _without_a_ready_one(engines: Sequence[EngineStatus], now: float, avoid_until: Mapping[str, float]) -> Choice:
    nearest = min(engines, key=lambda engine: NEARNESS.index(engine.state))
    if nearest.state is EngineState.READY:
        return Wait(f"Engine {nearest.name} takes no connection.", min(avoid_until.values()) - now)
    if nearest.state not in GIVEN_UP:
        return Wait(_sentence(nearest))
    settles_in_seconds = max(engine.since for engine in engines) + SETTLED_AFTER_SECONDS - now
    if settles_in_seconds > 0:
        return Wait(_sentence(nearest), settles_in_seconds)
    return Refuse(f"engine_{nearest.state.value}", _sentence(nearest))


def _sentence(engine: EngineStatus) -> str:
    cause = f": {engine.cause}" if engine.cause else "."
    return f"Engine {engine.name} is {engine.state.value}{cause}"
