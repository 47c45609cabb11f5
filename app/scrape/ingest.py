"""A scraped page -> the rows to store, and what to remember for the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from app.derive.counters import Counter, ProcessStart, Step, advance, from_zero, has_restarted
from app.scrape.names import SeriesKey
from app.scrape.parse import Page

SeriesKind = Literal["counter", "gauge"]

#: The supervisor's record of the process start, kept as a series so that it outlives the deck.
RECORDED_START = SeriesKey("recorded_process_start")
EXPOSED_START = SeriesKey("process_start")
#: Input tokens that the deck itself asked for, of the present process.
OWN_TOKENS = SeriesKey("own_tokens")
#: The counters that they are in: a prompt of one token is always computed.
_OWN_PARTS = (SeriesKey("prompt_tokens"), SeriesKey("prompt_tokens_by_source", (("source", "local_compute"),)))


@dataclass(frozen=True)
class NewSample:
    """A sample to store. For gauges `total` is the value. `begins`: the zero that a counter began at."""

    key: SeriesKey
    kind: SeriesKind
    at: float
    value: float
    total: float
    begins: bool = False


@dataclass(frozen=True)
class NewMark:
    """A mark to draw on the charts."""

    kind: Literal["reset", "data_fault"]
    at: float
    text: str


@dataclass(frozen=True)
class Memory:
    """What is remembered of an engine between two scrapes."""

    counters: Mapping[SeriesKey, Counter] = field(default_factory=dict)
    process: ProcessStart = field(default_factory=ProcessStart)
    last_ok_at: float | None = None


@dataclass(frozen=True)
class Ingest:
    """The outcome of one page."""

    samples: tuple[NewSample, ...]
    marks: tuple[NewMark, ...]
    memory: Memory
    own_tokens: int = 0
    """Of the deck's own, those that the page did not count yet."""


def ingest(memory: Memory, page: Page, recorded_start: float | None, now: float, own_tokens: int = 0) -> Ingest:
    """Take in a page scraped at `now` from the process that the supervisor started at `recorded_start`.

    `own_tokens` of its input were the deck's own questions; they are nobody's traffic and are taken off. An engine
    may count a moment later than it answers: `own_tokens` of the answer says how many are still to come.
    """
    process = ProcessStart(page.gauge(EXPOSED_START.name), recorded_start)
    restarted = has_restarted(memory.process, process) if memory.last_ok_at is not None else None
    known = from_zero(memory.counters) if restarted else memory.counters
    born_at = _zero_at(replace(memory, process=process), now)
    page = _without_own(page, known, own_tokens)
    steps, samples = {}, _gauge_samples(page, recorded_start, now)
    for key, value in page.counters.items():
        steps[key] = _step(known.get(key), value, born_at, restarted is False)
        began_now = restarted or key not in known
        samples += _counter_samples(key, steps[key], born_at if began_now else None, now)
    counters = {**known, **{key: step.counter for key, step in steps.items()}}
    reset_at = (born_at or now) if restarted else now if _has_reset(known, page, restarted) else None
    marks = _marks(steps, reset_at, now)
    pending = own_tokens - round(_value(counters, OWN_TOKENS) - _value(known, OWN_TOKENS))
    return Ingest(tuple(samples), marks, Memory(counters, process, now), pending)


def _without_own(page: Page, known: Mapping[SeriesKey, Counter], own_tokens: int) -> Page:
    """The page without the deck's own input, whose sum since the start of the process goes with it as a counter.

    What is stored and what was taken off always add up to what the page said: no more is taken off than came.
    """
    before = _value(known, OWN_TOKENS)
    parts = [key for key in _OWN_PARTS if key in page.counters]
    gains = [page.counters[key] - _value(known, key) - before for key in parts]
    own = before + max(0.0, min([float(own_tokens), *gains])) if gains else before
    if not own:
        return page
    reduced = {key: page.counters[key] - own for key in parts}
    return replace(page, counters={**page.counters, **reduced, OWN_TOKENS: own})


def _value(known: Mapping[SeriesKey, Counter], key: SeriesKey) -> float:
    return known[key].value if key in known else 0.0


def _zero_at(memory: Memory, now: float) -> float | None:
    """When a counter that shows up now was certainly zero: at the last scrape, or when its process started.

    None for an engine met for the first time of which no start is known: what it counted before is
    not ours to tell.
    """
    times = [memory.process.exposed_at, memory.process.recorded_at, memory.last_ok_at]
    known = [at for at in times if at is not None and at < now]
    return max(known, default=None)


def _step(previous: Counter | None, value: float, born_at: float | None, same_process: bool) -> Step:
    if previous is not None:
        return advance(previous, value, same_process)
    return Step(Counter(value, value), value if born_at is not None else 0.0)


def _counter_samples(key: SeriesKey, step: Step, zero_at: float | None, now: float) -> list[NewSample]:
    """The sample, and before it the zero that a counter began at since the last scrape.

    With that zero stored, what a counter gained in a window is always last total minus first total.
    """
    sample = NewSample(key, "counter", now, step.counter.value, step.counter.total)
    if zero_at is None or step.increase <= 0:
        return [sample]
    return [NewSample(key, "counter", zero_at, 0.0, step.counter.total - step.increase, begins=True), sample]


def _gauge_samples(page: Page, recorded_start: float | None, now: float) -> list[NewSample]:
    gauges = dict(page.gauges)
    if recorded_start is not None:
        gauges[RECORDED_START] = recorded_start
    return [NewSample(key, "gauge", now, value, value) for key, value in gauges.items()]


def _has_reset(known: Mapping[SeriesKey, Counter], page: Page, restarted: bool | None) -> bool:
    """Without any record of the process start, a counter that fell is the sign of a restart."""
    if restarted is not None:
        return False
    return any(key in known and value < known[key].value for key, value in page.counters.items())


def _marks(steps: Mapping[SeriesKey, Step], reset_at: float | None, now: float) -> tuple[NewMark, ...]:
    marks = [] if reset_at is None else [NewMark("reset", reset_at, "Counters began again at zero")]
    fallen = sorted({key.name for key, step in steps.items() if step.fell})
    if fallen:
        marks.append(NewMark("data_fault", now, f"Counter fell without a restart: {', '.join(fallen)}"))
    return tuple(marks)
