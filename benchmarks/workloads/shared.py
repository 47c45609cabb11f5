"""Prefixes that many share: system prompts of tenants, documents, a night's batch."""

from __future__ import annotations

from benchmarks.trace import Trace
from benchmarks.workloads.world import DAY, HOUR, Session, World


def shared_sys(seed: int) -> Trace:
    """Forty tenants with long prompts of their own, a few popular, most active now and then."""
    world, until = World(seed), 10 * HOUR
    tenants = [world.session().grow(world.about(14_000, 0.8, 4_000, 60_000)) for _ in range(40)]
    weights = [(rank + 1) ** -0.9 for rank in range(40)]
    active = [[_window(world, until) for _ in range(5)] for _ in tenants]
    begins = 0.0
    while begins < until:
        begins += world.after(9)
        here = [rank for rank in range(40) if rank < 4 or any(a <= begins < b for a, b in active[rank])]
        rank = world.rng.choices(here, [weights[rank] for rank in here])[0]
        session, at = world.session(tenants[rank]).grow(world.about(1_500, 0.9, 100, 20_000)), begins
        for _ in range(1 + int(world.after(1 / 0.9))):
            session.ask(at, world.about(400, 0.6))
            session.grow(world.about(700, 0.8, 50, 6_000))
            at += world.about(40, 0.8, 5) if world.chance(0.9) else world.about(2_000, 0.5)
    return world.trace("shared_sys", until)


def _window(world: World, until: float) -> tuple[float, float]:
    begins = world.between(0, until)
    return begins, begins + world.about(2_400, 0.6)


def bursty(seed: int) -> Trace:
    """Sessions of people at work who come back after lunch and next morning; at night a batch of documents."""
    world = World(seed)
    office, batch = world.session().grow(7_000), world.session().grow(2_500)
    for _ in range(16):
        _person(world, office)
    for _ in range(16 * 110):
        _question(world, office)
    for day in range(2):
        for _ in range(900):
            _document(world, batch, day * DAY + 20 * HOUR + world.between(0, 8 * HOUR))
    return world.trace("bursty")


def _person(world: World, system: Session) -> None:
    session = world.session(system).grow(world.about(20_000, 0.7, 3_000, 90_000))
    for day in range(2):
        at, evening = day * DAY + 9 * HOUR + world.between(0, 2 * HOUR), day * DAY + 18 * HOUR
        while at < evening and session.tokens < 260_000:
            for _ in range(world.rng.randint(2, 12)):
                session.ask(at, world.about(500, 0.6))
                session.grow(world.about(1_400, 0.8, 200, 15_000))
                at += world.about(45, 0.7, 5)
            at += world.about(2_700, 0.9, 300)
            if world.chance(0.12):
                session = world.session(system).grow(world.about(12_000, 0.8, 2_000, 90_000))


def _question(world: World, system: Session) -> None:
    at = world.rng.choice((0, 1)) * DAY + 9 * HOUR + world.between(0, 9 * HOUR)
    session = world.session(system).grow(world.about(1_500, 0.9, 100, 20_000))
    for _ in range(1 + int(world.after(1 / 0.8))):
        session.ask(at, 300)
        session.grow(world.about(500, 0.7))
        at += world.about(30, 0.8)


def _document(world: World, system: Session, at: float) -> None:
    session = world.session(system).grow(world.about(9_000, 0.8, 1_000, 80_000))
    session.ask(at, 600)
    if world.chance(0.3):
        session.grow(300).ask(at + 40, 200)


def rag(seed: int) -> Trace:
    """Questions about documents that are popular for a while, and single questions."""
    world, until = World(seed), 12 * HOUR
    system = world.session().grow(1_800)
    for _ in range(110):
        _popular_document(world, system, until)
    for _ in range(1_200):
        world.session(system).grow(world.about(4_000, 0.9, 500, 40_000)).ask(world.between(0, until), 300)
    return world.trace("rag", until)


def _popular_document(world: World, system: Session, until: float) -> None:
    document = world.session(system).grow(world.about(55_000, 0.8, 8_000, 300_000))
    born, questions = world.between(-HOUR, 0.9 * until), 1 + int(world.about(6, 1.1, 0, 150))
    pause = world.about(2_400, 1.0, 200)
    for _ in range(questions):
        at = born + world.after(pause) * (4 if world.chance(0.2) else 1)
        if not 0 <= at < until:
            continue
        session = world.session(document).grow(world.about(250, 0.7, 20, 2_000))
        session.ask(at, 500)
        while world.chance(0.35):
            session.grow(world.about(200, 0.6))
            at += world.about(60, 0.8)
            session.ask(at, 500)
