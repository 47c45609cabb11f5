"""REST: fleets, and how many engines each has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from app.fleets.content import FIELDS
from app.web.deps import DeckDep
from app.web.finding_words import told_error
from app.web.render import language_of

router = APIRouter(prefix="/api/v1/fleets", tags=["fleets"])

#: Read by `app.fleets.content`, which says in its own words what is wrong with them.
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
Object = Annotated[Any, WithJsonSchema({"type": "object"})]
Port = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]})]
Count = Annotated[Any, WithJsonSchema({"type": "integer"})]
Yes = Annotated[Any, WithJsonSchema({"type": "boolean"})]
Seconds = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
Devices = Annotated[Any, WithJsonSchema({"type": "array", "items": {}})]

EXAMPLE: JsonDict = {
    "name": "agents",
    "model": "/models/qwen3-next",
    "served_model_name": "qwen3-next",
    "base_flags": {"tensor-parallel-size": 2},
    "devices": [[0, 1], [2, 3]],
    "port_from": 8710,
    "port_to": 8719,
    "profile": "agents",
    "engines": 2,
}
CHANGE_EXAMPLE: JsonDict = {"routing": "least_busy", "drain_timeout_seconds": 120}


class FleetBody(BaseModel):
    """Fields of a fleet; what is left out stays, or has its default."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [CHANGE_EXAMPLE]})

    model: Text = Field("", description="Path or hub name handed to the engines. In force with their next start.")
    served_model_name: Text = Field("", description="The name that requests ask for. Default: the last part of model.")
    interpreter: Text = Field("", description="Python that starts the engines. Default: that of the settings.")
    base_flags: Object = Field({}, description="Flags of every start; a profile's flag of the same name wins.")
    environment: Object = Field({}, description="Variables of every start; a profile's of the same name wins.")
    devices: Devices = Field([], description="A group for each engine, or one list dealt out by the ranks of one.")
    port_from: Port = Field(None, description="First port for new engines; null = the engine port of the settings.")
    port_to: Port = Field(None, description="Last port for new engines.")
    routing: Text = Field("sticky", description="sticky: a session goes where its cache is. least_busy.")
    join_identical: Yes = Field(False, description="Join an identical prompt in flight instead of starting it again.")
    drain_timeout_seconds: Seconds = Field(None, description="Longest wait before a stop; null = that of the deck.")

    def asked(self) -> dict[str, Any]:
        """What was sent, of the fleet itself; names that no fleet has come along, to be told."""
        sent = self.model_dump(exclude_unset=True)
        return {name: value for name, value in sent.items() if name in FIELDS or name in (self.model_extra or {})}


class NewFleetBody(FleetBody):
    """A fleet, and what its engines start with."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLE]})

    name: str
    profile: str = Field(description="The profile that its engines start with.")
    version: int | None = Field(None, ge=1, le=2**31 - 1, description="A version of it; default: the newest.")
    engines: Count = Field(1, description="How many engines, each with a port and devices of its own.")


class EngineBody(BaseModel):
    """What a new engine starts with."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{}]})

    version_id: int | None = Field(None, ge=1, le=2**31 - 1, description="Default: the one most of its engines have.")


@router.get("")
async def list_fleets(deck: DeckDep) -> list[dict[str, Any]]:
    """The fleets with their engines."""
    return [view.as_json() for view in await deck.fleets.list()]


@router.post("", status_code=201)
async def create(body: NewFleetBody, deck: DeckDep) -> dict[str, Any]:
    """Add a fleet and start its engines. Nothing is added when one of them has no port, devices or memory."""
    view = await deck.fleets.create(body.name, body.asked(), body.profile, body.version, body.engines)
    return view.as_json()


@router.get("/{name}")
async def get(name: str, deck: DeckDep) -> dict[str, Any]:
    """One fleet. `restart_for` names what its running engines have not taken up yet."""
    return (await deck.fleets.get(name)).as_json()


@router.patch("/{name}")
async def update(name: str, body: FleetBody, deck: DeckDep) -> dict[str, Any]:
    """Change what is sent. How requests are dealt is in force at once, the rest with each engine's next start."""
    return (await deck.fleets.update(name, body.asked())).as_json()


@router.delete("/{name}", status_code=202)
async def delete(name: str, deck: DeckDep) -> dict[str, Any]:
    """Take a fleet out of service: its engines are drained and ended. What was recorded of them stays."""
    return {"leaving": [status.as_json() for status in await deck.fleets.delete(name)]}


@router.get("/{name}/new-engine")
async def new_engine(name: str, deck: DeckDep, request: Request) -> dict[str, Any]:
    """What adding an engine would make; `why_not` is a sentence when there is no room for one."""
    told = asdict(await deck.fleets.new_engine(name))
    refusal = told.pop("refusal")
    return told | {"why_not": "" if refusal is None else told_error(refusal, language_of(request).gettext)}


@router.post("/{name}/engines", status_code=202)
async def add_engine(name: str, deck: DeckDep, body: EngineBody | None = None) -> dict[str, Any]:
    """Add an engine to the fleet and start it."""
    return (await deck.fleets.add_engine(name, version_id=body.version_id if body else None)).as_json()


@router.delete("/{name}/engines", status_code=202)
async def remove_newest(name: str, deck: DeckDep) -> dict[str, Any]:
    """Take the engine that came last out of service."""
    return (await deck.fleets.remove_engine(name)).as_json()


@router.delete("/{name}/engines/{engine}", status_code=202)
async def remove_engine(name: str, engine: str, deck: DeckDep) -> dict[str, Any]:
    """Take an engine out of service: drained, ended, its host memory given back. What was recorded of it stays."""
    return (await deck.fleets.remove_engine(name, engine)).as_json()
