"""The `tierdeck` command. Heavy imports stand inside the commands, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import planning

if TYPE_CHECKING:
    from app.cli.client import DeckClient
    from app.config import Settings

app = typer.Typer(
    help="The control deck for vLLM engines whose KV cache lives in tiers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
engine_app = typer.Typer(help="Start, stop and watch an engine.", no_args_is_help=True)
profile_app = typer.Typer(help="Check, show and apply profiles.", no_args_is_help=True)
fleet_app = typer.Typer(help="Show fleets, add and remove engines.", no_args_is_help=True)
app.add_typer(engine_app, name="engine")
app.add_typer(fleet_app, name="fleet")
app.add_typer(profile_app, name="profile")
app.command("plan")(planning.plan)

Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
FleetName = Annotated[str | None, typer.Argument(help="The fleet; not needed when there is only one.")]
EngineName = Annotated[str | None, typer.Argument(help="The engine; not needed when there is only one.")]


@app.command()
def up(
    service: Annotated[
        bool, typer.Option("--service", help="Engines outlive the deck. Otherwise they stop with it.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Run the deck in the foreground."""
    from app.cli.output import told

    with told(json_output):
        from app.cli.server import serve

        serve(_settings().model_copy(update={"engines_outlive_deck": service}), as_json=json_output)


@app.command("demo-model")
def demo_model(json_output: Json = False) -> None:
    """Build the small hybrid model that the demo runs on, unless it is there."""
    from app.cli.output import as_json, told
    from app.demo.model import build_demo_model

    with told(json_output):
        settings = _settings()
        path = build_demo_model(settings.data_dir / "demo-model", settings.engine_python)
    if json_output:
        as_json({"path": str(path)})
    else:
        typer.echo(path)


@app.command()
def token(json_output: Json = False) -> None:
    """Print the admin token: for the sign-in page, and as bearer token for programs."""
    from app.cli.output import as_json, told
    from app.services.signin import admin_token, admin_token_path

    with told(json_output):
        settings = _settings()
        place = "TIERDECK_ADMIN_TOKEN" if settings.admin_token else str(admin_token_path(settings))
        value = admin_token(settings)
    if json_output:
        as_json({"token": value, "from": place})
        return
    typer.echo(f"From {place}:", err=True)
    typer.echo(value)


@app.command()
def status(json_output: Json = False) -> None:
    """Show every engine. Exit status 1 when no deck runs."""
    from app.cli import engines
    from app.cli.output import told

    with told(json_output):
        engines.show(_client(), json_output)


@engine_app.command("start")
def engine_start(name: EngineName = None, json_output: Json = False) -> None:
    """Start an engine; returns at once."""
    _engine_act("start", name, json_output)


@engine_app.command("stop")
def engine_stop(
    name: EngineName = None,
    forget: Annotated[bool, typer.Option("--forget", help="Give its host memory back too.")] = False,
    json_output: Json = False,
) -> None:
    """Stop an engine; returns at once. Its host memory stays for the next start."""
    _engine_act("stop?forget=true" if forget else "stop", name, json_output)


@engine_app.command("restart")
def engine_restart(name: EngineName = None, json_output: Json = False) -> None:
    """Restart an engine; requests wait at the door meanwhile."""
    _engine_act("restart", name, json_output)


@engine_app.command("logs")
def engine_logs(
    name: EngineName = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines as they come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 100,
    json_output: Json = False,
) -> None:
    """Print what an engine wrote; with --json and --follow, one JSON document a line."""
    from app.cli import engines
    from app.cli.output import told

    with told(json_output):
        client = _client()
        engines.logs(client, engines.resolve(client, name), lines, follow, json_output)


@fleet_app.command("list")
def fleet_list(json_output: Json = False) -> None:
    """List the fleets with their engines."""
    from app.cli import fleets
    from app.cli.output import told

    with told(json_output):
        fleets.show_all(_client(), json_output)


@fleet_app.command("show")
def fleet_show(name: FleetName = None, json_output: Json = False) -> None:
    """Show what a fleet is set to."""
    from app.cli import fleets
    from app.cli.output import told

    with told(json_output):
        fleets.show(_client(), name, json_output)


