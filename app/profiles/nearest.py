"""The known word that a misspelt one is most like. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """None where nothing is like it."""
    near = difflib.get_close_matches(word.lower(), tuple(known), n=1, cutoff=0.6)
    return near[0] if near else None
