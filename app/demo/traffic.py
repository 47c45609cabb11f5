"""The field report's traffic in small, as a script. Pure: the same seed gives the same script.

A main session grows turn by turn. Between its turns an agent opens short sub-sessions, enough of them
to push the main session out of VRAM. Then the main session comes back: from the host tier, if there is
one. At the end of an act a session as long as the main one, never seen before, shows what that saved.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

WORDS = tuple(
    """
    agent answer block boundary cache change check device engine evicted example file function host idle layer
    long main memory model morning number open prefix profile question read report request restored result route
    run server session short slot state step store table test token tool turn value wait window write the a of
    and to in that is for with from at by not it this when then before after
    """.split()  # noqa: SIM905 - seventy quoted words are harder to read
)


class Kind(StrEnum):
    """Where a turn's input should come from, if all goes as in the field report."""

    NEW = "new"  # never seen: computed
    GROWS = "grows"  # the turn before is still in VRAM
    RETURNS = "returns"  # the turn before was pushed out of VRAM


@dataclass(frozen=True)
class Sizes:
    """In tokens. The defaults fit the demo engine."""

    vram: int = 54_000
    main_first: int = 12_000
    main_last: int = 26_000
    main_growth: int = 3_500
    follow_up: int = 250
    short_least: int = 2_000
    short_most: int = 6_000
    answer: int = 12
    #: Share of VRAM that the sub-sessions between two turns fill.
    pressure: float = 0.85


@dataclass(frozen=True)
class Turn:
    """One request: the first `tokens` of its session's text."""

    session: str
    number: int
    kind: Kind
    tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class Step:
    """Sessions played side by side, `width` at a time; the turns of one follow each other."""

    title: str
    sessions: tuple[tuple[Turn, ...], ...]
    width: int = 1


def acts(seed: int, sizes: Sizes) -> Iterator[Step]:
    """Act after act, for ever."""
    for number in itertools.count(1):
        yield from act(number, random.Random(f"{seed}/{number}"), sizes)  # noqa: S311 - not for secrets


def act(number: int, rng: random.Random, sizes: Sizes) -> Iterator[Step]:
    """A main session from its first turn to its last, and the control."""
    name = f"main-{number}"
    turns = itertools.count(1)
    tokens = sizes.main_first

    def main(kind: Kind) -> Turn:
        return Turn(name, next(turns), kind, tokens, sizes.answer)

    yield Step("the main session opens", ((main(Kind.NEW),),))
    for round_number in itertools.count(1):
        tokens += sizes.follow_up
        yield Step("it asks again at once", ((main(Kind.GROWS),),))
        yield Step("short sub-sessions push it out", _burst(f"sub-{number}.{round_number}", rng, sizes), width=2)
        tokens += sizes.follow_up
        yield Step("the main session comes back", ((main(Kind.RETURNS),),))
        if tokens + sizes.main_growth + 2 * sizes.follow_up > sizes.main_last:
            break
        tokens += sizes.main_growth
        yield Step("it reads a large file", ((main(Kind.GROWS),),))
    control = Turn(f"control-{number}", 1, Kind.NEW, tokens, sizes.answer)
    yield Step("for comparison: as long, but never seen before", ((control,),))


def _burst(name: str, rng: random.Random, sizes: Sizes) -> tuple[tuple[Turn, ...], ...]:
    sessions: list[tuple[Turn, ...]] = []
    left = sizes.vram * sizes.pressure
    while left > 0:
        tokens = rng.randint(sizes.short_least, sizes.short_most)
        session = f"{name}.{len(sessions) + 1}"
        opens = Turn(session, 1, Kind.NEW, tokens, sizes.answer)
        asks_again = Turn(session, 2, Kind.GROWS, tokens + sizes.follow_up, sizes.answer)
        sessions.append((opens, asks_again))
        left -= asks_again.tokens
    return tuple(sessions)


def session_text(seed: int, session: str, characters: int) -> str:
    """The first `characters` of a session's text; a longer prompt continues a shorter one to the letter."""
    rng = random.Random(f"{seed}/{session}")  # noqa: S311 - not for secrets
    words: list[str] = []
    length = 0
    while length < characters:
        sentence = " ".join(rng.choices(WORDS, k=rng.randint(6, 14))).capitalize() + ". "
        words.append(sentence)
        length += len(sentence)
    return "".join(words)[:characters]
