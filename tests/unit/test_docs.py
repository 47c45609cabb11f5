"""The documents say what the code does, as far as a program can check it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import jsonschema
import pytest
import typer.main
import yaml
from pydantic.fields import FieldInfo

from app.cli.main import app as command_line
from app.config import PROJECT_ROOT, Settings

DOCUMENTS = sorted([PROJECT_ROOT / "README.md", PROJECT_ROOT / "CHANGELOG.md", *PROJECT_ROOT.glob("docs/*.md")])
COMPOSE = yaml.safe_load((PROJECT_ROOT / "docker-compose.yml").read_text())
#: Defaults that depend on the machine, in words.
DEFAULT_WORDS = {"data_dir": "`data`", "engine_python": "the deck's own"}


def _name(document: Path) -> str:
    return str(document.relative_to(PROJECT_ROOT))


def _row(name: str, field: FieldInfo) -> str:
    default = DEFAULT_WORDS.get(name) or _default_words(field.default)
    return f"| `TIERDECK_{name.upper()}` | {default} | {field.description} |"


def _default_words(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
    return f"`{value}`"


def test_every_setting_is_documented_with_its_default() -> None:
    """The table in docs/configuration.md is `Settings`, row by row; a missing row is printed here."""
    text = (PROJECT_ROOT / "docs/configuration.md").read_text()
    documented = [line for line in text.splitlines() if line.startswith("| `TIERDECK_")]
    assert documented == [_row(name, field) for name, field in Settings.model_fields.items()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every link to a file of the project, pictures included."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_make_commands_exist(document: Path) -> None:
    """What a reader is told to type after `make` is a target."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE))
    told = re.findall(r"(?:`|^|\w=\S+ )make ([a-z-]+)", document.read_text(), re.MULTILINE)
    assert set(told) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_tierdeck_commands_exist(document: Path) -> None:
    """What a reader is told to type after `tierdeck` is a command, with its options."""
    told = re.findall(r"(?:`|^|bin/)tierdeck ([a-z][a-z -]*)", document.read_text(), re.MULTILINE)
    assert [words for words in told if not _is_command(words.split())] == []


def _is_command(words: list[str]) -> bool:
    command: click.Command = typer.main.get_command(command_line)
    for word in words:
        if word.startswith("-"):
            return word in {name for parameter in command.params for name in parameter.opts}
        children = getattr(command, "commands", None)
        if children is None:
            return True  # the rest are arguments
        if word not in children:
            return False
        command = children[word]
    return True


def test_compose_file_is_valid() -> None:
    """By the published schema of the Compose file format."""
    schema = json.loads((PROJECT_ROOT / "tests/data/compose_spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_compose_file_hangs_together() -> None:
    """Every service, volume, file and setting that it names exists."""
    services = COMPOSE["services"]
    settings = {f"TIERDECK_{name.upper()}" for name in Settings.model_fields}
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        mode = service.get("network_mode", "")
        assert not mode.startswith("service:") or mode.removeprefix("service:") in services
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (PROJECT_ROOT / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
    assert services["deck"]["environment"].keys() <= settings


def test_compose_deck_talks_to_its_neighbours() -> None:
    """The database URL names the service and the credentials that the database is made with."""
    environment = COMPOSE["services"]["postgres"]["environment"]
    user, password, name = (environment[f"POSTGRES_{key}"] for key in ("USER", "PASSWORD", "DB"))
    url = COMPOSE["services"]["deck"]["environment"]["TIERDECK_DATABASE_URL"]
    assert url == f"postgresql+asyncpg://{user}:{password}@postgres:5432/{name}"


def test_prometheus_scrapes_the_deck_and_its_engine() -> None:
    """The addresses in docs/prometheus.yml are the deck's and the first engine's defaults."""
    jobs = yaml.safe_load((PROJECT_ROOT / "docs/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for group in job["static_configs"] for target in group["targets"]}
    fields = Settings.model_fields
    host = fields["host"].default
    assert targets == {f"{host}:{fields['port'].default}", f"{host}:{fields['engine_port'].default}"}
