"""REST: profiles and their versions."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.services.profiles import Draft, VersionView
from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1/profiles", tags=["profiles"])

JsonText = str | dict[str, Any]


class DraftBody(BaseModel):
    """A profile as text (kept to the letter, so findings have line and column) or as objects."""

    kv_transfer_config: JsonText = Field("", description="The object for --kv-transfer-config; empty = no connector.")
    flags: JsonText = Field("", description='Engine flags, e.g. {"max-model-len": 32768}.')
    environment: JsonText = Field("", description='Environment variables, e.g. {"VLLM_LOGGING_LEVEL": "DEBUG"}.')

    def draft(self) -> Draft:
        """The three texts."""
        return Draft(_text(self.kv_transfer_config), _text(self.flags), _text(self.environment))


class VersionBody(DraftBody):
    """A draft with what to say about it."""

    comment: str = Field("", max_length=2000)


@router.get("")
async def list_profiles(deck: DeckDep) -> dict[str, Any]:
    """Every profile with its newest version and where it runs."""
    return {"profiles": [asdict(summary) for summary in await deck.profiles.list()]}


@router.post("/validate")
async def validate(body: DraftBody, deck: DeckDep) -> dict[str, Any]:
    """Everything that is wrong with a draft; nothing is saved."""
    checked = deck.profiles.validate(body.draft())
    return {"valid": checked.is_valid, "findings": [asdict(finding) for finding in checked.findings]}


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
    """Fields that differ between two versions; null on a side = absent there."""
    return {"changes": [asdict(change) for change in await deck.profiles.compare(name, old, new)]}


@router.post("/{name}/versions", status_code=201)
async def save(name: str, body: VersionBody, deck: DeckDep) -> dict[str, Any]:
    """Save the next version of a profile, making the profile if it is new."""
    return _json(await deck.profiles.save(name, body.draft(), author="admin", comment=body.comment))


def _text(value: JsonText) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _json(view: VersionView) -> dict[str, Any]:
    return asdict(view)
