"""Main agents that grow for hours and rest between bursts, among sub-sessions that come and go."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.trace import Trace
from benchmarks.workloads.world import HOUR, MINUTE, Session, World


@dataclass(frozen=True)
class Main:
    """How a main agent works."""

    first_tokens: tuple[int, int] = (50_000, 120_000)
    burst: tuple[int, int] = (8, 18)
    step_tokens: float = 2_500
    step_sigma: float = 0.8
    most_tokens: int = 280_000
    ends: float = 0.25


@dataclass(frozen=True)
class Subs:
    """How sub-sessions come, grow and end."""

    per_half_hour: float
    first_tokens: float
    first_sigma: float
    step_tokens: float
    pause: float
    pause_sigma: float
    ends: float
    most_tokens: int
    rests: float = 0.0  # share of pauses that are long
    returns: float = 0.0  # share of sub-sessions that are asked once more much later


def agent(seed: int) -> Trace:
    """One main agent and a crowd of small sub-sessions."""
    world, until = World(seed), 16 * HOUR
    _mains(world, 60.0, until, Main())
    _subs(world, until, Subs(100, 1_800, 0.9, 800, 15, 0.6, 0.22, 70_000, returns=0.12))
    return world.trace("agent", until)


def agent_field(seed: int) -> Trace:
    """One main agent and fewer, longer sub-sessions."""
    world, until = World(seed), 27 * HOUR
    _mains(world, 60.0, until, Main(burst=(5, 16)))
    _subs(world, until, Subs(14, 9_000, 1.0, 900, 20, 0.8, 0.08, 120_000, rests=0.04))
    return world.trace("agent_field", until)


def field_mix(seed: int) -> Trace:
    """Two main agents, some long side sessions and sub-sessions."""
    world, until = World(seed), 27 * HOUR
    for number in range(2):
        _mains(world, 60.0 + 900 * number, until, Main((60_000, 140_000), (5, 12), 3_500, 0.9, ends=0.3))
    kinds = _kinds(world)
    for _ in range(3):
        _side_sessions(world, kinds[0], until)
    _subs(world, until, Subs(9, 5_000, 1.0, 900, 20, 0.8, 0.1, 90_000, rests=0.04), kinds)
    return world.trace("field_mix", until)


def _kinds(world: World) -> list[Session]:
    """System prompts of three kinds of sub-session."""
    return [world.session().grow(world.rng.randint(5_000, 11_000)) for _ in range(3)]


def _mains(world: World, at: float, until: float, main: Main) -> None:
    """One after the other, each until it has become long and is given up."""
    while at < until:
        session, ended = world.session().grow(world.rng.randint(*main.first_tokens)), False
        while at < until and not ended:
            for _ in range(world.rng.randint(*main.burst)):
                session.ask(at, world.about(500, 0.7, 50, 4_000))
                session.grow(world.about(main.step_tokens, main.step_sigma, 200, 25_000))
                at += world.about(35, 0.6, 8, 300)
            ended = session.tokens > main.most_tokens and world.chance(main.ends)
            at += world.about(40 * MINUTE, 0.35, 30 * MINUTE, 2 * HOUR)


def _side_sessions(world: World, kind: Session, until: float) -> None:
    at = world.between(0, HOUR)
    while at < until:
        session, ended = world.session(kind).grow(world.about(40_000, 0.7, 5_000, 150_000)), False
        while at < until and session.tokens < 200_000 and not ended:
            for _ in range(world.rng.randint(1, 5)):
                session.ask(at, 500)
                session.grow(world.about(2_500, 0.9, 200, 25_000))
                at += world.about(40, 0.7, 5)
            at += world.about(700, 0.8, 120)
            ended = world.chance(0.06)


def _subs(world: World, until: float, subs: Subs, kinds: list[Session] | None = None) -> None:
    kinds = kinds or _kinds(world)
    at = 0.0
    while at < until:
        at += world.after(30 * MINUTE / subs.per_half_hour)
        kind = kinds[min(2, int(world.rng.expovariate(1.2)))]
        first_tokens = world.about(subs.first_tokens, subs.first_sigma, 300, 90_000)
        _sub(world, world.session(kind).grow(first_tokens), at, subs)


def _sub(world: World, session: Session, at: float, subs: Subs) -> None:
    session.ask(at, world.about(250, 0.7, 30, 3_000))
    while not world.chance(subs.ends) and session.tokens < subs.most_tokens:
        session.grow(world.about(subs.step_tokens, 0.9, 150, 12_000))
        rests = world.chance(subs.rests)
        at += world.about(900, 0.6, 200) if rests else world.about(subs.pause, subs.pause_sigma, 3, 240)
        session.ask(at, world.about(250, 0.7, 30, 3_000))
    if world.chance(subs.returns):
        session.grow(600).ask(at + world.about(25 * MINUTE, 0.5, 600), 300)
