"""`tierdeck demo-traffic`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import httpx
import typer

from app.cli.client import as_error, base_url, credentials, not_reached
from app.cli.output import as_json
from app.config import Settings
from app.demo.player import Played, Player, Summary, fitted, summarise
from app.demo.traffic import Sizes, Step
from app.errors import Unavailable

ORIGIN_PARTS = (("vram_tokens", "VRAM"), ("host_tokens", "host"), ("recomputed_tokens", "recomputed"))
#: The deck scrapes every two seconds; what the last request did is known after that.
SETTLE_SECONDS = 4.0


def run(settings: Settings, minutes: float, seed: int, vram_tokens: int, json_output: bool) -> None:
    """Play, then say what was seen; Ctrl-C ends early and still says it."""
    show = Show(quiet=json_output)
    try:
        asyncio.run(_play(settings, minutes, replace(Sizes(), vram=vram_tokens), seed, show))
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
    summary = summarise(show.played)
    origin = asyncio.run(_origin(settings, minutes)) if show.played else None
    if json_output:
        requests = [asdict(one) for one in show.played]
        closing = {**asdict(summary), "times_faster": summary.times_faster}
        as_json({"seed": seed, "summary": closing, "token_origin": origin, "requests": requests})
    else:
        typer.echo(closing_words(summary, origin))
    if summary.failed or not summary.requests:
        raise typer.Exit(1)


class Show:
    """Prints progress and keeps what was played."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.played: list[Played] = []

    def say(self, line: str) -> None:
        """A line for people."""
        if not self._quiet:
            typer.echo(line)

    def report(self, what: Step | Played) -> None:
        """A step that begins or a request that ended."""
        if isinstance(what, Played):
            self.played.append(what)
            self.say(request_line(what))
        else:
            self.say(f"\n{what.title}")


def request_line(played: Played) -> str:
    """One request: when, which turn, how many tokens, how many of them from a cache, and how fast."""
    turn = played.turn
    minutes, seconds = divmod(int(played.at_seconds), 60)
    start = f"  {minutes:02d}:{seconds:02d}  {turn.session:<12} turn {turn.number:<3}"
    if played.error is not None:
        return f"{start} failed: {played.error}"
    count = f"~{turn.tokens:,}" if played.prompt_tokens is None else f"{played.prompt_tokens:,}"
    tokens = f"{count:>7} tokens"
    cached = "" if played.cached_tokens is None else f"  {played.cached_tokens:>7,} cached"
    first = "-" if played.first_token_seconds is None else f"{played.first_token_seconds:.2f} s"
    return f"{start} {turn.kind.value:<8}{tokens}{cached}  first token {first}"


def closing_words(summary: Summary, origin: dict[str, Any] | None) -> str:
    """What a newcomer should have seen."""
    lines = [f"\n{summary.requests} requests, {summary.input_tokens:,} input tokens, {summary.failed} failed."]
    if summary.cold_first_token_seconds is not None:
        lines.append(f"Never seen before: {_tokens(summary.cold_tokens)}, {_first(summary.cold_first_token_seconds)}")
    if summary.return_first_token_seconds is not None:
        faster = (
            f"{summary.times_faster:.0f} times faster a token" if summary.times_faster else "no cold turn to compare"
        )
        words = f"{_first(summary.return_first_token_seconds)} ({faster})"
        lines.append(f"Pushed out and back: {_tokens(summary.return_tokens)}, {words}")
    if origin is not None:
        lines.append(_origin_words(origin))
    return "\n".join(lines)


def _tokens(count: int | None) -> str:
    return "tokens not counted by the engine" if count is None else f"{count:,} tokens"


def _first(seconds: float) -> str:
    return f"first token after {seconds:.2f} s"


def _origin_words(origin: dict[str, Any]) -> str:
    total = origin["input_tokens"]
    if not total:
        return f"Origin of the input tokens: not known ({origin['reason'] or 'no tokens in the window'})."
    parts = [f"{name} {_share(origin[key], total)}" for key, name in ORIGIN_PARTS]
    return f"Origin of the input tokens, last {origin['window_seconds'] / 60:.0f} min: {', '.join(parts)}."


def _share(tokens: float | None, total: float) -> str:
    return "unknown" if tokens is None else f"{tokens / total:.1%}"


async def _play(settings: Settings, minutes: float, sizes: Sizes, seed: int, show: Show) -> None:
    limits = httpx.Limits(keepalive_expiry=2.0)
    async with httpx.AsyncClient(
        base_url=base_url(settings),
        headers=credentials(settings),
        timeout=httpx.Timeout(None),
        limits=limits,
        trust_env=False,
    ) as client:
        player = Player(client, seed)
        try:
            await _announce(client, show)
            model = await player.model()
        except httpx.TransportError as error:
            raise not_reached(base_url(settings)) from error
        show.say(f"Model {model.name}, about {model.characters_per_token:.1f} characters a token; seed {seed}.")
        await player.play(fitted(sizes, model), model, minutes * 60, show.report)
        await asyncio.sleep(SETTLE_SECONDS)


async def _announce(client: httpx.AsyncClient, show: Show) -> None:
    """Say what is being waited for; the door itself does the waiting."""
    ready = (await client.get("/readyz")).json()
    if not ready.get("ready"):
        held = ready.get("held", {})
        told = [f"{name} is {state}{' and held' * (name in held)}" for name, state in ready.get("engines", {}).items()]
        show.say(f"Waiting for an engine: {', '.join(told) or 'the deck has none'}.")


async def _origin(settings: Settings, minutes: float) -> dict[str, Any] | None:
    window = f"{max(1, round(minutes + 0.5))}m"
    async with httpx.AsyncClient(base_url=base_url(settings), headers=credentials(settings), trust_env=False) as client:
        try:
            response = await client.get("/api/v1/token-origin", params={"window": window})
        except httpx.TransportError as error:
            raise Unavailable("The deck left before the end.", code="no_deck") from error
    if response.is_error:
        raise as_error(response)
    origin: dict[str, Any] = response.json()
    return origin
