"""`tierdeck plan`: what a reference length buys."""

from __future__ import annotations

import re
from typing import Any

import typer

from app.cli.output import as_json, table
from app.errors import InvalidInput
from engine.sizing import SizingError, plan_slots

REFERENCE_LENGTHS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144)
UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
COLUMNS = ("reference_tokens", "token_slots", "tokens", "state_slots", "restorable_sessions")


def show(host_bytes: str, token_bytes: int, state_bytes: int, block_tokens: int, json_output: bool) -> None:
    """A row for each reference length."""
    budget = parse_bytes(host_bytes)
    rows = [_row(budget, token_bytes, state_bytes, block_tokens, length) for length in REFERENCE_LENGTHS]
    if json_output:
        as_json({"host_bytes": budget, "plans": rows})
    else:
        typer.echo(table(rows, COLUMNS))


def parse_bytes(text: str) -> int:
    """ "1073741824", "1GiB" or "1 GB" in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InvalidInput(f"{text!r} is no number of bytes; write 68719476736, 64GiB or 64GB.", path="host_bytes")
    return int(float(match[1]) * unit)


def _row(budget: int, token_bytes: int, state_bytes: int, block_tokens: int, length: int) -> dict[str, Any]:
    try:
        slots = plan_slots(budget, 1, token_bytes, state_bytes, block_tokens, length, 0)
    except SizingError as error:
        raise InvalidInput(f"The host tier is too small: {error}.", path="host_bytes") from error
    return {
        "reference_tokens": length,
        "token_slots": slots.token_slots,
        "tokens": slots.token_slots * block_tokens,
        "state_slots": slots.state_slots,
        "restorable_sessions": slots.state_slots // 2,  # about two states for each that can come back
    }
