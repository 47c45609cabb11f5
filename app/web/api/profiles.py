"""REST: profiles and their versions."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from app.deck import Deck
from app.derive.strict_json import without_mark
from app.errors import InvalidInput
from app.profiles.context import Version
from app.profiles.presets import presets
from app.services.consequences import consequences
from app.services.deep_checks import Checkup
from app.services.profiles import Draft, VersionView, differences
from app.web.deps import DeckDep
from app.web.finding_words import depth_summary, findings_json
from app.web.profile_facts import box_of, runs_with_numbers
from app.web.render import language_of

router = APIRouter(prefix="/api/v1/profiles", tags=["profiles"])

JsonText = str | dict[str, Any]
Depth = Annotated[int, Field(ge=1, le=3)]
DEPTH_FIELD = Field(1, description="1: the text alone. 2: also the engine's interpreter. 3: also a dry run. Seconds.")
AUTHOR = "admin"
SHARES = ("vram", "host", "recomputed")


class DraftBody(BaseModel):
    """A profile as text (kept to the letter, so findings have line and column) or as objects."""

    kv_transfer_config: JsonText = Field("", description="The object for --kv-transfer-config; empty = no connector.")
    flags: JsonText = Field("", description='Engine flags, e.g. {"max-model-len": 32768}.')
    environment: JsonText = Field("", description='Environment variables, e.g. {"VLLM_LOGGING_LEVEL": "DEBUG"}.')
    allow: list[str] = Field(
        default_factory=list,
        max_length=200,
        description="Paths, as findings tell them, of keys that are right although the deck does not know them.",
    )
    fleet: str | None = Field(None, description="The fleet it is meant for; not needed when there is only one.")

    def draft(self) -> Draft:
        """The texts."""
        return Draft(_text(self.kv_transfer_config), _text(self.flags), _text(self.environment), tuple(self.allow))


class CheckBody(DraftBody):
    """A draft, and how deeply to look."""

    engine_version: str | None = Field(None, description='Check for this engine, e.g. "0.32"; else for the fleet\'s.')
    depth: Depth = DEPTH_FIELD
    keep_with: str | None = Field(
        None,
        description="profile@number: what is said is kept beside this version, if the draft is what it holds.",
    )


class PlanBody(DraftBody):
    """A draft, and how long a session is."""

    session_tokens: int | str | None = Field(
        None, description="A typical session; default as long as each row's reference."
    )


class DepthBody(BaseModel):
    """How deeply to look at a version."""

    depth: Depth = DEPTH_FIELD
    fleet: str | None = Field(None, description="The fleet whose engine is asked; not needed when there is only one.")


class VersionBody(DraftBody):
    """A draft with what to say about it."""

    comment: str = Field("", max_length=2000)


class CloneBody(BaseModel):
    """Where a version's content goes."""

    name: str = Field(description="Name of the new profile.")
    comment: str = Field("", max_length=2000)


class ImportBody(BaseModel):
    """An exported file."""

    document: Any = Field(description="The file's content.")
    name: str | None = Field(None, description="Another name than the file's.")


@router.get("")
async def list_profiles(deck: DeckDep) -> dict[str, Any]:
    """Every profile with its newest version and where it runs."""
    return {"profiles": [asdict(summary) for summary in await deck.profiles.list()]}


@router.post("/validate")
async def validate(body: CheckBody, deck: DeckDep, request: Request) -> dict[str, Any]:
    """Everything there is to say about a draft; nothing is saved, unless `keep_with` names its version.

    `profile` is the draft as it would be stored, sizes as integers; null when a text is not JSON.
    `host_memory` tells for each connector what a rank takes and what the whole machine gives.
    """
    version = _version(body.engine_version)
    told = await deck.deep_checks.validate(body.draft(), body.depth, body.fleet or None, version)
    if body.keep_with:
        await _keep(deck, body.keep_with, told)
    checked, language = told.checked, language_of(request)
    return {
        "valid": checked.is_valid,
        "findings": findings_json(checked.findings, language.gettext),
        "host_memory": [one.as_json() for one in checked.host_memory],
        "host_total_bytes": sum(one.total_bytes for one in checked.host_memory),
        "profile": {
            "kv_transfer_config": checked.kv_transfer_config,
            "flags": checked.flags,
            "environment": checked.environment,
            "allow": list(checked.allow),
        }
        if checked.is_read
        else None,
        "against": told.against,
        "depth": {
            "depth": told.depth,
            "steps": list(told.steps),
            "numbers": dict(told.numbers),
            "summary": depth_summary(told, language),
        },
    }


@router.post("/plan")
async def plan(body: PlanBody, deck: DeckDep) -> dict[str, Any]:
    """What a draft buys of a host tier, for its fleet's model; as `GET /api/v1/plan` answers."""
    found = await deck.planning.of_draft(body.draft(), body.fleet or None)
    asked = found.asked | ({} if body.session_tokens is None else {"session_tokens": body.session_tokens})
    return (await deck.planning.of_running(found, asked, time.time())).as_json()


@router.get("/presets")
async def list_presets(deck: DeckDep, request: Request) -> dict[str, Any]:
    """Profiles that ship, each with the sentence when to use it."""
    language = language_of(request)
    found = presets((await box_of(deck)).memory_bytes)
    said = [{"label": language.gettext(one.label), "sentence": language.gettext(one.sentence)} for one in found]
    return {"presets": [{**asdict(one), **words} for one, words in zip(found, said, strict=True)]}


