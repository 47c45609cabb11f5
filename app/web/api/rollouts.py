"""REST: rollouts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from app.rollouts.strategy import Strategy
from app.services.preview import RolloutPreview
from app.services.rollouts import RolloutView
from app.web.deps import DeckDep, Id

AUTHOR = "admin"

router = APIRouter(prefix="/api/v1/rollouts", tags=["rollouts"])


class RolloutBody(BaseModel):
    """What to apply, and where."""

    fleet: str
    profile: str
    version: int = Field(ge=1, le=2**31 - 1)
    strategy: str | None = Field(
        None,
        description="`rolling`, `in_place`, `blue_green`; left out: rolling where several engines run, else in_place.",
    )
    drain_timeout_seconds: float | None = Field(
        None, ge=0, le=86_400, description="Longest wait for open requests; left out: from those of the last hour."
    )


class PreviewBody(RolloutBody):
    """What would be applied, and how."""

    strategy: Strategy | None = Field(None, description="Left out: rolling where several engines run, else in_place.")


@router.get("")
async def list_rollouts(
    deck: DeckDep,
    fleet: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="How many, newest first.")] = 20,
) -> dict[str, Any]:
    """Rollouts, newest first; of one fleet if it is given."""
    return {"rollouts": [_json(view) for view in await deck.rollouts.list(limit, fleet)]}


@router.post("/preview")
async def preview(body: PreviewBody, deck: DeckDep) -> dict[str, Any]:
    """What applying a version would do: nothing is changed.

    What changes field by field and what that means, which engines restart and in which order, how long drain
    and start took of late, and how much of what the host tier holds would find no room. A number that is not
    known is null, with a reason.
    """
    found = await deck.previews.preview(
        body.fleet, body.profile, body.version, body.strategy, body.drain_timeout_seconds
    )
    return _json(found)


@router.get("/{rollout_id}")
async def get(rollout_id: Id, deck: DeckDep) -> dict[str, Any]:
    """One rollout: each engine with its steps, and the log."""
    view = await deck.rollouts.get(rollout_id)
    log = [{"at": one.at, "engine": one.engine, "text": one.text} for one in await deck.rollouts.log(rollout_id)]
    return {**_json(view), "log": log}


@router.post("", status_code=202)
async def start(body: RolloutBody, deck: DeckDep) -> dict[str, Any]:
    """Apply a version to a fleet; the answer comes at once, progress over /events or by asking again.

    Each engine is drained, stopped, started and tested: a prompt is written, forgotten by the device and read back
    from host memory. Whatever fails, the engines that were begun go back to the version before.
    """
    view = await deck.rollouts.start(
        body.fleet, body.profile, body.version, body.strategy, AUTHOR, body.drain_timeout_seconds
    )
    return _json(view)


@router.post("/{rollout_id}/cancel", status_code=202)
async def cancel(rollout_id: Id, deck: DeckDep) -> dict[str, Any]:
    """Begin no further engine. The one in work goes back to the version before; those that are done stay."""
    return _json(await deck.rollouts.cancel(rollout_id, AUTHOR))


@router.post("/{rollout_id}/rollback", status_code=202)
async def roll_back(rollout_id: Id, deck: DeckDep) -> dict[str, Any]:
    """Take every engine that was begun back to the version before; also after the fleet's last rollout has ended."""
    return _json(await deck.rollouts.roll_back(rollout_id, AUTHOR))


def _json(view: RolloutView | RolloutPreview) -> dict[str, Any]:
    """Sentences as they are read, without what they are made of."""
    told: dict[str, Any] = _plain(asdict(view))
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if name not in {"said", "sentences"}}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
