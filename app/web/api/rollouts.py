"""REST: rollouts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.web.deps import DeckDep, Id

router = APIRouter(prefix="/api/v1/rollouts", tags=["rollouts"])


class RolloutBody(BaseModel):
    """What to apply, and where."""

    fleet: str
    profile: str
    version: int = Field(ge=1, le=2**31 - 1)
    strategy: str = "in_place"


@router.get("")
async def list_rollouts(deck: DeckDep) -> dict[str, Any]:
    """Rollouts, newest first."""
    return {"rollouts": [asdict(view) for view in await deck.rollouts.list()]}


@router.get("/{rollout_id}")
async def get(rollout_id: Id, deck: DeckDep) -> dict[str, Any]:
    """One rollout."""
    return asdict(await deck.rollouts.get(rollout_id))


@router.post("", status_code=202)
async def start(body: RolloutBody, deck: DeckDep) -> dict[str, Any]:
    """Apply a version to a fleet; the answer comes at once, progress over /events or by asking again."""
    view = await deck.rollouts.start(body.fleet, body.profile, body.version, body.strategy, author="admin")
    return asdict(view)
