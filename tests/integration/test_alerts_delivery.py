"""From a flip to a receiver: real database, real HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.alerts.delivery import LEASE_SECONDS
from app.events import Event
from app.store.models import DeliveryRow
from tests.fakes.receiver import Receiver, Reply, running_receiver
from tests.integration.alerts_rig import Rig, opened_rig

KEYWORDS = '{"errcode":310000,"errmsg":"keywords not in content"}'


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened_rig(tmp_path) as opened:
        yield opened


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    with running_receiver() as running:
        yield running


async def states(rig: Rig) -> list[str]:
    return [delivery.state for delivery in await rig.alerts.deliveries()]


async def test_a_firing_reaches_the_receiver_signed(rig: Rig, receiver: Receiver):
    """The payload is the documented one, and the documented check of the signature holds."""
    await rig.webhook(receiver.url(), secret="a-shared-secret")
    await rig.fire()
    assert await rig.delivery.send_due() == 1
    (request,) = receiver.received
    payload = json.loads(request.body)
    assert payload.keys() == {"event", "rule", "fleet", "state", "sentence", "at", "evidence", "link"}
    assert (payload["event"], payload["fleet"], payload["state"]) == ("alert", "main", "firing")
    assert payload["evidence"]["host_share"] == 0
    signed = f"{request.headers['x-tierdeck-timestamp']}.".encode() + request.body
    digest = hmac.new(b"a-shared-secret", signed, hashlib.sha256).hexdigest()
    assert request.headers["x-tierdeck-signature"] == f"sha256={digest}"
    assert request.headers["idempotency-key"] == str((await rig.alerts.flips())[0].id)
    (delivery,) = await rig.alerts.deliveries()
    assert (delivery.state, delivery.status, delivery.attempts, delivery.next_at) == ("delivered", 200, 1, None)


@pytest.mark.parametrize(
    ("channel", "status", "body", "state", "answer"),
    [
        ("dingtalk", 200, KEYWORDS, "failed", "310000: keywords not in content"),
        ("feishu", 200, '{"code":19024,"msg":"Key Words Not Found","data":{}}', "failed", "19024: Key Words Not Found"),
        ("feishu", 200, '{"code":0}', "delivered", "0"),
        ("feishu", 200, '{"StatusCode":0,"StatusMessage":"success"}', "delivered", "0: success"),
        ("slack", 200, "ok", "delivered", "ok"),
        ("discord", 204, "", "delivered", ""),
    ],
)  # fmt: skip
async def test_a_robots_refusal_is_a_failure(rig: Rig, receiver: Receiver, channel, status, body, state, answer):
    """HTTP 200 is not success; a refusal is shown with code and message, in the test too, and never retried."""
    receiver.replies = [Reply(status, body)]
    webhook = await rig.webhook(receiver.url(), channel)
    tested = await rig.alerts.test_webhook(webhook.id)
    assert (tested.state, tested.answer, tested.status) == (state, answer, status)
    await rig.fire()
    await rig.delivery.send_due()
    rig.clock.now += 86_400
    assert await rig.delivery.send_due() == 0
    sent = (await rig.alerts.webhook(webhook.id)).last_delivery
    assert sent is not None
    assert (sent.event, sent.state, sent.answer, sent.attempts) == ("firing", state, answer, 1)
    assert len(receiver.received) == 2


async def test_a_broken_receiver_is_tried_again_until_it_works(rig: Rig, receiver: Receiver):
    """Later and later, with the same idempotency key; not before its time."""
    receiver.replies = [Reply(500, "boom"), Reply(503, "", {"Retry-After": "60"}), Reply()]
    await rig.webhook(receiver.url())
    await rig.fire()
    assert await rig.delivery.send_due() == 1
    assert await states(rig) == ["pending"]
    assert await rig.delivery.send_due() == 0
    rig.clock.now += 5
    assert await rig.delivery.send_due() == 1
    rig.clock.now += 59
    assert await rig.delivery.send_due() == 0
    rig.clock.now += 1
    assert await rig.delivery.send_due() == 1
    assert await states(rig) == ["delivered"]
    assert len({request.headers["idempotency-key"] for request in receiver.received}) == 1


async def test_retries_end(rig: Rig):
    """After ten attempts the delivery has failed, with the reason."""
    await rig.webhook("http://127.0.0.1:9/hook")
    await rig.fire()
    for _ in range(30):
        await rig.delivery.send_due()
        rig.clock.now += 600
    (delivery,) = await rig.alerts.deliveries()
    assert (delivery.state, delivery.attempts, delivery.status) == ("failed", 10, None)
    assert delivery.answer.startswith("no answer: ")
    assert delivery.answer.endswith("(given up after 10 attempts)")


async def test_resolved_never_overtakes_firing(rig: Rig, receiver: Receiver):
    """While a message waits for its next attempt, later ones to the same receiver wait behind it."""
    receiver.replies = [Reply(500), Reply()]
    await rig.webhook(receiver.url())
    await rig.fire()
    await rig.delivery.send_due()
    flips = len(await rig.alerts.flips())
    await rig.resolve()
    assert len(await rig.alerts.flips()) == flips + 1
    await rig.delivery.send_due()
    told = [json.loads(request.body)["state"] for request in receiver.received]
    assert told == ["firing", "firing", "ok"]


async def test_a_dead_receiver_does_not_hold_up_the_others(rig: Rig, receiver: Receiver):
    """Webhooks are sent to side by side."""
    hold = threading.Event()
    with running_receiver() as slow:
        slow.replies = [Reply(hold=hold)]
        await rig.webhook(slow.url(), name="slow")
        await rig.webhook(receiver.url(), name="quick")
        await rig.fire()
        sending = asyncio.create_task(rig.delivery.send_due())
        await receiver.wait_for_arrival()
        hold.set()
        assert await sending == 2


async def test_two_decks_send_once(rig: Rig, receiver: Receiver):
    """The claim is a compare-and-set: whoever comes second does not send."""
    other = rig.restarted()
    await rig.webhook(receiver.url())
    await rig.fire()
    counts = await asyncio.gather(rig.delivery.send_due(), other.delivery.send_due(), rig.delivery.send_due())
    assert sum(counts) == 1
    assert len(receiver.received) == 1
    await other.database.close()


async def test_two_decks_flip_once(rig: Rig):
    """Two decks that evaluate at the same time store one firing."""
    other = rig.restarted()
    await rig.look(0.0)
    await rig.look(0.0)
    rig.clock.now += 60
    await rig.scraped(ok=True)
    await asyncio.gather(*(deck.loop.evaluate_once(rig.clock.now) for deck in (rig, other)))
    assert [flip.new for flip in await rig.alerts.flips()] == ["firing"]
    await other.database.close()


async def test_a_deck_that_died_while_sending_sends_again(rig: Rig, receiver: Receiver):
    """At least once: the claim runs out, and the next deck takes it."""
    await rig.webhook(receiver.url())
    await rig.fire()
    hold = threading.Event()
    receiver.replies = [Reply(hold=hold), Reply()]
    sending = asyncio.create_task(rig.delivery.send_due())
    await receiver.wait_for_arrival()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    hold.set()
    next_deck = rig.restarted()
    assert await states(rig) == ["sending"]
    assert await next_deck.delivery.send_due() == 0
    rig.clock.now += LEASE_SECONDS
    assert await next_deck.delivery.send_due() == 1
    assert await states(rig) == ["delivered"]
    await next_deck.database.close()


async def test_a_silent_receiver_runs_into_the_timeout(rig: Rig, receiver: Receiver):
    """Also one that has accepted the connection and says nothing."""
    impatient = Rig(rig.database, rig.clock, timeout_seconds=0.2)
    receiver.replies = [Reply(hold=threading.Event())]
    webhook = await impatient.webhook(receiver.url())
    tested = await impatient.alerts.test_webhook(webhook.id)
    assert (tested.state, tested.answer) == ("failed", "no complete answer within 0.2 s")


async def test_redirects_are_not_followed(rig: Rig, receiver: Receiver):
    """A receiver cannot send the deck elsewhere."""
    with running_receiver() as elsewhere:
        receiver.replies = [Reply(307, "", {"Location": elsewhere.url()})]
        webhook = await rig.webhook(receiver.url())
        tested = await rig.alerts.test_webhook(webhook.id)
        assert (tested.state, tested.status) == ("failed", 307)
        assert elsewhere.received == []


async def test_an_endless_answer_is_cut_off(rig: Rig, receiver: Receiver):
    """The body is read to a limit, and shown to a shorter one."""
    receiver.replies = [Reply(500, "x" * 5_000_000)]
    webhook = await rig.webhook(receiver.url())
    tested = await rig.alerts.test_webhook(webhook.id)
    assert tested.state == "failed"
    assert len(tested.answer) <= 300


async def test_a_webhook_that_was_switched_off_gets_nothing(rig: Rig, receiver: Receiver):
    """Neither new messages nor those that waited."""
    receiver.replies = [Reply(500), Reply()]
    webhook = await rig.webhook(receiver.url())
    await rig.fire()
    await rig.delivery.send_due()
    await rig.webhook_off(webhook)
    rig.clock.now += 600
    await rig.delivery.send_due()
    await rig.resolve()
    assert await rig.delivery.send_due() == 0
    (delivery,) = await rig.alerts.deliveries()
    assert (delivery.state, delivery.answer) == ("failed", "the webhook is switched off")
    assert len(receiver.received) == 1


async def test_an_interrupted_test_is_not_sent_later(rig: Rig, receiver: Receiver):
    """Nobody waits for it any more."""
    webhook = await rig.webhook(receiver.url())
    await rig.alerts.test_webhook(webhook.id)
    async with rig.database.begin() as session:
        row = await session.get(DeliveryRow, 1)
        assert row is not None
        row.state, row.next_at = "sending", rig.clock.now
    await rig.delivery.send_due()
    assert await states(rig) == ["failed"]
    assert len(receiver.received) == 1


async def test_the_loop_is_woken_by_an_alert_and_by_the_next_attempt(rig: Rig, receiver: Receiver, monkeypatch):
    """No polling: a flip is sent at once, a retry when its time comes."""
    monkeypatch.setattr("app.alerts.delivery.FIRST_RETRY_SECONDS", 0.2)
    monkeypatch.setattr("app.alerts.delivery.LONGEST_WAIT_SECONDS", 600.0)
    rig.delivery._clock = asyncio.get_running_loop().time
    receiver.replies = [Reply(500), Reply()]
    await rig.webhook(receiver.url())
    with rig.events.subscribe() as watching:
        running = asyncio.create_task(rig.delivery.run())
        rig.clock.now = 0.0
        await rig.fire()
        async with asyncio.timeout(10):
            while (event := await watching.next()).data.get("state") != "delivered":
                assert isinstance(event, Event)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(receiver.received) == 2


@pytest.fixture(autouse=True)
def no_real_environment(monkeypatch) -> Iterator[None]:
    """A proxy in the environment does not matter: webhooks go straight to their receivers."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    yield
