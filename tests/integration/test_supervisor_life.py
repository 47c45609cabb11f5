"""An engine's life under supervision, with a real process that behaves and misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from app.errors import Conflict, NotFound
from app.proxy.inflight import InFlight
from app.supervisor.loglines import LogLine
from app.supervisor.states import EngineState
from tests.integration.supervisor_rig import (
    READY,
    SETTLED,
    STOPPED,
    Engine,
    add_version,
    deck,
    is_alive,
    port_is_open,
    processes_of,
)


async def test_start_ready_stop_leaves_nothing(tmp_path: Path) -> None:
    """Ready means that it gives tokens; stopped means no process, no port, no shared-memory file."""
    async with deck(tmp_path, Engine({"fake-shared-memory": 65536})) as rig:
        assert (await rig.engines.start("one")).state is EngineState.STARTING
        ready = await rig.until(READY)
        assert ready.serves and ready.pid and ready.running_version == 1 and "first token" in ready.cause
        answer = httpx.post(f"{ready.base_url}/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert answer.json()["choices"][0]["text"] == "x"
        shared = Path(f"/dev/shm/psm_fake{ready.pid:x}")
        assert shared.exists()
        await rig.engines.stop("one")
        stopped = await rig.until(STOPPED)
        assert stopped.pid is None and stopped.leftover_processes == 0
        assert not Path(f"/proc/{ready.pid}").exists(), "not even a zombie"
        assert not port_is_open(ready.port)
        assert not shared.exists(), "what the ended engine had mapped is given back"
        moves = [(t.old_state, t.new_state) for t in await rig.engines.transitions("one")]
        assert moves[::-1] == [
            ("stopped", "starting"),
            ("starting", "ready"),
            ("ready", "draining"),
            ("draining", "stopping"),
            ("stopping", "stopped"),
        ]


async def test_shared_memory_of_others_stays(tmp_path: Path) -> None:
    """A file that the engine never mapped is somebody else's, whatever its name."""
    foreign = Path("/dev/shm/psm_tierdeck_test_foreign")
    foreign.write_bytes(b"x" * 4096)
    try:
        async with deck(tmp_path, Engine({"fake-shared-memory": 4096}, wanted="running")) as rig:
            await rig.until(READY)
        assert foreign.exists()
    finally:
        foreign.unlink()


async def test_killed_parent_with_a_hidden_child(tmp_path: Path) -> None:
    """A child that took another name, session and parent is found by its marker and ended before the restart."""
    flags = {"fake-orphan": True, "fake-shared-memory": 4096}
    async with deck(tmp_path, Engine(flags, wanted="running")) as rig:
        first = await rig.until(READY)
        old = await processes_of(rig)
        assert len(old) == 2, "the server and its hidden child"
        os.kill(first.pid, signal.SIGKILL)
        backoff = await rig.until(frozenset({EngineState.BACKOFF}))
        assert "killed by signal 9" in backoff.cause and backoff.pid is None and backoff.next_try_at is not None
        second = await rig.until(READY)
        assert second.pid != first.pid and second.restarts == 1
        alive = await processes_of(rig)
        assert not set(old) & set(alive) and len(alive) == 2
        assert not Path(f"/dev/shm/psm_fake{first.pid:x}").exists()


async def test_sigterm_ignored(tmp_path: Path) -> None:
    """Whoever ignores SIGTERM is killed after the grace."""
    async with deck(tmp_path, Engine({"fake-ignore-sigterm": True}, wanted="running")) as rig:
        ready = await rig.until(READY)
        await rig.engines.stop("one", now=True)
        assert rig.engines.status("one").state is EngineState.STOPPING
        await rig.until(STOPPED)
        assert not Path(f"/proc/{ready.pid}").exists()
        assert any("SIGTERM ignored" in line.text for line in rig.engines.log_tail("one"))


async def test_stopped_process_is_ended_too(tmp_path: Path) -> None:
    """A process under SIGSTOP cannot answer SIGTERM; it is ended all the same."""
    async with deck(tmp_path, Engine({}, wanted="running"), stop_grace_seconds=0.3) as rig:
        ready = await rig.until(READY)
        os.kill(ready.pid, signal.SIGSTOP)
        await rig.engines.stop("one")
        await rig.until(STOPPED)
        assert not Path(f"/proc/{ready.pid}").exists()


