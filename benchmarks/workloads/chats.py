"""People who talk to a model, a few for long or many for a while."""

from __future__ import annotations

from benchmarks.trace import Trace
from benchmarks.workloads.world import HOUR, Session, World


def few_long(seed: int) -> Trace:
    """Some forty chats that become very long, with pauses of all lengths."""
    world, until = World(seed), 16 * HOUR
    system = world.session().grow(3_000)
    for _ in range(40):
        session, at = world.session(system), world.between(0, 10 * HOUR)
        most = world.about(160_000, 0.6, 40_000, 450_000)
        session.grow(world.about(15_000, 1.0, 1_000, 120_000))
        while at < until and session.tokens < most:
            session.ask(at, world.about(700, 0.6, 100, 4_000))
            at += world.about(90, 0.9, 8) if world.chance(0.85) else world.about(2_700, 0.8, 300)
            session.grow(world.about(1_500, 1.0, 50, 40_000))
    return world.trace("few_long")


def multiturn(seed: int) -> Trace:
    """Many chats of a dozen turns, of which some go on after a long pause."""
    world, until = World(seed), 10 * HOUR
    systems = [world.session().grow(tokens) for tokens in (2_000, 9_000)]
    begins = 0.0
    while begins < until:
        begins += world.after(75)
        session, at = world.session(world.rng.choice(systems)).grow(world.between(200, 6_000)), begins
        slow = world.chance(0.3)
        for _ in range(1 + int(world.about(9, 1.0, 0, 120))):
            session.ask(at, world.about(600, 0.6, 50, 4_000))
            session.grow(world.between(200, 4_000))
            at += world.about(900, 0.8, 60) if slow and world.chance(0.5) else world.about(45, 0.8, 5)
    return world.trace("multiturn", until)


def mixed(seed: int) -> Trace:
    """Long chats, short chats, single questions and agents with tools, all at once."""
    world, until = World(seed), 12 * HOUR
    chat, tool, agent = (world.session().grow(tokens) for tokens in (1_600, 6_500, 14_000))
    for _ in range(14):
        _long_chat(world, chat, until)
    for _ in range(420):
        _short_chat(world, chat, until)
    for _ in range(1_500):
        world.session().grow(world.about(5_000, 1.0, 800, 60_000)).ask(world.between(0, until), 200)
    for _ in range(3):
        _tool_agent(world, agent, tool, until)
    return world.trace("mixed", until)


def _long_chat(world: World, system: Session, until: float) -> None:
    session, at = world.session(system).grow(world.about(20_000, 0.8, 2_000, 100_000)), world.between(0, 0.7 * until)
    while at < until and session.tokens < 220_000:
        session.ask(at, world.about(800, 0.5))
        session.grow(world.about(1_500, 0.9, 100, 20_000))
        at += world.about(100, 0.8, 10) if world.chance(0.82) else world.about(3_000, 0.6)


def _short_chat(world: World, system: Session, until: float) -> None:
    session, at = world.session(system).grow(world.about(600, 1.0, 50, 8_000)), world.between(0, until)
    for _ in range(1 + int(world.after(1 / 0.3))):
        session.ask(at, world.about(500, 0.5))
        session.grow(world.about(300, 0.8, 20, 4_000))
        at += world.about(60, 1.0, 5)


def _tool_agent(world: World, system: Session, tool: Session, until: float) -> None:
    at = world.between(0, 1_800)
    while at < until:
        session = world.session(system).grow(world.about(8_000, 0.6))
        for _ in range(world.rng.randint(2, 7)):
            for _ in range(world.rng.randint(3, 20)):
                session.ask(at, world.about(400, 0.6))
                session.grow(world.about(1_800, 0.9, 200, 12_000))
                at += world.about(15, 0.6, 3)
                if world.chance(0.25):
                    _tool(world, tool, at)
            at += world.about(1_500, 0.7, 200)


def _tool(world: World, system: Session, at: float) -> None:
    session = world.session(system).grow(world.about(3_000, 0.7))
    for _ in range(world.rng.randint(1, 8)):
        session.ask(at, 300)
        session.grow(world.about(1_200, 0.8, 200, 8_000))
        at += world.about(12, 0.5)
