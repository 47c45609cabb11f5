"""Engines that live and give no tokens: seen by their numbers and processes, kept from traffic, taken back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.proxy.inflight import InFlight
from app.scrape.loop import ScrapeLoop
from app.services.charts import Charts
from app.supervisor import liveness
from app.supervisor.processes import find_tree, names_of
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus, Transition
from tests.integration.supervisor_rig import READY, Engine, Rig, deck, is_alive, marker_of

STALLED = frozenset({EngineState.STALLED})
STALL_SECONDS = 2.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of SIGSTOP is enough here."""
    monkeypatch.setattr(liveness, "HALTED_SECONDS", 1.0)


@asynccontextmanager
async def watched(data_dir: Path, flags: dict[str, Any], **changes: Any) -> AsyncIterator[Rig]:
    """A deck that scrapes its ready engine, and finds a stall within seconds."""
    times = {"stall_seconds": STALL_SECONDS, "idle_probe_seconds": 1.0, "scrape_interval_seconds": 0.2}
    async with deck(data_dir, Engine(flags, wanted="running"), **{**times, **changes}) as rig:
        loop = ScrapeLoop(rig.config, rig.database, rig.events, rig.engines, watcher=rig.engines)
        scraping = asyncio.create_task(loop.run())
        await rig.until(READY)
        try:
            yield rig
        finally:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)


@asynccontextmanager
async def requests(status: EngineStatus, count: int, max_tokens: int = 1) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Clients that wait for an answer as long as it takes."""
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
        body = {"prompt": "hello", "max_tokens": max_tokens}
        asked = [asyncio.create_task(client.post(f"{status.base_url}/v1/completions", json=body)) for _ in range(count)]
        try:
            yield asked
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def last_move(rig: Rig) -> Transition:
    return (await rig.engines.transitions("one"))[0]


async def process_named(rig: Rig, name: str) -> int:
    """The pid of the one process of the engine that is called so."""
    found = names_of(find_tree(await marker_of(rig), None))
    (pid,) = (pid for pid, called in found.items() if called == name)
    return pid


async def test_requests_that_wait_while_none_runs(tmp_path: Path) -> None:
    """Health is fine, numbers come, three requests wait: out of rotation, and back with the first token."""
    stuck = tmp_path / "stuck"
    async with watched(tmp_path, {"fake-stuck": str(stuck)}) as rig:
        stuck.touch()
        async with requests(rig.engines.status("one"), 3) as asked:
            stalled = await rig.until(STALLED)
            assert stalled.error_code == "requests_stuck" and not stalled.serves
            assert "none of its 3 waiting requests runs for" in stalled.cause and "last token" in stalled.cause
            told = (await last_move(rig)).evidence
            assert (told["running"], told["waiting"]) == (0, 3)
            assert told["seconds_since_last_token"] >= STALL_SECONDS
            stuck.unlink()
            ready = await rig.until(READY)
            assert ready.pid == stalled.pid and ready.error_code is None and "gives tokens again" in ready.cause
            assert all(answer.is_success for answer in await asyncio.gather(*asked))


async def test_deadlock_behind_a_front_end_that_answers(tmp_path: Path) -> None:
    """Nobody asks for anything, models and health answer: a question for one token finds it out."""
    deaf = tmp_path / "deaf"
    async with watched(tmp_path, {"fake-deaf": str(deaf)}) as rig:
        began = time.time()
        deaf.touch()
        stalled = await rig.until(STALLED)
        assert stalled.since - began < STALL_SECONDS + 2
        assert stalled.error_code == "no_token" and "asked for one token, it gave none" in stalled.cause
        assert stalled.last_token_at is not None and stalled.last_token_at <= began + 0.5
        assert httpx.get(f"{stalled.base_url}/v1/models", trust_env=False).is_success
        deaf.unlink()
        assert (await rig.until(READY)).serves


async def test_stopped_engine_core(tmp_path: Path) -> None:
    """SIGSTOP of the core is told by pid and name, whether or not requests run; SIGCONT brings the engine back."""
    async with watched(tmp_path, {"fake-core": True, "fake-token-seconds": 0.2}) as rig:
        core = await process_named(rig, "VLLM::EngineCor")
        async with requests(rig.engines.status("one"), 1, max_tokens=600):
            os.kill(core, signal.SIGSTOP)
            began = time.time()
            stalled = await rig.until(STALLED)
            assert stalled.error_code == "halted" and stalled.since - began < 5
            assert f"pid {core}, VLLM::EngineCor is stopped (SIGSTOP)" in stalled.cause
        os.kill(core, signal.SIGCONT)
        assert (await rig.until(READY)).pid == stalled.pid


async def test_a_long_prefill_is_no_stall(tmp_path: Path) -> None:
    """One request runs for several times the limit and gives no token: it is left alone, and nobody asks beside it."""
    async with watched(tmp_path, {"fake-token-seconds": 8.0}) as rig:
        async with requests(rig.engines.status("one"), 1) as asked:
            assert (await asked[0]).is_success
        assert rig.engines.status("one").state is EngineState.READY
        moves = [move.new_state for move in await rig.engines.transitions("one")]
        assert EngineState.STALLED not in moves


async def test_what_the_deck_asks_for_is_no_traffic(tmp_path: Path) -> None:
    """An idle engine that is asked again and again has had no requests; last token is a moment ago."""
    async with watched(tmp_path, {}) as rig:
        first = rig.engines.status("one").last_token_at
        assert first is not None
        async with asyncio.timeout(20):
            while (rig.engines.status("one").last_token_at or 0) < first + 3:
                await asyncio.sleep(0.1)
        page = httpx.get(f"{rig.engines.status('one').base_url}/metrics", trust_env=False).text
        prompt = next(line for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total"))
        assert float(prompt.split()[-1]) >= 3, "the engine counts the questions"
        origin = await Charts(rig.database, rig.engines).token_origin(60, time.time())
        assert (origin.input_tokens, origin.reason) == (0, "no_requests_yet")


async def test_a_restart_of_a_stalled_engine_waits_for_nobody_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that will never be answered do not hold up what mends the engine."""
    monkeypatch.setattr("app.supervisor.work._HOPELESS_SECONDS", 0.5)
    async with watched(tmp_path, {"fake-core": True}, drain_timeout_seconds=300.0) as rig:
        door = InFlight()
        rig.engines.in_flight, rig.engines.idle = door.count, door.idle
        with door.enter("one"):
            os.kill(await process_named(rig, "VLLM::EngineCor"), signal.SIGSTOP)
            stalled = await rig.until(STALLED)
            await rig.engines.restart("one")
            ready = await rig.until(READY)
        assert ready.pid != stalled.pid
        causes = [move.cause for move in await rig.engines.transitions("one")]
        assert any("1 requests were still in flight when the wait ended" in cause for cause in causes)


