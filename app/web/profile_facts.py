"""Asks the services for everything that the page of a profile shows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import InvalidInput, NotFound
from app.profiles.context import Box
from app.profiles.presets import Preset, presets
from app.services.consequences import consequences
from app.services.profiles import Run, VersionView, differences
from app.services.surroundings import read_box
from app.web.profile_page import Compared, ProfileFacts, RunFacts

if TYPE_CHECKING:
    from app.deck import Deck

RUNS_SHOWN = 20
#: For so many runs the page also tells where their tokens came from.
RUNS_WITH_NUMBERS = 5


@dataclass(frozen=True)
class Wanted:
    """What the address asks for."""

    name: str
    version: int | None
    compare: int | None
    other: str
    """`profile@number` of another profile to compare with."""


async def profile_facts(deck: Deck, wanted: Wanted, now: float) -> ProfileFacts:
    """The facts. Raises NotFound, InvalidInput."""
    versions = await deck.profiles.versions(wanted.name)
    shown = await deck.profiles.version(wanted.name, wanted.version)
    summaries = await deck.profiles.list()
    return ProfileFacts(
        name=wanted.name,
        versions=versions,
        shown=shown,
        compared=await _compared(deck, wanted, shown, now),
        running={
            engine: await deck.profiles.version(summary.name, number)
            for summary in summaries
            for engine, number in summary.runs_on
        },
        engines=deck.engines.statuses(),
        rollouts=await deck.rollouts.list(),
        others=[summary.latest for summary in summaries if summary.name != wanted.name],
        runs=await runs_with_numbers(deck, wanted.name, now),
        fleets=sorted({status.fleet for status in deck.engines.statuses()}),
        box=await box_of(deck),
    )


async def box_of(deck: Deck) -> Box:
    """The machine's memory."""
    known = (await deck.profiles.context()).box
    return await asyncio.to_thread(read_box) if known is None else known


def preset_named(name: str, box: Box) -> Preset | None:
    """The preset of this name; None where none is asked for. Raises NotFound."""
    known = {one.key: one for one in presets(box.memory_bytes)}
    if name and name not in known:
        sentence = 'There is no preset named "%(name)s"; there are %(known)s.'
        raise NotFound(sentence, path="preset", values={"name": name[:80], "known": ", ".join(known)})
    return known.get(name)


async def _compared(deck: Deck, wanted: Wanted, shown: VersionView, now: float) -> Compared | None:
    if wanted.other:
        name, _, number = wanted.other.rpartition("@")
        if not number.isdigit():
            raise InvalidInput("Write profile@number.", path="with")
        old = await deck.profiles.version(name, int(number))
    elif wanted.compare is not None:
        old = await deck.profiles.version(wanted.name, wanted.compare)
    else:
        return None
    if old.id == shown.id:
        raise InvalidInput("Compare two different versions.", path="compare")
    means = await consequences(deck.planning, old, shown, now, deck.engines.statuses())
    return Compared(old, shown, differences(old, shown), means)


async def runs_with_numbers(deck: Deck, name: str, now: float) -> list[RunFacts]:
    """The runs of a profile's versions, newest first; of the newest few also where their tokens came from."""
    runs = await deck.profiles.history(name, RUNS_SHOWN)
    told = [await _with_numbers(deck, run, now) for run in runs[:RUNS_WITH_NUMBERS]]
    return [*told, *map(RunFacts, runs[RUNS_WITH_NUMBERS:])]


async def _with_numbers(deck: Deck, run: Run, now: float) -> RunFacts:
    until = now if run.ended_at is None else run.ended_at
    if until <= run.started_at:
        return RunFacts(run)
    told = await deck.charts.token_origin(until - run.started_at, until, run.fleet, run.engine)
    if not told.input_tokens:
        return RunFacts(run)
    parts = (told.vram_tokens, told.host_tokens, told.recomputed_tokens)
    return RunFacts(run, *(None if part is None else part / told.input_tokens for part in parts))
