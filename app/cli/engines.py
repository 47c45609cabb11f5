"""`tierdeck status` and `tierdeck engine`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import typer

from app.cli.client import DeckClient
from app.cli.output import as_json, table
from app.errors import InvalidInput

COLUMNS = ("engine", "fleet", "state", "profile", "pid", "address", "cause")


def show(client: DeckClient, json_output: bool) -> None:
    """Every engine of the deck."""
    engines = client.get("/engines")
    if json_output:
        as_json({"engines": engines})
        return
    rows = [_row(engine) for engine in engines]
    typer.echo(table(rows, COLUMNS) if rows else "The deck has no engine.")


def resolve(client: DeckClient, name: str | None) -> str:
    """The engine that is meant."""
    if name is not None:
        return name
    names = [engine["name"] for engine in client.get("/engines") if not engine["leaving"]]
    if len(names) != 1:
        raise InvalidInput(f"Name one of the engines: {', '.join(names) or 'there is none'}.", path="name")
    return str(names[0])


def act(client: DeckClient, verb: str, name: str, json_output: bool) -> None:
    """Start, stop or restart."""
    show_one(client.post(f"/engines/{name}/{verb}"), json_output)


def show_one(engine: dict[str, Any], json_output: bool) -> None:
    """An engine as the deck told of it."""
    if json_output:
        as_json(engine)
    else:
        typer.echo(table([_row(engine)], COLUMNS))


def logs(client: DeckClient, name: str, lines: int, follow: bool, json_output: bool) -> None:
    """The tail of an engine's log, and perhaps what follows it."""
    answer = client.get(f"/engines/{name}/logs", lines=lines)
    if json_output and not follow:
        as_json(answer)
        return
    for line in answer["lines"]:
        _print_line(line, json_output)
    if not follow:
        return
    last = answer["lines"][-1]["number"] if answer["lines"] else 0
    with client.stream(f"/events/engines/{name}/log?after={last}") as batches:
        for batch in batches:
            if batch["skipped"]:
                typer.echo(f"... {batch['skipped']} lines left out", err=True)
            for line in batch["lines"]:
                _print_line(line, json_output)


def _print_line(line: dict[str, Any], json_output: bool) -> None:
    typer.echo(json.dumps(line, ensure_ascii=False) if json_output else f"{_clock(line['at']):8}  {line['text']}")


def _clock(at: float | None) -> str:
    """In the zone of whoever asks; empty where it is not known."""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC).astimezone():%H:%M:%S}"


def _row(engine: dict[str, Any]) -> dict[str, Any]:
    running = engine["running_version"]
    wanted = f"{engine['wanted_profile']} {engine['wanted_version']}"
    return {
        "engine": engine["name"],
        "fleet": engine["fleet"],
        "state": f"{engine['state']} since {_clock(engine['since'])}{', leaving' if engine['leaving'] else ''}",
        "profile": wanted if running in (None, engine["wanted_version"]) else f"{wanted} (runs {running})",
        "pid": engine["pid"],
        "address": engine["base_url"],
        "cause": engine["phase"] or engine["cause"],
    }