async def test_neighbours_are_never_signalled(tmp_path: Path) -> None:
    """A process that the deck did not start survives, though it is the same program."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        async with deck(tmp_path, Engine({"fake-orphan": True}, wanted="running")) as rig:
            await rig.until(READY)
            await rig.engines.stop("one", now=True)
            await rig.until(STOPPED)
        assert stranger.returncode is None and Path(f"/proc/{stranger.pid}").exists()
    finally:
        stranger.kill()
        await stranger.wait()


FATAL = [
    (
        "ValueError: To serve at least one request with the model's max seq len (262144), (4.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.06 GiB). Based on the available memory, the "
        "estimated maximum model length is 4096. Try increasing",
        "kv_memory",
        "4.00 GiB",
    ),
    (
        "api_server.py: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig\n"
        "  Invalid JSON: key must be a string at line 1 column 2 [type=json_invalid, input_value='{k', input_type=str]",
        "config_rejected",
        "key must be a string at line 1 column 2",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0", "out_of_memory", "20.00 GiB"),
]


@pytest.mark.parametrize(("line", "code", "part"), FATAL)
async def test_dies_while_loading_with_a_known_reason(tmp_path: Path, line: str, code: str, part: str) -> None:
    """A failure that would come again is told in one sentence with its numbers, and not tried again."""
    async with deck(tmp_path, Engine({"fake-die-with": line}, wanted="running")) as rig:
        failed = await rig.until(SETTLED)
        assert failed.state is EngineState.FAILED and failed.error_code == code
        assert part in failed.cause and failed.cause.count("\n") == 0
        assert failed.restarts == 0 and failed.pid is None
        assert not port_is_open(failed.port)


async def test_unknown_failure_ends_after_three_equal_tries(tmp_path: Path) -> None:
    """The same unexplained end three times in a row is enough; the last words of the engine are shown."""
    async with deck(tmp_path, Engine({"fake-die-with": "RuntimeError: the moon is full"}, wanted="running")) as rig:
        failed = await rig.until(SETTLED)
        assert failed.state is EngineState.FAILED and failed.error_code == "crashed"
        assert "the moon is full" in failed.cause and "3 equal failures" in failed.cause
        assert failed.restarts == 2


async def test_crash_backoff_ready(tmp_path: Path) -> None:
    """An end that nobody asked for leads to another try after a wait, exit code 0 or not."""
    flags = {"fake-die-once": str(tmp_path / "died"), "fake-exit-code": 0}
    async with deck(tmp_path, Engine(flags, wanted="running")) as rig:
        ready = await rig.until(READY)
        assert ready.restarts == 1 and ready.error_code is None
        causes = [t.cause for t in await rig.engines.transitions("one") if t.new_state is EngineState.BACKOFF]
        assert causes == ["The engine exited with code 0 while starting."]


async def test_crash_while_serving(tmp_path: Path) -> None:
    """A crash is seen at once, not at the next look."""
    async with deck(tmp_path, Engine({"fake-exit-after": 0.5}, wanted="running"), restart_wait_seconds=30) as rig:
        await rig.until(READY)
        after = await rig.until(frozenset({EngineState.BACKOFF}))
        assert after.cause == "The engine exited with code 1 while it served."
        assert after.next_try_at is not None and 25 < after.next_try_at - after.since <= 30
        await rig.engines.stop("one")
        assert (await rig.until(STOPPED)).next_try_at is None


async def test_port_in_use(tmp_path: Path) -> None:
    """The sentence names the port and who has it; nothing is launched."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with deck(tmp_path, Engine({}, port=port, wanted="running")) as rig:
            failed = await rig.until(SETTLED)
            assert failed.error_code == "port_in_use" and failed.state is EngineState.FAILED
            assert failed.cause.startswith(f"Port {port} is in use by another program (pid {os.getpid()}, ")
            assert rig.engines.log_tail("one") == []
        assert other.fileno() >= 0


async def test_unknown_model_path(tmp_path: Path) -> None:
    """A path that is not there is told before anything is launched."""
    async with deck(tmp_path, Engine({}, model="/no/such/model", wanted="running")) as rig:
        failed = await rig.until(SETTLED)
        assert (failed.state, failed.error_code) == (EngineState.FAILED, "model_not_found")
        assert "/no/such/model" in failed.cause


