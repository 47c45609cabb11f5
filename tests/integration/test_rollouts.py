"""Applying a profile version: each engine restarts with it and is tested, or all go back and it is said why."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import Conflict, InvalidInput, NotFound
from app.services.rollouts import RolloutView
from app.store.models import ProfileVersionRow
from app.supervisor.states import EngineState
from app.web.blocks import Shell
from app.web.i18n import Language
from app.web.rollout_page import rollouts_page
from tests.integration.rollout_rig import TIER, rolling

FATAL = {
    "fake-die-with": "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can "
    "be stored in KV cache (1024). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
}
LANGUAGE = Language("en", "English", "en")
PAGE = Shell("Rollouts", "en", (), "auto", (), "{}", "/rollouts", 0.0)
STEPS = ["check", "drain", "stop", "memory", "start", "ready", "canary", "release"]


def cells(view: RolloutView, engine: str) -> dict[str, str]:
    [turn] = [turn for turn in view.engines if turn.engine == engine]
    return {cell.step: cell.state for cell in turn.forward}


async def test_the_engine_serves_the_new_version(tmp_path: Path) -> None:
    """A rollout ends as done only when the engine takes requests with the version that was asked for."""
    async with rolling(tmp_path) as deck:
        before = deck.rig.engines.status("one").pid
        ended = await deck.apply()
        now = deck.rig.engines.status("one")
        assert (ended.state, ended.strategy, ended.previous_version) == ("done", "in_place", "demo v1"), ended
        assert (now.state, now.running_version, now.wanted_version) == (EngineState.READY, 2, 2)
        assert now.serves
        assert now.pid != before
        assert cells(ended, "one") == dict.fromkeys(STEPS, "done")
        newest, first = await deck.profiles.history("demo")
        assert (newest.version, newest.engine, newest.ended_at) == (2, "one", None)
        assert first.version == 1
        assert first.ended_at is not None
        assert first.ended_at <= newest.started_at


async def test_every_step_says_what_came_of_it(tmp_path: Path) -> None:
    """Each cell has a sentence, and the log has them in their order."""
    async with rolling(tmp_path, config=TIER) as deck:
        ended = await deck.apply()
        [turn] = ended.engines
        assert all(cell.detail for cell in turn.forward)
        canary = next(cell for cell in turn.forward if cell.step == "canary")
        assert "came back from host memory" in canary.detail
        log = [line.text for line in await deck.rollouts.log(ended.id)]
        assert "ann takes fleet to demo v2." in log[0]
        assert [line.split()[0] for line in log[1:-1:2]] == STEPS
        assert "done" in log[-1]


async def test_memory_is_told_with_the_flags_of_the_fleet(tmp_path: Path) -> None:
    """The host tier that is asked for may be written at the fleet, as the preview counts it."""
    async with rolling(tmp_path, **{"fake-say": "two"}) as deck:
        await deck.rig.fleets.update("fleet", {"base_flags": {"kv-offloading-size": 1}})
        asked = (await deck.previews.preview("fleet", "demo", 2)).memory.asked_bytes
        [turn] = (await deck.apply()).engines
        memory = next(cell for cell in turn.forward if cell.step == "memory")
    assert asked == 1 << 30
    assert "the host tier asks for 1 GiB" in memory.detail


async def test_rolling_never_leaves_the_fleet_without_an_engine(tmp_path: Path) -> None:
    """One engine after the other, and at least one serves at every moment."""
    async with rolling(tmp_path, 2, **{"fake-start-seconds": 0.5}) as deck:
        with deck.rig.events.subscribe(4096) as told:
            started = await deck.start()
            fewest, held = 2, set[str]()
            while (await deck.rollouts.get(started.id)).state == "running":
                await told.next()
                fewest = min(fewest, len(deck.serving()))
                held |= {one.name for one in deck.rig.engines.statuses() if one.held}
        assert started.strategy == "rolling"
        assert (await deck.rollouts.get(started.id)).state == "done"
        assert [one.id for one in await deck.rollouts.list(fleet="fleet")] == [started.id]
        assert deck.versions() == {"one": 2, "two": 2}
        assert (fewest, held) == (1, {"one", "two"})
        assert deck.serving() == {"one", "two"}


async def test_a_version_that_cannot_start_goes_back(tmp_path: Path) -> None:
    """The engine serves the version before, the other was never touched, the reason has its numbers."""
    async with rolling(tmp_path, 2, **FATAL) as deck:
        pids = {one.name: one.pid for one in deck.rig.engines.statuses()}
        ended = await deck.apply()
        assert ended.state == "rolled_back"
        assert "1024" in ended.reason or "1,024" in ended.reason
        assert deck.versions() == {"one": 1, "two": 1}
        assert deck.serving() == {"one", "two"}
        assert deck.rig.engines.status("two").pid == pids["two"]
        assert cells(ended, "two") == dict.fromkeys(STEPS, "waiting")
        assert deck.rig.engines.status("one").wanted_version == 1


async def test_a_version_that_asks_for_too_much_is_not_even_drained_for(tmp_path: Path) -> None:
    """The machine does not have the memory: found before any request has to wait, and said with both numbers."""
    tier = {**TIER, "kv_connector_extra_config": {"cpu_bytes_to_use": 900 << 40}}
    async with rolling(tmp_path) as deck:
        pid = deck.rig.engines.status("one").pid
        version = await _save(deck.rig.database, tier)
        ended = await deck.apply(version=version)
        assert ended.state == "rolled_back"
        assert "900 TiB" in ended.reason
        assert deck.rig.engines.status("one").pid == pid
        assert deck.serving() == {"one"}


@pytest.mark.parametrize(("fault", "told"), [("no-hits", "none of it came back"), ("other-tokens", "token_id:9")])
async def test_a_failing_canary_takes_the_fleet_back(tmp_path: Path, fault: str, told: str) -> None:
    """The second engine is not begun; the first has the version before again. No client was let to the wrong one."""
    async with rolling(tmp_path, 2, TIER, **{"fake-canary-fault": fault}) as deck:
        served_wrong = False
        with deck.rig.events.subscribe(4096) as events:
            started = await deck.start()
            while (await deck.rollouts.get(started.id)).state == "running":
                await events.next()
                served_wrong |= any(one.serves and one.running_version == 2 for one in deck.rig.engines.statuses())
        ended = await deck.rollouts.get(started.id)
        assert (ended.state, cells(ended, "one")["canary"]) == ("rolled_back", "failed")
        assert told in ended.reason
        assert deck.versions() == {"one": 1, "two": 1}
        assert not served_wrong


async def test_going_back_is_told_from_its_beginning(tmp_path: Path) -> None:
    """With the reason, and nothing is offered or accepted that would change nothing."""
    async with rolling(tmp_path, **FATAL) as deck:
        async with deck.rig.database.begin() as session:
            (await session.get_one(ProfileVersionRow, 1)).flags = {"fake-start-seconds": 3}
        begun = await deck.start()
        assert (begun.goes_back, begun.reason, begun.can_cancel, begun.can_roll_back) == (False, "", True, True)
        back = await deck.until(begun.id, lambda view: view.goes_back)
        assert back.state == "running"
        assert "1024" in back.reason or "1,024" in back.reason
        assert (back.can_cancel, back.can_roll_back) == (False, False)
        for act in (deck.rollouts.cancel, deck.rollouts.roll_back):
            with pytest.raises(Conflict, match="goes back already: The engine exited"):
                await act(begun.id, "bob")
        ready = await deck.until_in(begun.id, "one", "ready")
        line = rollouts_page(PAGE, LANGUAGE, [ready]).rollouts[0]
        assert (line.label, line.step, line.reason) == ("going back", "one: back: ready", back.reason)
        ended = await deck.ended(begun.id)
        assert (ended.state, ended.goes_back, ended.reason) == ("rolled_back", False, back.reason)


async def test_going_back_fails_as_well(tmp_path: Path) -> None:
    """It ends as failed, with both reasons, and says which engine runs what."""
    async with rolling(tmp_path, 2, **FATAL) as deck:
        await _spoil_first_version(deck.rig.database)
        ended = await deck.apply()
        assert ended.state == "failed"
        assert "one could not go back" in ended.reason
        assert "two: demo v1" in ended.reason
        assert deck.serving() == {"two"}


async def test_one_rollout_at_a_time(tmp_path: Path) -> None:
    """A second rollout on the fleet is refused, and told who runs the first."""
    async with rolling(tmp_path, **{"fake-start-seconds": 1}) as deck:
        first = await deck.start()
        with pytest.raises(Conflict, match="ann"):
            await deck.rollouts.start("fleet", "demo", 1, "in_place", author="bob")
        assert (await deck.ended(first.id)).state == "done"


async def test_rolling_needs_another_engine(tmp_path: Path) -> None:
    """Refused with what to write instead, and nothing is begun."""
    async with rolling(tmp_path) as deck:
        with pytest.raises(Conflict, match="in_place") as raised:
            await deck.start("rolling")
        assert raised.value.path == "strategy"
        assert await deck.rollouts.list() == []


async def test_an_engine_stopped_on_purpose_stays_stopped(tmp_path: Path) -> None:
    """It takes the version for its next start."""
    async with rolling(tmp_path, 2) as deck:
        await deck.rig.engines.stop("two")
        await deck.rig.engines.wait_for("two", frozenset({EngineState.STOPPED}), 20)
        ended = await deck.apply()
        two = deck.rig.engines.status("two")
        assert (ended.state, ended.strategy) == ("done", "in_place")
        assert (two.state, two.wanted_version) == (EngineState.STOPPED, 2)
        assert cells(ended, "two")["start"] == "skipped"


async def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    """Unknown fleet, profile, version and strategy are errors at their field, and nothing is started."""
    async with rolling(tmp_path) as deck:
        for asked, error, path in (
            (("nowhere", "demo", 1, "in_place"), NotFound, "fleet"),
            (("fleet", "nothing", 1, "in_place"), NotFound, "profile"),
            (("fleet", "demo", 9, "in_place"), NotFound, "version"),
            (("fleet", "demo", 1, "sideways"), InvalidInput, "strategy"),
            (("fleet", "demo", 1, "in_place", "test", -1.0), InvalidInput, "drain_timeout_seconds"),
        ):
            with pytest.raises(error) as raised:
                await deck.rollouts.start(*asked)
            assert raised.value.path == path
        assert await deck.rollouts.list() == []
        with pytest.raises(NotFound) as raised:
            await deck.rollouts.list(fleet="nowhere")
        assert raised.value.path == "fleet"


async def _save(database: object, config: dict[str, object]) -> int:
    from app.store.database import Database
    from app.store.queries import profiles

    assert isinstance(database, Database)
    async with database.begin() as session:
        _, version = await profiles.add_version(
            session, "demo", now=3.0, author="test", kv_transfer_config=config, flags={}, environment={}
        )
        return version.number


async def _spoil_first_version(database: object) -> None:
    """As if the machine had changed: what ran before does not start any more."""
    from app.store.database import Database

    assert isinstance(database, Database)
    async with database.begin() as session:
        version = await session.get_one(ProfileVersionRow, 1)
        version.flags = FATAL