@fleet_app.command("add-engine")
def fleet_add_engine(name: FleetName = None, json_output: Json = False) -> None:
    """Add an engine to a fleet and start it; returns at once."""
    from app.cli import fleets
    from app.cli.output import told

    with told(json_output):
        fleets.add_engine(_client(), name, json_output)


@fleet_app.command("remove-engine")
def fleet_remove_engine(
    name: FleetName = None,
    engine: Annotated[str | None, typer.Option(help="Which one; without it, the newest.")] = None,
    json_output: Json = False,
) -> None:
    """Drain an engine, end it and take it out of service; returns at once."""
    from app.cli import fleets
    from app.cli.output import told

    with told(json_output):
        fleets.remove_engine(_client(), name, engine, json_output)


@profile_app.command("validate")
def profile_validate(
    file: Annotated[Path, typer.Argument(help="A kv-transfer-config or an exported profile, as JSON; - reads stdin.")],
    flags: Annotated[Path | None, typer.Option(help="The engine flags that go with it, as JSON.")] = None,
    environment: Annotated[Path | None, typer.Option(help="Environment variables that go with it, as JSON.")] = None,
    fleet: Annotated[str | None, typer.Option(help="The fleet; not needed when there is only one.")] = None,
    depth: Annotated[
        int, typer.Option(min=1, max=3, help="1: text, 2: asks the engine's interpreter, 3: dry run.")
    ] = 1,
    json_output: Json = False,
) -> None:
    """Check a profile without saving it. Exit status 1 when it has errors."""
    from app.cli import profiles
    from app.cli.output import told

    with told(json_output):
        files = profiles.Files(file, flags, environment)
        profiles.validate(_client(), files, depth, fleet, json_output)


@profile_app.command("show")
def profile_show(
    name: Annotated[str | None, typer.Argument(help="The profile; without it, all are listed.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="A version; without it, the newest.")] = None,
    json_output: Json = False,
) -> None:
    """Show a version of a profile, or list the profiles."""
    from app.cli import profiles
    from app.cli.output import told

    with told(json_output):
        profiles.show(_client(), name, version, json_output)


@profile_app.command("apply")
def profile_apply(
    name: Annotated[str, typer.Argument(help="The profile.")],
    version: Annotated[int | None, typer.Argument(min=1, help="The version; without it, the newest.")] = None,
    fleet: Annotated[str | None, typer.Option(help="The fleet; not needed when there is only one.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="rolling: one engine at a time, the others serve. in_place: all at once, requests wait. "
            "blue_green: new ones beside the old ones, which serve until those are tested."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow it to its end.")] = True,
    json_output: Json = False,
) -> None:
    """Apply a version of a profile to a fleet. Exit status 1 when it did not succeed."""
    from app.cli import profiles
    from app.cli.output import told

    with told(json_output):
        profiles.apply(_client(), profiles.Wish(name, version, fleet, strategy), wait, json_output)


@app.command("demo-traffic")
def demo_traffic(
    minutes: Annotated[float, typer.Option(min=0.05, help="No request begins after this.")] = 2.5,
    seed: Annotated[
        int | None, typer.Option(help="The same seed asks the same. Without it, nothing was seen before.")
    ] = None,
    vram_tokens: Annotated[int, typer.Option(min=1000, help="Tokens that fit the engine's VRAM.")] = 54_000,
    json_output: Json = False,
) -> None:
    """Play the field report's pattern through the deck, so that every chart moves."""
    import time

    from app.cli import demo
    from app.cli.output import told

    with told(json_output):
        demo.run(_settings(), minutes, int(time.time()) if seed is None else seed, vram_tokens, json_output)


def _engine_act(verb: str, name: str | None, json_output: bool) -> None:
    from app.cli import engines
    from app.cli.output import told

    with told(json_output):
        client = _client()
        engines.act(client, verb, engines.resolve(client, name), json_output)


def _settings() -> Settings:
    from pydantic import ValidationError

    from app.config import Settings
    from app.errors import InvalidInput

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "TIERDECK_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InvalidInput(f"{name}: {first['msg']}.", path=name) from error


def _client() -> DeckClient:
    from app.cli.client import DeckClient

    return DeckClient(_settings())


if __name__ == "__main__":
    app()