async def test_missing_interpreter(tmp_path: Path) -> None:
    """So is an interpreter that is not there."""
    async with deck(tmp_path, Engine({}, interpreter="/no/python", wanted="running")) as rig:
        failed = await rig.until(SETTLED)
        assert failed.error_code == "interpreter_not_found" and "/no/python" in failed.cause


async def test_flag_that_belongs_to_the_deck(tmp_path: Path) -> None:
    """A profile cannot move the engine to a port where nobody supervises it."""
    async with deck(tmp_path, Engine({"port": 1}, wanted="running")) as rig:
        failed = await rig.until(SETTLED)
        assert failed.error_code == "config_rejected" and "port" in failed.cause


async def test_health_alone_is_not_ready(tmp_path: Path) -> None:
    """`/health` 200 with completions that hang never becomes ready; the start times out and says why."""
    flags = {"fake-hang-completions": True}
    async with deck(
        tmp_path, Engine(flags, wanted="running"), start_timeout_seconds=0.6, restart_wait_seconds=30
    ) as rig:
        after = await rig.until(frozenset({EngineState.BACKOFF, EngineState.READY}))
        assert after.state is EngineState.BACKOFF and after.error_code == "start_timeout"
        assert "no token came" in after.cause and "the deck ended it" in after.cause


async def test_progress_extends_the_start(tmp_path: Path) -> None:
    """A start that shows progress is not ended, however long it takes; its phase can be seen."""
    flags = {"fake-progress-seconds": 2.5}
    async with deck(tmp_path, Engine(flags, wanted="running"), start_timeout_seconds=1.0) as rig:
        seen = set()
        while (status := rig.engines.status("one")).state is not EngineState.READY:
            seen.add((status.phase, status.progress))
            await asyncio.wait_for(rig.engines.changed(), 10)
            assert status.state is EngineState.STARTING, status.cause
        assert len({progress for phase, progress in seen if phase == "Loading the weights"}) > 3
        assert rig.engines.status("one").phase is None


@pytest.mark.parametrize("own", ["20", "0"])
async def test_a_profile_of_slow_starts_has_its_own_limit(tmp_path: Path, own: str) -> None:
    """Silent for longer than the deck's limit, and not ended: its profile says so."""
    engine = Engine({"fake-start-seconds": 2.5}, environment={"TIERDECK_START_TIMEOUT_SECONDS": own}, wanted="running")
    async with deck(tmp_path, engine, start_timeout_seconds=0.8) as rig:
        assert (await rig.until(SETTLED)).restarts == 0
        assert rig.engines.status("one").state is EngineState.READY


async def test_a_limit_that_is_no_number_is_told(tmp_path: Path) -> None:
    """Before anything is launched."""
    engine = Engine({}, environment={"TIERDECK_START_TIMEOUT_SECONDS": "half an hour"}, wanted="running")
    async with deck(tmp_path, engine) as rig:
        failed = await rig.until(SETTLED)
        assert failed.error_code == "config_rejected" and "TIERDECK_START_TIMEOUT_SECONDS" in failed.cause


async def test_drain_waits_for_requests_in_flight(tmp_path: Path) -> None:
    """A stop lets requests end first; no new ones are sent meanwhile."""
    async with deck(tmp_path, Engine({}, wanted="running")) as rig:
        door = InFlight()
        rig.engines.in_flight, rig.engines.idle = door.count, door.idle
        ready = await rig.until(READY)
        with door.enter("one"):
            draining = await rig.engines.stop("one")
            assert draining.state is EngineState.DRAINING and not draining.serves
            assert Path(f"/proc/{ready.pid}").exists()
        await rig.until(STOPPED)


async def test_drain_and_start_again(tmp_path: Path) -> None:
    """A drained engine keeps its process, and serves again with a start."""
    async with deck(tmp_path, Engine({})) as rig:
        with pytest.raises(Conflict):
            await rig.engines.drain("one")
        await rig.engines.start("one")
        ready = await rig.until(READY)
        await rig.engines.drain("one")
        again = await rig.engines.start("one")
        assert again.state is EngineState.READY and again.pid == ready.pid


