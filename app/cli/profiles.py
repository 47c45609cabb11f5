"""`tierdeck profile`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from app.cli.client import DeckClient
from app.cli.output import as_json, table
from app.errors import InvalidInput

FOLLOW_SECONDS = 1.0


@dataclass(frozen=True)
class Wish:
    """What to apply, where and how; None = the obvious one."""

    profile: str
    version: int | None
    fleet: str | None
    strategy: str


def validate(client: DeckClient, file: Path, flags: Path | None, json_output: bool) -> None:
    """Print every finding."""
    draft = {"kv_transfer_config": _read(file), "flags": _read(flags) if flags else ""}
    answer = client.post("/profiles/validate", draft)
    if json_output:
        as_json(answer)
    else:
        for finding in answer["findings"]:
            typer.echo(_sentence(finding))
        typer.echo("Valid." if answer["valid"] else "Not valid.")
    if not answer["valid"]:
        raise typer.Exit(1)


def show(client: DeckClient, name: str | None, version: int | None, json_output: bool) -> None:
    """One version in full, or the list."""
    if name is None:
        _list(client, json_output)
        return
    number = version or client.get(f"/profiles/{name}/versions")["versions"][0]["number"]
    found = client.get(f"/profiles/{name}/versions/{number}")
    if json_output:
        as_json(found)
        return
    typer.echo(f"{found['profile']} version {found['number']}: {found['comment'] or 'no comment'}")
    for part in ("kv_transfer_config", "flags", "environment"):
        typer.echo(f"\n{part}\n{json.dumps(found[part], ensure_ascii=False, indent=2)}")


def apply(client: DeckClient, wish: Wish, wait: bool, json_output: bool) -> None:
    """Start a rollout and follow it."""
    version = wish.version or client.get(f"/profiles/{wish.profile}/versions")["versions"][0]["number"]
    body = {
        "fleet": wish.fleet or _only_fleet(client),
        "profile": wish.profile,
        "version": version,
        "strategy": wish.strategy,
    }
    rollout = client.post("/rollouts", body)
    if wait:
        rollout = _followed(client, rollout, quiet=json_output)
    if json_output:
        as_json(rollout)
    else:
        typer.echo(_progress(rollout))
    if wait and rollout["state"] != "done":
        raise typer.Exit(1)


def _followed(client: DeckClient, rollout: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    last = ""
    while rollout["ended_at"] is None:
        if not quiet and (progress := _progress(rollout)) != last:
            typer.echo(progress)
            last = progress
        time.sleep(FOLLOW_SECONDS)
        rollout = client.get(f"/rollouts/{rollout['id']}")
    return rollout


def _progress(rollout: dict[str, Any]) -> str:
    reason = f" {rollout['reason']}" if rollout["reason"] else ""
    return f"Rollout {rollout['id']}: {rollout['state']}, {rollout['step']}.{reason}"


def _only_fleet(client: DeckClient) -> str:
    names = sorted({engine["fleet"] for engine in client.get("/engines")})
    if len(names) != 1:
        raise InvalidInput(f"Name one of the fleets: {', '.join(names) or 'there is none'}.", path="fleet")
    return str(names[0])


def _list(client: DeckClient, json_output: bool) -> None:
    answer = client.get("/profiles")
    if json_output:
        as_json(answer)
        return
    rows = [
        {"profile": p["name"], "versions": p["count"], "newest": p["latest"]["number"], "runs_on": _runs_on(p)}
        for p in answer["profiles"]
    ]
    typer.echo(table(rows, ("profile", "versions", "newest", "runs_on")))


def _runs_on(profile: dict[str, Any]) -> str:
    return ", ".join(f"{engine} v{number}" for engine, number in profile["runs_on"])


def _sentence(finding: dict[str, Any]) -> str:
    place = f" (line {finding['line']}, column {finding['column']})" if finding["line"] else ""
    path = f"{finding['path']}: " if finding["path"] else ""
    return f"{finding['severity']}: {path}{finding['message']}{place}"


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.", path=str(file)) from error