async def test_restart_of_a_stalled_engine_when_asked_for(tmp_path: Path) -> None:
    """Off by default; with a time it is ended with all its processes, and comes up again."""
    flags = {"fake-core": True}
    async with watched(tmp_path, flags, restart_stalled_seconds=0.5) as rig:
        before = find_tree(await marker_of(rig), None)
        os.kill(await process_named(rig, "VLLM::EngineCor"), signal.SIGSTOP)
        stalled = await rig.until(STALLED)
        after = await rig.until(frozenset({EngineState.BACKOFF}))
        assert after.cause.startswith("Ended by the deck after ") and after.error_code == "halted"
        ready = await rig.until(READY)
        assert ready.pid != stalled.pid and ready.restarts == 1
        assert not any(is_alive(process.pid) for process in before)


HANDLER = "(APIServer pid=1) ERROR 11-30 01:00:00 [async_llm.py:1] "
DEAD = (
    f"{HANDLER}AsyncLLM output_handler failed.\n"
    f"{HANDLER}Traceback (most recent call last):\n"
    f'{HANDLER}  File "loggers.py", line 1, in record\n'
    f"{HANDLER}ValueError: Counters can only be incremented by non-negative amounts."
)


async def test_dead_output_handler(tmp_path: Path) -> None:
    """The pair of log lines counts at once, while HTTP answers; what was counted before does not bring it back."""
    async with watched(tmp_path, {"fake-say": DEAD, "fake-deaf": str(tmp_path / "deaf")}) as rig:
        (tmp_path / "deaf").touch()
        os.kill(rig.engines.status("one").pid or 0, signal.SIGUSR1)
        stalled = await rig.until(STALLED)
        assert stalled.error_code == "output_handler_dead" and not stalled.serves
        assert stalled.cause.startswith("Degraded: output handler dead")
        assert "Counters can only be incremented by non-negative amounts" in stalled.cause
        await rig.engines.restart("one")
        await rig.until(frozenset({EngineState.STARTING}))
