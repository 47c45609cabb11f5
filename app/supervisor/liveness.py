"""Whether a serving engine lives, by what is seen of it: tokens that come, requests that move. Pure.

A reading is taken at each scrape. `follow` keeps of all readings what matters, `judge` says what follows:

| seen | follows |
| --- | --- |
| a token counter moves | it lives |
| one of its processes is stopped (SIGSTOP) for `HALTED_SECONDS` | stalled |
| a request runs | nothing: a long prefill or a compile pause looks like this |
| none runs, some wait, no token, for `stall_seconds` and three readings | stalled |
| none runs and none waits, or no numbers come, for `quiet_seconds` | it is asked for one token |
| it was asked, and `stall_seconds` after it fell silent none has come | stalled |
| it is stalled, and a token comes, asked for or not | it lives |

The first step of a request can be long (a prefill in one piece, a compilation), and until it ends the
engine's numbers do not tell of the request. So while the door has a request open there and the engine's
processes compute, the last rule waits for `WORKING_SECONDS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.supervisor.causes import Cause
from app.supervisor.faults import Fault

#: A debugger stops a process for a moment, too.
HALTED_SECONDS = 10.0
#: The longest first step that is believed: the longest prefill that has to survive.
WORKING_SECONDS = 1800.0
#: CPU time per second from which on processes are computing; a waiting engine uses next to none.
WORKING_SHARE = 0.2
#: Between two questions for a token, where the first was answered at once, and badly.
ASK_AGAIN_SECONDS = 5.0
#: So many readings have to tell the same before waiting requests are believed to be stuck.
STUCK_READINGS = 3


@dataclass(frozen=True)
class Limits:
    """`quiet_seconds` None: an idle engine is never asked."""

    stall_seconds: float = 120.0
    quiet_seconds: float | None = 60.0

    @classmethod
    def of(cls, stall_seconds: float, idle_probe_seconds: float) -> Limits:
        """From the settings. An engine is asked early enough for its answer to be late within the limit."""
        quiet = min(idle_probe_seconds, stall_seconds / 2) if idle_probe_seconds else None
        return cls(stall_seconds, quiet)


@dataclass(frozen=True)
class Counts:
    """The engine's own numbers: requests, and all tokens that it ever took in or gave."""

    running: float
    waiting: float
    tokens: float


@dataclass(frozen=True)
class Pulse:
    """The kernel's view of its processes."""

    halted: tuple[str, ...] = ()
    """Those that are stopped, as `pid 12, VLLM::EngineCore`."""
    cpu_seconds: float = 0.0
    """CPU time that they used so far; without the front end, which is busy with being asked."""


@dataclass(frozen=True)
class Reading:
    """One look. `counts` is None where the metrics page did not come, or lacks them."""

    at: float
    counts: Counts | None
    in_flight: int = 0
    """Requests that the door has open on it."""
    pulse: Pulse = Pulse()


@dataclass(frozen=True)
class Stretch:
    """Readings that tell the same: since when, how many, and the CPU time at their beginning."""

    since: float
    readings: int
    cpu_seconds: float


@dataclass(frozen=True)
class Life:
    """What is known of an engine's life. `alive_at` is the last sign of it, or when watching began."""

    alive_at: float
    last_token_at: float | None = None
    last_token_after: float | None = None
    """When that token had certainly not come yet: at the reading before, or when it was asked for."""
    tokens: float | None = None
    counted_at: float | None = None
    """When the engine's numbers last came."""
    stuck: Stretch | None = None
    quiet: Stretch | None = None
    halted_since: float | None = None
    asked_at: float | None = None
    """When it was last asked for a token, if none came since."""
    refusal: str = ""
    """What came instead of the token that was asked for."""
    newest: Reading | None = None


@dataclass(frozen=True)
class Fine:
    """Nothing speaks against it."""


@dataclass(frozen=True)
class Moves:
    """Tokens come again."""

    sentence: str


@dataclass(frozen=True)
class AskToken:
    """Ask it for one token, unless a question is still open."""


@dataclass(frozen=True)
class Dead:
    """No request will be answered."""

    fault: Fault
    evidence: dict[str, Any]


Verdict = Fine | AskToken | Dead


def follow(before: Life, reading: Reading) -> Life:
    """What is known after one more reading."""
    counts, pulse = reading.counts, reading.pulse
    halted_since = (before.halted_since or reading.at) if pulse.halted else None
    after = replace(before, halted_since=halted_since, newest=reading)
    if counts is None:
        return replace(after, quiet=_longer(before.quiet, reading))
    after = replace(after, tokens=counts.tokens, counted_at=reading.at)
    if before.counted_at is not None and _has_moved(before, counts):
        return _alive(after, reading.at, before.counted_at)
    stuck = counts.running == 0 and counts.waiting > 0
    quiet = counts.running == 0 and counts.waiting == 0
    return replace(
        after,
        stuck=_longer(before.stuck, reading) if stuck else None,
        quiet=_longer(before.quiet, reading) if quiet else None,
    )


