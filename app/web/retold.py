"""Sentences that were kept in English, told again in the reader's language: causes of states, holds, and alerts.

They are made of templates. Where the whole of a text is found to be made of them, each is translated with its values,
which may be such sentences themselves; what is not known stays as it is.
"""

from __future__ import annotations

import re
from functools import cache

from app.alerts.phrases import Phrase
from app.rollouts.holds import Hold
from app.supervisor.causes import Cause
from app.supervisor.log_causes import LogCause
from app.supervisor.status import EngineStatus
from app.web.i18n import Gettext

_PLACE = re.compile(r"%\((\w+)\)s")
#: What may stand behind a sentence, if it has an end of its own.
_REST = r"(?: (?P<rest_>.+))?"
#: So deep may sentences stand within each other: an endless chain of tries is told in English at some point.
_DEEPEST = 8


def retold(text: str, _: Gettext, depth: int = 0) -> str:
    """`text` in the language of `_`, as far as its sentences are known."""
    if not text or depth > _DEEPEST:
        return text
    for template, pattern in _patterns():
        if (found := pattern.fullmatch(text)) is None:
            continue
        values = {name: retold(value, _, depth + 1) for name, value in found.groupdict().items() if value is not None}
        rest = values.pop("rest_", "")
        told = _(template) % values
        return f"{told} {rest}" if rest else told
    return text


def why(engine: EngineStatus, _: Gettext) -> str:
    """What brought an engine into its state, and why requests are kept from it."""
    return " ".join(retold(part, _) for part in (engine.cause, engine.held) if part)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((template, _pattern(template)) for template in sorted(templates(), key=_rank))


def templates() -> set[str]:
    """Every template that is kept filled in."""
    return {str(one) for kind in (Cause, LogCause, Hold, Phrase) for one in kind}


def _rank(template: str) -> tuple[bool, int]:
    """What is said behind a whole cause first, or that cause is found alone; then those with the most own words."""
    return not template.startswith("%(cause)s"), -len(_PLACE.sub("", template))


def _pattern(template: str) -> re.Pattern[str]:
    parts = _PLACE.split(template)
    text = "".join(f"(?P<{part}>.+?)" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(text + (_REST if template.endswith((".", ")")) else ""), re.DOTALL)
