"""A draft as typed -> what it says, and everything there is to say about it. Pure, and quick enough to type by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.profiles.bounds import MOST_TOLD, connectors_in, too_long, too_many
from app.profiles.conflicts import Settings, check_conflicts, needed_switches
from app.profiles.context import Context
from app.profiles.finding import CONFIG, Finding, error, has_errors
from app.profiles.flags import check_base_environment, check_base_flags, check_environment, check_flags
from app.profiles.memory import HostMemory, check_memory, host_memory
from app.profiles.normal import Normal, normal_config, normal_flags
from app.profiles.text import ParsedText, parse_object
from app.profiles.transfer import check_transfer_config

#: Paths that a profile may allow.
MOST_ALLOWED = 200
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Draft:
    """A profile as typed: three texts, each one JSON object, and the paths that it allows."""

    kv_transfer_config: str
    flags: str
    environment: str = ""
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """A draft that was read. Sizes are integers here, however they were written."""

    kv_transfer_config: dict[str, Any]
    flags: dict[str, Any]
    environment: dict[str, str]
    allow: tuple[str, ...]
    findings: tuple[Finding, ...]
    host_memory: tuple[HostMemory, ...] = ()
    is_read: bool = True
    """False when a text was not JSON: then nothing beyond that was looked at."""

    @property
    def is_valid(self) -> bool:
        """True when it may be saved."""
        return not has_errors(self.findings)


def check(draft: Draft, context: Context) -> Checked:
    """Depth 1: everything that can be told without an engine."""
    texts = {
        CONFIG: _read(draft.kv_transfer_config, CONFIG),
        "flags": _read(draft.flags, "flags"),
        "environment": _read(draft.environment, "environment"),
    }
    config, flags = normal_config(texts[CONFIG].value), normal_flags(texts["flags"].value)
    environment = texts["environment"].value
    told_keys = max(1, MOST_TOLD // connectors_in(config.value))
    within = replace(context, allow=draft.allow[:MOST_ALLOWED], told_keys=told_keys)
    whole = {**context.base_flags, **flags.value}
    variables = {**context.base_environment, **environment}
    demand = host_memory(config.value, whole, variables)
    settings = Settings(config.value, whole, demand, variables)
    found = [
        *_of_text(texts[CONFIG], config, check_transfer_config(config.value, within)),
        *_of_text(texts["flags"], flags, check_flags(flags.value, needed_switches(settings, within))),
        *_of_text(texts["environment"], Normal(environment), check_environment(environment)),
        *_allow_findings(draft.allow),
    ]
    is_read = all(text.is_valid for text in texts.values())
    if is_read:
        found += check_memory(demand, config.value, within)
        found += check_conflicts(settings, within)
        found += check_base_flags(flags.value, context.base_flags)
        found += check_base_environment(environment, context)
    return Checked(config.value, flags.value, environment, draft.allow, _once(found), demand, is_read)


def read_settings(draft: Draft) -> tuple[dict[str, Any], dict[str, Any], tuple[Finding, ...]]:
    """Config and flags of a draft, their numbers as numbers, and what stands against reading them."""
    config, flags = parse_object(draft.kv_transfer_config, CONFIG), parse_object(draft.flags, "flags")
    unread = (*config.findings, *flags.findings)
    return normal_config(config.value).value, normal_flags(flags.value).value, unread


def _read(text: str, path: str) -> ParsedText:
    """The text as an object, unless it is more than somebody writes."""
    if long := too_long(text, path):
        return ParsedText({}, (long,))
    parsed = parse_object(text, path)
    many = too_many(parsed.value, path) if parsed.is_valid else None
    return ParsedText({}, (many,)) if many else parsed


def _of_text(text: ParsedText, normal: Normal, checked: Sequence[Finding]) -> list[Finding]:
    """A text that could not be read has its syntax finding alone."""
    return [*text.findings, *normal.findings, *checked] if text.is_valid else list(text.findings)


def _allow_findings(allow: tuple[str, ...]) -> list[Finding]:
    sentence = "Allow paths as findings show them, such as %(example)s."
    example = f"{CONFIG}.kv_connector_extra_config.my_key"
    wrong = [path for path in allow if not path.startswith(f"{CONFIG}.") or len(path) > 200]
    found = [error("allow", sentence, example=example) for _ in wrong[:1]]
    if len(allow) > MOST_ALLOWED:
        sentence = "This allows %(count)s paths; a profile allows at most %(most)s."
        found.append(error("allow", sentence, count=len(allow), most=MOST_ALLOWED))
    return found


def _once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors first; of two errors at one path (its type, and what follows from it) the first alone."""
    kept: list[Finding] = []
    refused: set[str] = set()
    for finding in findings:
        if finding.severity != "error" or finding.path not in refused:
            kept.append(finding)
        if finding.severity == "error":
            refused.add(finding.path)
    return tuple(sorted(kept, key=lambda finding: _ORDER[finding.severity]))
