"""How far a starting engine is, from its log. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Lines that come by themselves while nothing moves, or that the deck's own questions cause.
_NOT_PROGRESS = re.compile(
    r"No available shared memory broadcast block|\"(?:GET|POST) /"
    r"|Waiting for \d+ .*to (?:connect|start)|Avg prompt throughput"
)


@dataclass(frozen=True)
class Phase:
    """A step of the start. `progress` is where it begins on the way from 0 to 1."""

    sentence: str
    progress: float


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    sentence: str
    start: float
    end: float
    """A percentage in the line, if the pattern has one, moves from `start` to `end`."""


CLEARING = Phase("Ending what the last run left", 0.0)
CHECKING = Phase("Checking model, port and memory", 0.01)
LAUNCHED = Phase("Starting the interpreter", 0.02)
ADOPTED = Phase("Asking an engine found running whether it serves", 0.5)

_RULES: tuple[_Rule, ...] = (
    _Rule(re.compile(r"non-default args|vLLM API server version"), "Reading the configuration", 0.15, 0.15),
    _Rule(re.compile(r"Initializing a V1 LLM engine"), "Starting the engine core", 0.25, 0.25),
    _Rule(re.compile(r"Starting to load model"), "Loading the weights", 0.35, 0.35),
    _Rule(re.compile(r"Loading .*shards:\s*(?P<percent>\d+)%"), "Loading the weights", 0.35, 0.6),
    _Rule(re.compile(r"Loading weights took|Model loading took"), "Weights loaded", 0.6, 0.6),
    _Rule(
        re.compile(r"Warming up model for the compil|Dynamo bytecode transform|Compiling a graph|torch\.compile takes"),
        "Compiling",
        0.65,
        0.65,
    ),
    _Rule(re.compile(r"KV cache size: [\d,]+ tokens|vailable KV cache memory"), "Allocating the KV cache", 0.75, 0.75),
    _Rule(re.compile(r"Capturing CUDA graphs.*?(?P<percent>\d+)%"), "Capturing graphs", 0.78, 0.88),
    _Rule(re.compile(r"init engine \(profile"), "Engine core ready", 0.9, 0.9),
    _Rule(re.compile(r"Starting vLLM (?:API )?server"), "Starting the API server", 0.94, 0.94),
    _Rule(re.compile(r"Application startup complete"), "Waiting for a first token", 0.97, 0.97),
)

#: From this phase on the engine has told the size of its KV cache.
KV_SIZED = next(rule.start for rule in _RULES if rule.sentence == "Allocating the KV cache")

#: Every line that a rule matches holds one of these. Lines are many, and this look is cheap.
_HINTS = ("args", "version", "nit", "oad", "raph", "ompil", "KV cache", "Dynamo", "tarting", "startup")

#: After this phase the engine listens, so it is worth asking it at once.
LISTENING = _RULES[-1].start


def advance(phase: Phase, line: str) -> Phase:
    """The phase after `line`; never an earlier one than `phase`."""
    found = _phase_of(line)
    return found if found is not None and found.progress > phase.progress else phase


def shows_life(line: str) -> bool:
    """True for a line that proves that the start goes on, for the limit on silence."""
    return bool(line.strip()) and _NOT_PROGRESS.search(line) is None


def _phase_of(line: str) -> Phase | None:
    if not any(hint in line for hint in _HINTS):
        return None
    for rule in _RULES:
        if found := rule.pattern.search(line):
            percent = float(found.groupdict().get("percent") or 0)
            return Phase(rule.sentence, rule.start + (rule.end - rule.start) * min(percent, 100) / 100)
    return None