def answered(before: Life, at: float) -> Life:
    """A token that was asked for has come."""
    return _alive(before, at, at if before.asked_at is None else before.asked_at)


def asked(before: Life, at: float) -> Life:
    """A token is being asked for."""
    return replace(before, asked_at=at)


def refused(before: Life, detail: str) -> Life:
    """No token came when it was asked; `detail` says what came."""
    return replace(before, refusal=detail)


def judge(life: Life, now: float, limits: Limits) -> Verdict:
    """What follows from all readings so far."""
    if life.halted_since is not None and now - life.halted_since >= HALTED_SECONDS:
        return _dead(life, now, "halted", _halted(life, now - life.halted_since))
    if life.stuck is not None:
        return _judge_stuck(life, life.stuck, now, limits)
    if life.quiet is not None:
        return _judge_quiet(life, life.quiet, now, limits)
    return Fine()


def judge_stalled(life: Life, now: float, since: float) -> Moves | AskToken | Fine:
    """What follows for an engine that is stalled since `since`: only a token made after that shows that it serves."""
    if life.last_token_after is not None and life.last_token_after >= since:
        return Moves(Cause.SERVES_AGAIN % {"seconds": f"{now - since:.0f}"})
    return Fine() if life.halted_since is not None else _ask(life, now)


def _judge_stuck(life: Life, stuck: Stretch, now: float, limits: Limits) -> Verdict:
    if now - stuck.since < limits.stall_seconds or stuck.readings < STUCK_READINGS:
        return Fine()
    waiting = life.newest.counts.waiting if life.newest and life.newest.counts else 0
    why = Cause.STUCK % {"count": f"{waiting:.0f}", "seconds": f"{now - stuck.since:.0f}"}
    return _dead(life, now, "requests_stuck", why)


def _judge_quiet(life: Life, quiet: Stretch, now: float, limits: Limits) -> Verdict:
    silence = now - max(life.alive_at, quiet.since)
    if limits.quiet_seconds is None or silence < limits.quiet_seconds:
        return Fine()
    limit = WORKING_SECONDS if _works(life, quiet, now) else limits.stall_seconds
    if silence < limit or life.asked_at is None:
        return _ask(life, now)
    why = life.refusal or Cause.NOTHING_CAME % {"seconds": f"{now - life.asked_at:.0f}"}
    return _dead(life, now, "no_token", Cause.ASKED_IN_VAIN % {"why": why})


def _ask(life: Life, now: float) -> AskToken | Fine:
    is_due = life.asked_at is None or now - life.asked_at >= ASK_AGAIN_SECONDS
    return AskToken() if is_due else Fine()


def _works(life: Life, quiet: Stretch, now: float) -> bool:
    """True while a request is open and the engine's processes compute."""
    reading, seconds = life.newest, now - quiet.since
    if reading is None or not reading.in_flight or seconds <= 0:
        return False
    return reading.pulse.cpu_seconds - quiet.cpu_seconds >= WORKING_SHARE * seconds


def _dead(life: Life, now: float, code: str, why: str) -> Dead:
    seen = life.last_token_at is not None
    since = life.last_token_at if life.last_token_at is not None else life.alive_at
    sentence = (Cause.STALLED if seen else Cause.STALLED_UNSEEN) % {"why": why, "seconds": f"{now - since:.0f}"}
    return Dead(Fault(code, sentence, fatal=False), _evidence(life, now))


def _evidence(life: Life, now: float) -> dict[str, Any]:
    reading = life.newest
    counts = reading.counts if reading else None
    return {
        "running": counts and counts.running,
        "waiting": counts and counts.waiting,
        "tokens": life.tokens,
        "in_flight": reading and reading.in_flight,
        "seconds_since_last_token": None if life.last_token_at is None else round(now - life.last_token_at, 1),
    }


def _has_moved(before: Life, counts: Counts) -> bool:
    """A counter that fell began anew in a new process: no sign of life yet, and none of death."""
    return before.tokens is not None and counts.tokens > before.tokens


def _alive(life: Life, at: float, after: float) -> Life:
    return Life(
        alive_at=at,
        last_token_at=at,
        last_token_after=after,
        tokens=life.tokens,
        counted_at=life.counted_at,
        halted_since=life.halted_since,
        newest=life.newest,
    )


def _longer(stretch: Stretch | None, reading: Reading) -> Stretch:
    if stretch is None:
        return Stretch(reading.at, 1, reading.pulse.cpu_seconds)
    return replace(stretch, readings=stretch.readings + 1)


def _halted(life: Life, seconds: float) -> str:
    halted = life.newest.pulse.halted if life.newest else ()
    template = Cause.HALTED if len(halted) == 1 else Cause.HALTED_SEVERAL
    return template % {"who": ", ".join(halted), "seconds": f"{seconds:.0f}"}
