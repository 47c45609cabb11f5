"""Rules evaluated against a real database: what flips, what is stored, what survives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from app.errors import Conflict, InvalidInput, NotFound
from app.store.models import AlertRuleRow, DeliveryRow, MarkRow
from tests.integration.alerts_rig import T0, Rig, opened_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened_rig(tmp_path) as opened:
        yield opened


async def kinds(rig: Rig) -> list[str]:
    """States that were flipped to, oldest first."""
    return [flip.new for flip in reversed(await rig.alerts.flips())]


async def test_a_gap_with_a_restart_in_it_makes_one_firing_and_one_resolve(rig: Rig):
    """The deck is restarted while scrapes fail; nobody is told anything until it is really back."""
    await rig.webhook("http://127.0.0.1:9/hook")
    for host in (0.62, 0.60, 0.01, 0.01, 0.01):
        await rig.look(host)
    assert await kinds(rig) == ["firing"]
    for _ in range(6):
        await rig.look(0.6, ok=False)
    restarted = rig.restarted()
    for _ in range(6):
        await restarted.look(0.6, ok=False)
    assert (await restarted.alerts.alerts())[0].state == "firing"
    for host in (0.01, 0.01, 0.58, 0.60):
        await restarted.look(host)
    assert await kinds(rig) == ["firing"]
    await restarted.look(0.61)
    assert await kinds(rig) == ["firing", "ok"]
    assert len(await rig.alerts.deliveries()) == 2
    await restarted.database.close()


async def test_numbers_of_a_window_are_not_judged_while_scrapes_fail(rig: Rig):
    """A window keeps its numbers for minutes after the engine is gone; they are old."""
    await rig.look(0.0)
    asked = len(rig.charts.asked)
    await rig.look(0.0, ok=False)
    alert = await rig.alert()
    assert len(rig.charts.asked) == asked
    assert alert.state == "no_data"
    assert alert.sentence.startswith("No data: scrape of main-1 failed since")
    assert "connection refused" in alert.sentence


async def test_no_requests_is_not_an_alert(rig: Rig):
    """An engine without traffic is idle, with no share at all."""
    for _ in range(10):
        await rig.look(None, tokens=0)
    alert = await rig.alert()
    assert (alert.state, alert.sentence, alert.since) == ("idle", "No requests yet.", T0 + 60)
    assert alert.evidence["host_share"] is None
    assert await kinds(rig) == []


async def test_a_firing_is_told_stored_and_drawn_together(rig: Rig):
    """Flip, deliveries for webhooks that are on, mark on the charts, event for the pages."""
    await rig.webhook("http://127.0.0.1:9/a", name="on")
    await rig.webhook("http://127.0.0.1:9/b", name="off", enabled=False)
    with rig.events.subscribe() as watching:
        await rig.fire()
        seen = [await watching.next(), await watching.next()]
    assert [event.data["state"] for event in seen] == ["pending", "firing"]
    assert seen[1].key == "1"
    (flip,) = await rig.alerts.flips()
    assert (flip.rule, flip.fleet, flip.old, flip.new) == ("Host hits near 0", "main", "ok", "firing")
    assert [delivery.webhook for delivery in await rig.alerts.deliveries()] == ["on"]
    async with rig.database.session() as session:
        (mark,) = (await session.scalars(select(MarkRow))).all()
    assert (mark.kind, mark.engine_id) == ("alert", None)
    assert flip.sentence in mark.text


async def test_a_fault_while_storing_leaves_nothing_half_done(rig: Rig, monkeypatch):
    """No flip without its deliveries, no memory of a flip that was not stored."""
    await rig.webhook("http://127.0.0.1:9/a")
    await rig.look(0.0)
    await rig.look(0.0)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr("app.alerts.loop.queries.address_to_all", broken)
        await rig.look(0.0)
    async with rig.database.session() as session:
        assert (await session.scalars(select(DeliveryRow))).all() == []
    assert await kinds(rig) == []
    await rig.look(0.0)
    await rig.look(0.0)
    assert await kinds(rig) == ["firing"]


async def test_charts_that_fail_are_missing_data(rig: Rig):
    """The page shows it, a firing alert stays, and the next look works again."""
    await rig.fire()
    rig.charts.error = RuntimeError("boom")
    await rig.look(0.6)
    alert = await rig.alert()
    assert (alert.state, alert.sentence) == (
        "firing",
        "Still firing. The rule could not be evaluated: RuntimeError Last seen: host 0.0 %, recomputed 35.0 % at "
        "2023-11-14 22:16 UTC.",
    )
    rig.charts.error = None
    await rig.resolve()
    assert await kinds(rig) == ["firing", "ok"]


async def test_switching_a_rule_off_ends_its_alert(rig: Rig):
    """The receivers are told once; the alert is no longer listed; on again, it starts anew."""
    await rig.fire()
    await rig.alerts.save_rule(1, enabled=False)
    await rig.look(0.0)
    await rig.look(0.0)
    assert await kinds(rig) == ["firing", "ok"]
    assert [alert.rule for alert in await rig.alerts.alerts()] == ["Engine down"]
    await rig.alerts.save_rule(1, enabled=True)
    await rig.fire()
    assert await kinds(rig) == ["firing", "ok", "firing"]


async def test_parameters_change_alone(rig: Rig):
    """What is not given stays; what is wrong changes nothing."""
    saved = await rig.alerts.save_rule(1, parameters={"hold_seconds": 30})
    assert saved.parameters["hold_seconds"] == 30
    assert saved.parameters["min_input_tokens"] == 20_000
    with pytest.raises(InvalidInput) as raised:
        await rig.alerts.save_rule(1, name="new", parameters={"hold_seconds": -1})
    assert raised.value.path == "parameters.hold_seconds"
    assert (await rig.alerts.rules())[0] == saved
    with pytest.raises(NotFound):
        await rig.alerts.save_rule(99, enabled=False)


async def test_two_rules_cannot_share_a_name(rig: Rig):
    """A name tells one rule from another in a chat."""
    async with rig.database.begin() as session:
        session.add(AlertRuleRow(name="second", kind="host_hits_low", parameters={}, enabled=True, created_at=T0))
    with pytest.raises(Conflict):
        await rig.alerts.save_rule(2, name="Host hits near 0")


async def test_a_rule_of_an_unknown_kind_says_so_and_the_others_go_on(rig: Rig):
    """A database written by a newer deck does not stop this one."""
    async with rig.database.begin() as session:
        session.add(AlertRuleRow(name="new", kind="of_the_future", parameters={}, enabled=True, created_at=T0))
    await rig.fire()
    known, _, unknown = await rig.alerts.alerts()
    assert known.state == "firing"
    assert (unknown.state, "of_the_future" in unknown.sentence) == ("no_data", True)


async def test_the_rules_are_given_once(rig: Rig):
    """A second start adds nothing and does not switch on what was switched off."""
    await rig.alerts.save_rule(1, name="mine", enabled=False)
    await rig.alerts.open()
    await rig.restarted().alerts.open()
    rules = [(rule.name, rule.enabled) for rule in await rig.alerts.rules()]
    assert rules == [("mine", False), ("Engine down", True)]


async def test_a_deck_of_before_gets_the_rule_that_is_new(rig: Rig):
    """An earlier release knew one rule; what was done with it stays."""
    async with rig.database.begin() as session:
        await session.execute(delete(AlertRuleRow).where(AlertRuleRow.kind == "engine_down"))
    await rig.alerts.save_rule(1, enabled=False)
    await rig.restarted().alerts.open()
    assert [(rule.kind, rule.enabled) for rule in await rig.alerts.rules()] == [
        ("host_hits_low", False),
        ("engine_down", True),
    ]


async def test_before_the_first_look_nothing_is_claimed(rig: Rig):
    """Not looked at is not ok."""
    alert = await rig.alert()
    assert (alert.state, alert.since, alert.sentence) == ("no_data", None, "Not looked at yet.")
