"""The owner of deliveries: claims what is due, sends it, writes down how it went.

At least once: a delivery is claimed by compare-and-set and the claim is a lease, so a deck that dies
while sending sends again. Receivers tell repetitions by the `Idempotency-Key` header, the id of the flip.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.alerts.channels import channel_named
from app.alerts.channels.base import Notice, Outcome, Target, judge
from app.alerts.secrecy import scrub, secrets_of
from app.alerts.sender import Sender, SendFailed
from app.config import Settings
from app.errors import in_short
from app.events import Event, Events, Subscription
from app.store.database import Database
from app.store.queries import alerts as queries
from app.store.queries.alerts import Letter

log = structlog.get_logger(__name__)

FIRST_RETRY_SECONDS = 5.0
RETRY_FACTOR = 3.0
LONGEST_RETRY_SECONDS = 600.0
ATTEMPT_LIMIT = 10
LEASE_SECONDS = 30.0
"""Longer than any attempt can take."""
LONGEST_WAIT_SECONDS = 60.0
"""Another deck on the same database may add deliveries without an event here."""
AT_ONCE = 8
RECORD_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Verdict:
    """What becomes of a delivery after an attempt."""

    state: str
    next_at: float
    answer: str


def retry_delay_seconds(attempt: int, asked_seconds: float | None = None) -> float:
    """Wait after failed attempt number `attempt`: 5 s, 15 s, 45 s, ... 10 min, longer if the receiver asks."""
    delay = FIRST_RETRY_SECONDS * RETRY_FACTOR ** (min(attempt, ATTEMPT_LIMIT) - 1)
    return min(max(delay, asked_seconds or 0.0), LONGEST_RETRY_SECONDS)


def verdict(outcome: Outcome, attempt: int, now: float, attempt_limit: int = ATTEMPT_LIMIT) -> Verdict:
    """Delivered, failed for good, or pending again. Pure."""
    if outcome.ok:
        return Verdict("delivered", now, outcome.answer)
    if outcome.permanent:
        return Verdict("failed", now, outcome.answer)
    if attempt >= attempt_limit:
        given_up = f" (given up after {attempt} attempts)" if attempt > 1 else ""
        return Verdict("failed", now, outcome.answer + given_up)
    return Verdict("pending", now + retry_delay_seconds(attempt, outcome.retry_after_seconds), outcome.answer)


class DeliveryLoop:
    """Sends what is due. Woken by alert events and by the time of the next attempt."""

    def __init__(
        self,
        database: Database,
        events: Events,
        settings: Settings | None = None,
        *,
        sender: Sender | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._events = events
        self._link = None if settings is None else alerts_link(settings)
        self._sender = sender or Sender()
        self._clock = clock

    async def run(self) -> None:
        """Send until cancelled."""
        with self._events.subscribe() as subscription:
            while True:
                await self.send_due()
                await _wait(subscription, await self._seconds_to_next())

    async def send_due(self) -> int:
        """Send everything that is due now; how many attempts were made."""
        attempts = 0
        while due := await self._due():
            sending = (self._claim_and_send(letter) for letter in due)
            ended = await asyncio.gather(*sending, return_exceptions=True)  # none goes on behind the others' backs
            for error in (one for one in ended if isinstance(one, BaseException)):
                raise error
            results = [one is True for one in ended]
            if not any(results):
                break  # another deck has them all
            attempts += sum(results)
        return attempts

    async def send_claimed(self, delivery_id: int, attempt_limit: int = ATTEMPT_LIMIT) -> None:
        """Make the attempt that was already claimed for this delivery, and record it."""
        async with self._database.session() as session:
            letter = await queries.letter(session, delivery_id)
        if letter is not None:
            await self._attempt(letter, letter.delivery.attempts, attempt_limit)

    async def _due(self) -> Sequence[Letter]:
        async with self._database.session() as session:
            return await queries.due_letters(session, self._clock(), AT_ONCE)

    async def _seconds_to_next(self) -> float:
        async with self._database.session() as session:
            due_at = await queries.next_due_at(session)
        if due_at is None:
            return LONGEST_WAIT_SECONDS
        return min(max(due_at - self._clock(), 0.0), LONGEST_WAIT_SECONDS)

    async def _claim_and_send(self, letter: Letter) -> bool:
        now = self._clock()
        async with self._database.begin() as session:
            if not await queries.claim(session, letter.delivery, now, now + LEASE_SECONDS):
                return False
        await self._attempt(letter, letter.delivery.attempts + 1, ATTEMPT_LIMIT)
        return True

    async def _attempt(self, letter: Letter, attempt: int, attempt_limit: int) -> None:
        outcome = _refusal(letter, attempt) or await self._exchange(letter)
        made = verdict(outcome, attempt, self._clock(), attempt_limit)
        if await self._record(letter, attempt, made, outcome.status):
            self._tell(letter, attempt, made)
        else:
            log.warning("delivery was removed or claimed by another deck", delivery=letter.delivery.id, attempt=attempt)

    async def _record(self, letter: Letter, attempt: int, made: Verdict, status: int | None) -> bool:
        """For as long as the claim holds: what was sent and could not be written is sent again. False: not ours."""
        until = self._clock() + LEASE_SECONDS
        while True:
            try:
                async with self._database.begin() as session:
                    return await queries.record(
                        session, letter.delivery.id, attempt, made.state, made.next_at, status, made.answer
                    )
            except SQLAlchemyError as error:
                if self._clock() >= until:
                    raise
                log.warning("a delivery is not recorded yet", delivery=letter.delivery.id, why=in_short(error))
                await asyncio.sleep(RECORD_AGAIN_SECONDS)

    async def _exchange(self, letter: Letter) -> Outcome:
        channel = channel_named(letter.webhook.channel)
        target = _target(letter)
        try:
            outgoing = channel.compose(self._notice(letter), target, self._clock())
            answer = await self._sender.send(outgoing, {"Idempotency-Key": str(letter.flip.id)})
            outcome = judge(channel, answer)
        except SendFailed as error:
            outcome = Outcome(False, False, None, str(error))
        return replace(outcome, answer=scrub(outcome.answer, secrets_of(target.url, target.secret)))

    def _notice(self, letter: Letter) -> Notice:
        flip = letter.flip
        return Notice(
            flip_id=flip.id,
            event="test" if flip.new == "test" else "alert",
            rule=letter.rule,
            fleet=letter.fleet,
            state=flip.new,
            sentence=flip.sentence,
            at=flip.at,
            evidence=flip.evidence,
            link=self._link,
        )

    def _tell(self, letter: Letter, attempt: int, made: Verdict) -> None:
        facts = {"webhook": letter.webhook.name, "delivery": letter.delivery.id, "attempt": attempt}
        report = log.info if made.state == "delivered" else log.warning
        report("webhook", state=made.state, answer=made.answer, **facts)
        data = {**facts, "state": made.state, "answer": made.answer}
        self._events.publish(Event("alert", f"webhook:{letter.webhook.id}", data))


def alerts_link(settings: Settings) -> str:
    """Address of the alerts page, as far as the deck knows its own address."""
    is_everywhere = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    host = socket.gethostname() if is_everywhere else settings.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.port}/alerts"


def _target(letter: Letter) -> Target:
    webhook = letter.webhook
    return Target(webhook.channel, webhook.url, webhook.secret, webhook.keyword)


def _refusal(letter: Letter, attempt: int) -> Outcome | None:
    """Why this must not be sent (any more)."""
    is_test = letter.flip.new == "test"
    if not letter.webhook.enabled and not is_test:
        return Outcome(False, True, None, "the webhook is switched off")
    if is_test and attempt > 1:
        return Outcome(False, True, None, "the deck was stopped while it sent this test")
    if attempt > ATTEMPT_LIMIT:
        return Outcome(False, True, None, f"none of {ATTEMPT_LIMIT} attempts came to an end")
    return None


async def _wait(subscription: Subscription, seconds: float) -> None:
    """Until an alert event, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while (await subscription.next()).kind != "alert":
                pass
    except TimeoutError:
        return
