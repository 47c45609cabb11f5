"""`tierdeck fleet`: what there is, more engines and fewer."""

from __future__ import annotations

import json
from typing import Any

import typer

from app.cli.client import DeckClient
from app.cli.engines import show_one
from app.cli.output import as_json, table
from app.errors import InvalidInput

COLUMNS = ("fleet", "served_as", "engines", "ready", "routing", "model", "restart_to_apply")


def show_all(client: DeckClient, json_output: bool) -> None:
    """Every fleet of the deck."""
    fleets = client.get("/fleets")
    if json_output:
        as_json({"fleets": fleets})
    else:
        typer.echo(table([_row(fleet) for fleet in fleets], COLUMNS) if fleets else "The deck has no fleet.")


def show(client: DeckClient, name: str | None, json_output: bool) -> None:
    """One fleet, field by field."""
    fleet = client.get(f"/fleets/{resolve(client, name)}")
    if json_output:
        as_json(fleet)
        return
    width = max(map(len, fleet))
    for field, value in fleet.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{field.replace('_', ' ').ljust(width)}  {'-' if value is None else text}")


def add_engine(client: DeckClient, name: str | None, json_output: bool) -> None:
    """One engine more; returns at once."""
    show_one(client.post(f"/fleets/{resolve(client, name)}/engines"), json_output)


def remove_engine(client: DeckClient, name: str | None, engine: str | None, json_output: bool) -> None:
    """One engine less, the newest without a name; returns at once."""
    path = f"/fleets/{resolve(client, name)}/engines"
    show_one(client.delete(path if engine is None else f"{path}/{engine}"), json_output)


def resolve(client: DeckClient, name: str | None) -> str:
    """The fleet that is meant."""
    if name is not None:
        return name
    names = [fleet["name"] for fleet in client.get("/fleets")]
    if len(names) != 1:
        raise InvalidInput(f"Name one of the fleets: {', '.join(names) or 'there is none'}.", path="name")
    return str(names[0])


def _row(fleet: dict[str, Any]) -> dict[str, Any]:
    leaving = f" (leaving: {', '.join(fleet['leaving'])})" if fleet["leaving"] else ""
    return {
        "fleet": fleet["name"],
        "served_as": fleet["served_model_name"],
        "engines": f"{', '.join(fleet['engines'])}{leaving}",
        "ready": fleet["ready"],
        "routing": fleet["routing"],
        "model": fleet["model"],
        "restart_to_apply": ", ".join(fleet["restart_for"]),
    }
