"""Which engine serves a request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from app.errors import InvalidInput, NotFound
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

#: An engine that was stopped or gave up a moment ago may be on its way through a restart.
SETTLED_AFTER_SECONDS = 1.0
#: A session leaves its home for as long as that has more than so many times the requests of the idlest
#: engine, and so many more: a prefill elsewhere is then sooner done than the queue.
SPILL_FACTOR = 2
SPILL_MARGIN = 8


@dataclass(frozen=True)
class Session:
    """What ties a request to an engine."""

    key: str
    home: str | None
    """The engine whose cache holds it; None for a new one."""
    at_home: Callable[[str], int]
    """How many sessions are at home on an engine."""


@dataclass(frozen=True)
class Serve:
    """Send it there."""

    engine: EngineStatus


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


def serving(engines: Sequence[EngineStatus], model: str | None, home: str | None) -> Sequence[EngineStatus]:
    """The engines of the fleets that serve `model`; without one, of the fleet that `home` belongs to.

    While there is one fleet it gets everything: its engine may know names that the deck does not, of
    adapters for one, and answers for itself. Raises InvalidInput or NotFound.
    """
    if len({engine.fleet for engine in engines}) < 2:
        return engines
    if model is None and _has(engines, home):
        fleets = {engine.fleet for engine in engines if engine.name == home}
        return [engine for engine in engines if engine.fleet in fleets]
    if model is None:
        raise InvalidInput(f"Name the model: this deck serves {_names(engines)}.", code="model_missing", path="model")
    found = [engine for engine in engines if engine.served_model_name == model]
    if not found:
        sentence = f"No fleet of this deck serves the model {model!r}; there are {_names(engines)}."
        raise NotFound(sentence, code="model_not_found", path="model")
    return found


def choose(
    engines: Sequence[EngineStatus],
    in_flight: Callable[[str], int],
    now: float,
    avoid_until: Mapping[str, float],
    session: Session | None = None,
) -> Choice:
    """The engine that has the session, else the least busy ready one, else whether waiting makes sense.

    One that is held is on its way. `avoid_until`: engines that just took no connection, and the time at
    which to try them again. `session`: None where requests are not sticky.
    """
    ready = [e for e in engines if e.serves and avoid_until.get(e.name, now) <= now]
    if ready:
        best = _best(ready, in_flight, session, is_known=session is not None and _has(engines, session.home))
        return Serve(best)
    if not engines:
        return Refuse("no_engine", "The deck has no engine.")
    return _without_a_ready_one(engines, now, avoid_until)


def _best(
    ready: Sequence[EngineStatus], in_flight: Callable[[str], int], session: Session | None, *, is_known: bool
) -> EngineStatus:
    if session is None:
        return min(ready, key=lambda engine: (in_flight(engine.name), engine.name))
    bound = SPILL_FACTOR * min(in_flight(engine.name) for engine in ready) + SPILL_MARGIN
    free = [engine for engine in ready if in_flight(engine.name) <= bound]
    for engine in free:
        if engine.name == session.home:
            return engine
    rank = _ranks(session.key)
    if is_known:  # its home is away or overrun: every turn goes to the same stand-in
        return min(free, key=rank)
    return min(free, key=lambda e: (in_flight(e.name), session.at_home(e.name), rank(e)))


def _ranks(session: str) -> Callable[[EngineStatus], bytes]:
    """Rendezvous hashing: an order of the engines that is a session's own and needs no memory."""
    return lambda engine: sha256(f"{session}\0{engine.name}".encode()).digest()


def _has(engines: Sequence[EngineStatus], name: str | None) -> bool:
    return any(engine.name == name for engine in engines)


def _names(engines: Sequence[EngineStatus]) -> str:
    return ", ".join(sorted({repr(engine.served_model_name) for engine in engines}))


def _without_a_ready_one(engines: Sequence[EngineStatus], now: float, avoid_until: Mapping[str, float]) -> Choice:
    unreachable = next((engine for engine in engines if engine.serves), None)
    if unreachable is not None:
        return Wait(f"Engine {unreachable.name} takes no connection.", min(avoid_until.values()) - now)
    if held := [engine for engine in engines if engine.held]:
        return Wait(held[0].held)
    nearest = min(engines, key=lambda engine: NEARNESS.index(engine.state))
    if nearest.state not in GIVEN_UP:
        return Wait(_sentence(nearest))
    settles_in_seconds = max(engine.since for engine in engines) + SETTLED_AFTER_SECONDS - now
    if settles_in_seconds > 0:
        return Wait(_sentence(nearest), settles_in_seconds)
    return Refuse(f"engine_{nearest.state.value}", _sentence(nearest))


def _sentence(engine: EngineStatus) -> str:
    cause = f": {engine.cause}" if engine.cause else "."
    return f"Engine {engine.name} is {engine.state.value}{cause}"
