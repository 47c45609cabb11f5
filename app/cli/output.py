"""How commands speak: a table or a sentence for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from app.errors import TierdeckError


def as_json(document: Any) -> None:
    """One document on standard output."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2))


@contextmanager
def told(json_output: bool) -> Iterator[None]:
    """Turn an error of the deck into one sentence and exit status 1."""
    try:
        yield
    except TierdeckError as error:
        if json_output:
            as_json({"error": {"code": error.code, "message": error.message, "path": error.path}})
        else:
            typer.echo(error.message, err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Aligned columns under their names; what is missing shows as a dash."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    lines = [[column.replace("_", " ") for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
