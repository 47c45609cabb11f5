"""What the watch over a run asks, and what it tells of its questions."""

from __future__ import annotations

import asyncio

import pytest

from app.supervisor.decide import Stalled
from app.supervisor.liveness import Counts, Limits, Reading
from app.supervisor.readiness import Answer, Probe
from app.supervisor.watch import LifeWatch

LIMITS = Limits.of(stall_seconds=120, idle_probe_seconds=60)
SERVES = Probe(Answer.SERVES, "", prompt_tokens=2)


async def serves() -> Probe:
    return SERVES


class Engine:
    """Answers a question when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Probe] = asyncio.get_running_loop().create_future()

    async def ask(self) -> Probe:
        self.asked.set()
        return await self.answer


def idle(at: float) -> Reading:
    return Reading(at, Counts(0, 0, 10))


async def asked_while_idle(watch: LifeWatch, engine: Engine) -> asyncio.Task[Stalled]:
    """The watch, after it has asked its first question."""
    watching = asyncio.create_task(watch.until_it_stalls())
    start = watch.life.alive_at
    watch.take(idle(start + 1))
    await asyncio.sleep(0)
    watch.take(idle(start + 62))
    await asyncio.wait_for(engine.asked.wait(), 5)
    return watching


@pytest.mark.parametrize(("answer", "left"), [(SERVES, 0), (Probe(Answer.HEALTHY, "answered 500"), -2)])
async def test_own_tokens_are_told_before_the_engine_counts_them(answer: Probe, left: int) -> None:
    """From the second question on its size is known; what was told too much is taken back."""
    engine = Engine()
    watch = LifeWatch(LIMITS, engine.ask)
    await watch.ask(serves)
    assert watch.take_asked_tokens() == 2
    watching = await asked_while_idle(watch, engine)
    assert watch.take_asked_tokens() == 2
    engine.answer.set_result(answer)
    await asyncio.sleep(0.01)
    assert watch.take_asked_tokens() == left
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_question_that_is_called_off_is_taken_back() -> None:
    """An engine that leaves the watch while it is asked, for a drain, has not been asked."""
    engine = Engine()
    watch = LifeWatch(LIMITS, engine.ask)
    await watch.ask(serves)
    watching = await asked_while_idle(watch, engine)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert watch.take_asked_tokens() == 2, "of the first answer alone"


async def test_one_question_at_a_time_and_the_stall_is_told_while_it_is_open() -> None:
    engine = Engine()
    watch = LifeWatch(LIMITS, engine.ask)
    watching = await asked_while_idle(watch, engine)
    start = watch.life.alive_at
    engine.asked.clear()
    for seconds in (70, 100, 110):
        watch.take(idle(start + seconds))
        await asyncio.sleep(0)
    assert not engine.asked.is_set() and not watching.done()
    watch.take(idle(start + 125))
    stalled = await asyncio.wait_for(watching, 5)
    assert stalled.fault.code == "no_token" and "nothing came within" in stalled.fault.sentence
