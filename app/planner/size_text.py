"""Bytes in words, for sentences. Pure."""

from __future__ import annotations

from typing import Final

STEPS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(count: int) -> str:
    """Three significant digits and a binary unit: `64 GiB`, `23.5 GiB`."""
    for step, unit in STEPS:
        if count >= step:
            value = count / step
            digits = max(0, 2 - len(str(int(value))) + 1)
            text = f"{value:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    return f"{count} B"
