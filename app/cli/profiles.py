"""`tierdeck profile`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from app.cli.client import DeckClient
from app.cli.files import read_text
from app.cli.output import as_json, table
from app.derive.strict_json import read_strict
from app.errors import InvalidInput

FOLLOW_SECONDS = 1.0
PARTS = ("kv_transfer_config", "flags", "environment")


@dataclass(frozen=True)
class Wish:
    """What to apply, where and how; None = the obvious one."""

    profile: str
    version: int | None
    fleet: str | None
    strategy: str | None


@dataclass(frozen=True)
class Files:
    """What to check: a kv-transfer-config and what goes with it; or a whole exported profile in `config`."""

    config: Path
    flags: Path | None
    environment: Path | None


def validate(client: DeckClient, files: Files, depth: int, fleet: str | None, json_output: bool) -> None:
    """Print every finding, and what it takes of host memory."""
    body = {**_draft(files), "depth": depth, "fleet": fleet}
    answer = client.post("/profiles/validate", body, is_slow=depth > 1)
    if json_output:
        as_json(answer)
    else:
        _tell(answer)
        typer.echo("Valid." if answer["valid"] else "Not valid.")
    if not answer["valid"]:
        raise typer.Exit(1)


def _draft(files: Files) -> dict[str, Any]:
    text = read_text(files.config)
    exported = _exported(text)
    if exported is not None:
        return {part: exported.get(part, {}) for part in PARTS} | {"allow": exported.get("allow", [])}
    return {
        "kv_transfer_config": text,
        "flags": read_text(files.flags) if files.flags else "",
        "environment": read_text(files.environment) if files.environment else "",
    }


def _exported(text: str) -> dict[str, Any] | None:
    """The document of an exported profile; None for anything else. Raises InvalidInput where it would be misread."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None  # the deck says where and why it is none
    is_one = isinstance(document, dict) and str(document.get("format", "")).startswith("tierdeck-profile/")
    return dict(read_strict(text)) if is_one else None


def _tell(answer: dict[str, Any]) -> None:
    for finding in answer["findings"]:
        typer.echo(_sentence(finding))
    for one in answer["host_memory"]:
        typer.echo(f"host memory: {one['connector']}: each rank x ranks = host total: {one['sum']}")
    if summary := answer["depth"]["summary"]:
        typer.echo(f"asked: {summary}")


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
    for part in PARTS:
        typer.echo(f"\n{part}\n{json.dumps(found[part], ensure_ascii=False, indent=2)}")
    if found["allow"]:
        typer.echo("\nallow\n" + "\n".join(found["allow"]))
    typer.echo("\nfindings now")
    answer = _checked(client, found, None)
    _tell(answer)
    if not answer["findings"]:
        typer.echo("none")


def apply(client: DeckClient, wish: Wish, wait: bool, json_output: bool) -> None:
    """Start a rollout and follow it."""
    version = wish.version or client.get(f"/profiles/{wish.profile}/versions")["versions"][0]["number"]
    fleet = wish.fleet or _only_fleet(client)
    answer = _checked(client, client.get(f"/profiles/{wish.profile}/versions/{version}"), fleet)
    if not json_output:
        _tell(answer)
    body = {"fleet": fleet, "profile": wish.profile, "version": version, "strategy": wish.strategy}
    rollout = client.post("/rollouts", body)
    if wait:
        rollout = _followed(client, rollout, quiet=json_output)
    if json_output:
        as_json({**rollout, "findings": answer["findings"]})
    else:
        typer.echo(_progress(rollout))
    if wait and rollout["state"] != "done":
        raise typer.Exit(1)


def _checked(client: DeckClient, version: dict[str, Any], fleet: str | None) -> dict[str, Any]:
    """What there is to say about a saved version now, on this machine."""
    draft = {part: version[part] for part in PARTS}
    answer: dict[str, Any] = client.post("/profiles/validate", {**draft, "allow": version["allow"], "fleet": fleet})
    return answer


def _followed(client: DeckClient, rollout: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Print the rollout's log as it grows, and how far a start is, until it has ended."""
    told, last = 0, ""
    while True:
        rollout = client.get(f"/rollouts/{rollout['id']}")
        if not quiet:
            for line in rollout["log"][told:]:
                typer.echo(_log_line(line))
            told = len(rollout["log"])
            if "%" in rollout["step"] and rollout["step"] != last:
                typer.echo(f"  {rollout['step']}")
                last = rollout["step"]
        if rollout["ended_at"] is not None:
            return rollout
        time.sleep(FOLLOW_SECONDS)


def _log_line(line: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(line["at"]))
    return f"{clock} {line['engine'] + ': ' if line['engine'] else ''}{line['text']}"


def _progress(rollout: dict[str, Any]) -> str:
    """What it is doing, or how it ended."""
    now = rollout["step"] or rollout["reason"]
    return f"Rollout {rollout['id']}: {rollout['state'].replace('_', ' ')}{'. ' + now if now else '.'}"


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
    remedy = f" [{finding['fix']['label']}]" if finding["fix"] else ""
    return f"{finding['severity']}: {path}{finding['message']}{place}{remedy}"
