"""Workloads that the policy was not tuned on: other mixtures of the same kinds of use."""

from __future__ import annotations

from benchmarks.trace import Trace
from benchmarks.workloads.world import DAY, HOUR, MINUTE, Session, World


def team(seed: int) -> Trace:
    """A team of five with an agent each, that work in turns, over a crowd of helpers of the agents."""
    world, until = World(seed), 20 * HOUR
    house = world.session().grow(4_000)
    helpers = [world.session(house).grow(world.between(3_000, 12_000)) for _ in range(4)]
    for _ in range(5):
        at, session = world.between(0, 2 * HOUR), world.session(house).grow(world.about(40_000, 0.5))
        while at < until:
            for _ in range(world.rng.randint(4, 14)):
                session.ask(at, world.about(450, 0.6, 40))
                session.grow(world.about(2_000, 0.9, 100, 20_000))
                at += world.about(30, 0.7, 5)
                if world.chance(0.5):
                    _errand(world, world.rng.choice(helpers), at)
            at += world.about(45 * MINUTE, 0.5, 8 * MINUTE)
            if session.tokens > world.between(150_000, 320_000):
                session = world.session(house).grow(world.about(40_000, 0.5))
    return world.trace("team", until)


def _errand(world: World, helper: Session, at: float) -> None:
    session = world.session(helper).grow(world.about(4_000, 0.9, 300, 50_000))
    for _ in range(1 + int(world.after(4))):
        session.ask(at, world.about(300, 0.6, 20))
        session.grow(world.about(1_000, 0.9, 100, 10_000))
        at += world.about(14, 0.6, 2)


def support(seed: int) -> Trace:
    """Tickets under twelve products: some closed at once, some answered again after an hour or next day."""
    world, until = World(seed), 30 * HOUR
    products = [world.session().grow(world.about(9_000, 0.6, 2_000)) for _ in range(12)]
    begins = 0.0
    while begins < until:
        begins += world.after(2 * MINUTE)
        rank = min(11, int(world.after(3)))
        session, at = world.session(products[rank]).grow(world.about(6_000, 1.0, 400, 80_000)), begins
        while True:
            for _ in range(1 + int(world.after(1.2))):
                session.ask(at, world.about(400, 0.5))
                session.grow(world.about(900, 0.8, 60, 9_000))
                at += world.about(70, 0.8, 6)
            if not world.chance(0.3):
                break
            at += world.about(1.2 * HOUR, 0.9, 6 * MINUTE)
    return world.trace("support", until)


def coding(seed: int) -> Trace:
    """Repositories as long shared prefixes; tasks on each fork from it, grow fast and are resumed in the hour."""
    world, until = World(seed), 14 * HOUR
    for _ in range(9):
        repository = world.session().grow(world.about(45_000, 0.6, 10_000, 160_000))
        at = world.between(0, 5 * HOUR)
        while at < until:
            _task(world, repository, at)
            at += world.about(30 * MINUTE, 0.9, MINUTE)
    for _ in range(900):
        world.session().grow(world.about(3_000, 1.0, 200, 50_000)).ask(world.between(0, until), 300)
    return world.trace("coding", until)


def _task(world: World, repository: Session, at: float) -> None:
    session = world.session(repository).grow(world.about(2_500, 0.8, 200))
    for _ in range(1 + int(world.after(1.5))):
        for _ in range(world.rng.randint(2, 15)):
            session.ask(at, world.about(600, 0.6))
            session.grow(world.about(1_600, 0.9, 100, 16_000))
            at += world.about(25, 0.7, 4)
        at += world.about(22 * MINUTE, 0.8, 4 * MINUTE)


def classes(seed: int) -> Trace:
    """Lessons: a class of people with the same long material within an hour, and back to it later."""
    world = World(seed)
    for lesson in range(14):
        material = world.session().grow(world.about(30_000, 0.6, 6_000, 120_000))
        begins = lesson * HOUR + world.between(0, 30 * MINUTE)
        for _ in range(world.rng.randint(8, 26)):
            session, at = world.session(material), begins + world.after(12 * MINUTE)
            for _ in range(world.rng.randint(1, 3)):
                for _ in range(1 + int(world.after(5))):
                    session.grow(world.about(700, 0.9, 30, 12_000)).ask(at, world.about(500, 0.5))
                    at += world.about(80, 0.8, 8)
                at += world.about(1.5 * HOUR, 0.7, 10 * MINUTE)
    for _ in range(1_800):
        world.session().grow(world.about(6_000, 0.9, 500, 60_000)).ask(world.between(0, 15 * HOUR), 250)
    return world.trace("classes")


def writers(seed: int) -> Trace:
    """Some twenty authors with long drafts; now and then a draft parts from its former self half way."""
    world, until = World(seed), 16 * HOUR
    for _ in range(20):
        session, at = world.session().grow(world.about(35_000, 0.8, 4_000, 180_000)), world.between(0, 8 * HOUR)
        while at < until and session.tokens < 300_000:
            for _ in range(world.rng.randint(2, 9)):
                session.ask(at, world.about(900, 0.6))
                session.grow(world.about(1_200, 0.9, 50, 15_000))
                at += world.about(110, 0.8, 10)
            if world.chance(0.1):
                session = world.session(session, int(session.tokens * world.between(0.4, 0.98)))
            at += world.about(30 * MINUTE, 1.0, 2 * MINUTE)
    for _ in range(1_200):
        world.session().grow(world.about(4_000, 1.0, 300, 60_000)).ask(world.between(0, until), 300)
    return world.trace("writers", until)


def around_the_clock(seed: int) -> Trace:
    """Two continents by turns, with chats that rest for the other's day, and reports in between."""
    world = World(seed)
    report = world.session().grow(3_500)
    for continent in range(2):
        system = world.session().grow(5_000 + 3_000 * continent)
        for _ in range(14):
            session = world.session(system).grow(world.about(15_000, 0.7, 1_000, 90_000))
            for day in range(2):
                at = day * DAY + continent * 12 * HOUR + world.between(0, 3 * HOUR)
                for _ in range(world.rng.randint(2, 7)):
                    for _ in range(world.rng.randint(2, 10)):
                        session.ask(at, world.about(500, 0.6))
                        session.grow(world.about(1_500, 0.9, 80, 15_000))
                        at += world.about(60, 0.8, 6)
                    at += world.about(50 * MINUTE, 0.7, 6 * MINUTE)
    for _ in range(1_500):
        session = world.session(report).grow(world.about(8_000, 0.9, 600, 90_000))
        session.ask(world.between(0, 2 * DAY), 700)
    return world.trace("around_the_clock")