@router.get("/compare")
async def compare_any(
    deck: DeckDep,
    old: Annotated[str, Query(description="profile@number, or a profile's name for its newest version.")],
    new: Annotated[str, Query(description="As `old`.")],
) -> dict[str, Any]:
    """As within a profile, between any two versions, also of different profiles."""
    return await _compared(deck, _named(old, "old"), _named(new, "new"))


@router.post("/import", status_code=201)
async def take_in(body: ImportBody, deck: DeckDep) -> dict[str, Any]:
    """Begin a new profile from an exported file."""
    return _json(await deck.profiles.take_in(body.document, AUTHOR, body.name or None))


@router.get("/{name}/versions")
async def versions(name: str, deck: DeckDep) -> dict[str, Any]:
    """The versions of a profile, newest first."""
    return {"versions": [_json(version) for version in await deck.profiles.versions(name)]}


@router.get("/{name}/versions/{number}")
async def version(name: str, number: int, deck: DeckDep) -> dict[str, Any]:
    """One version."""
    return _json(await deck.profiles.version(name, number))


@router.get("/{name}/compare")
async def compare(name: str, old: int, new: int, deck: DeckDep) -> dict[str, Any]:
    """Fields that differ between two versions, and what that means; null on a side = absent there."""
    return await _compared(deck, (name, old), (name, new))


@router.get("/{name}/runs")
async def runs(name: str, deck: DeckDep) -> dict[str, Any]:
    """Where and when each version ran, newest first; `ended_at` is null while it runs.

    Of the newest few also the shares of the input tokens that came from VRAM and host, or were recomputed.
    """
    found = await runs_with_numbers(deck, name, time.time())
    return {"runs": [asdict(one.run) | {part: getattr(one, part) for part in SHARES} for one in found]}


@router.get("/{name}/versions/{number}/export")
async def export(name: str, number: int, deck: DeckDep, response: Response) -> dict[str, Any]:
    """A version as a file, to be kept or imported elsewhere."""
    document = await deck.profiles.export(name, number)
    response.headers["content-disposition"] = f'attachment; filename="{_file_name(name)}-v{number}.json"'
    return document


@router.get("/{name}/versions/{number}/command")
async def command(name: str, number: int, deck: DeckDep, fleet: str | None = None) -> dict[str, Any]:
    """The start of a fleet's engine with this version, as one line that survives a shell."""
    return {"command": await deck.profiles.shell_command(name, number, fleet or None)}


@router.post("/{name}/versions/{number}/validate")
async def validate_version(name: str, number: int, body: DepthBody, deck: DeckDep) -> dict[str, Any]:
    """Check a saved version and keep what was said beside it, with the numbers of a dry run."""
    version = await deck.profiles.version(name, number)
    return _json(await deck.deep_checks.validate_version(version, body.depth, body.fleet or None))


@router.post("/{name}/versions/{number}/clone", status_code=201)
async def clone(name: str, number: int, body: CloneBody, deck: DeckDep) -> dict[str, Any]:
    """Begin a new profile with the content of a version."""
    return _json(await deck.profiles.clone(name, number, body.name, AUTHOR, body.comment))


@router.post("/{name}/versions", status_code=201)
async def save(name: str, body: VersionBody, deck: DeckDep) -> dict[str, Any]:
    """Save the next version of a profile, making the profile if it is new."""
    saved = await deck.profiles.save(name, body.draft(), AUTHOR, body.comment, body.fleet or None)
    return _json(saved)


async def _keep(deck: Deck, named: str, told: Checkup) -> None:
    version = await deck.profiles.version(*_named(named, "keep_with"))
    checked = told.checked
    content = {
        "kv-transfer-config": checked.kv_transfer_config,
        "flags": checked.flags,
        "environment": checked.environment,
    }
    if content == version.content and checked.allow == version.allow:
        await deck.deep_checks.keep(version, told)


async def _compared(deck: Deck, old: tuple[str, int | None], new: tuple[str, int | None]) -> dict[str, Any]:
    before, after = await deck.profiles.version(*old), await deck.profiles.version(*new)
    means = await consequences(deck.planning, before, after, time.time(), deck.engines.statuses())
    return {
        "changes": [asdict(change) for change in differences(before, after)],
        "consequences": [asdict(one) for one in means],
    }


def _text(value: JsonText) -> str:
    """To the letter, but for the mark that some editors begin a file with."""
    return without_mark(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _json(view: VersionView) -> dict[str, Any]:
    return asdict(view)


def _version(text: str | None) -> Version | None:
    if not text:
        return None
    parts = text.strip().lstrip("v").split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        sentence = 'Write an engine version such as "0.32", not "%(text)s".'
        raise InvalidInput(sentence, path="engine_version", values={"text": text[:20]})
    return int(parts[0]), int(parts[1])


def _named(text: str, path: str) -> tuple[str, int | None]:
    name, at, number = text.rpartition("@")
    if not at:
        return text, None
    if not number.isdigit():
        raise InvalidInput('Write profile@number, not "%(text)s".', path=path, values={"text": text[:80]})
    return name, int(number)


def _file_name(name: str) -> str:
    return "".join(c if c.isascii() else "_" for c in name)