async def test_restart_takes_the_new_version(tmp_path: Path) -> None:
    """A version is applied by a restart, and whoever waits for the outcome never sees the gap as an outcome."""
    async with deck(tmp_path, Engine({}, wanted="running")) as rig:
        first = await rig.until(READY)
        await rig.engines.apply_version("one", await add_version(rig.database, {"fake-say": "hello from two"}))
        between = rig.engines.status("one")
        assert (between.wanted_version, between.running_version) == (2, 1)
        assert (await rig.engines.restart("one")).state in {EngineState.DRAINING, EngineState.STOPPING}
        second = await rig.until(SETTLED | STOPPED | {EngineState.BACKOFF})
        assert second.state is EngineState.READY and second.running_version == 2 and second.pid != first.pid
        with pytest.raises(NotFound):
            await rig.engines.apply_version("one", 99)


async def test_stop_during_start(tmp_path: Path) -> None:
    """A start can be called off at any moment."""
    async with deck(tmp_path, Engine({"fake-start-seconds": 60})) as rig:
        for _ in range(3):
            await rig.engines.start("one")
            await rig.engines.stop("one")
            await rig.until(STOPPED)
            assert not port_is_open(rig.port)
        assert await processes_of(rig) == []


async def test_arguments_arrive_as_written(tmp_path: Path) -> None:
    """No shell touches the command line: what was stored is what the engine reads."""
    extra = {"a": 'it\'s "$HOME" `id` \n 主机 \\', "n": 10737418240}
    config = {"kv_connector": "X", "kv_connector_extra_config": extra}
    dump = tmp_path / "dump.json"
    flags = {"fake-dump": str(dump), "override": {"a b": "c d"}, "many": [1, "two words"], "dash": "-1"}
    async with deck(tmp_path, Engine(flags, kv_transfer_config=config, wanted="running")) as rig:
        await rig.until(READY)
    dumped = json.loads(dump.read_text())
    argv, environment = dumped["argv"], dumped["environment"]
    assert json.loads(argv[argv.index("--kv-transfer-config") + 1]) == config
    assert json.loads(argv[argv.index("--override") + 1]) == {"a b": "c d"}
    assert argv[argv.index("--many") + 1 :][:2] == ["1", "two words"] and "--dash=-1" in argv
    assert environment["SPT_NOENV"] == "1" and "TIERDECK_ADMIN_TOKEN" not in environment


async def test_secrets_of_the_deck_stay_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine does not see the deck's own settings, its token least of all."""
    monkeypatch.setenv("TIERDECK_ADMIN_TOKEN", "sesame-73")
    dump = tmp_path / "dump.json"
    async with deck(tmp_path, Engine({"fake-dump": str(dump)}, wanted="running")) as rig:
        await rig.until(READY)
    assert "sesame-73" not in dump.read_text()


async def test_flood_never_blocks_and_log_is_followed(tmp_path: Path) -> None:
    """An engine that floods its output becomes ready all the same; a follower is told what it missed."""
    async with deck(tmp_path, Engine({"fake-flood-lines": 100_000}, wanted="running")) as rig:
        await rig.until(READY)
        assert (tmp_path / "logs" / "one.log").stat().st_mode & 0o777 == 0o600
        lines: list[LogLine] = []
        skipped = 0
        async for batch in rig.engines.follow_log("one", 0):
            lines += batch.lines
            skipped += batch.skipped
            assert len(batch.lines) <= 100
            if any("startup complete" in line.text for line in batch.lines):
                break
        assert skipped > 90_000
        tail = rig.engines.log_tail("one", lines=5, search="FLOOD 9999")
        assert [line.text.split()[1] for line in tail] == ["99995", "99996", "99997", "99998", "99999"]
        assert rig.engines.log_tail("one", level="warning") == []


async def test_deck_ends_with_its_engines(tmp_path: Path) -> None:
    """In the foreground the engines end with the deck, and are wanted again the next time."""
    async with deck(tmp_path, Engine({"fake-orphan": True}, wanted="running")) as rig:
        await rig.until(READY)
        pids = await processes_of(rig)
    assert len(pids) == 2 and not any(is_alive(pid) for pid in pids)
