"""One list of models out of those of several fleets, or of a fleet whose engines cannot be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.proxy.asgi import Scope
from app.supervisor.status import EngineStatus

PATH = "/v1/models"
#: An engine that takes longer is busy; the deck then answers for it.
PATIENCE_SECONDS = 2.0


def is_for_the_deck(scope: Scope, engines: Sequence[EngineStatus]) -> bool:
    """True when no single engine knows all of the list that is asked for, or none can be asked now."""
    if scope["method"] != "GET" or not engines:
        return False
    return len({engine.fleet for engine in engines}) > 1 or not any(engine.serves for engine in engines)


def one_of_each(engines: Iterable[EngineStatus]) -> list[EngineStatus]:
    """An engine for each fleet, one that serves if there is one."""
    found: dict[str, EngineStatus] = {}
    for engine in engines:
        if engine.fleet not in found or (engine.serves and not found[engine.fleet].serves):
            found[engine.fleet] = engine
    return list(found.values())


def merged(answers: Sequence[tuple[EngineStatus, bytes | None]]) -> bytes:
    """The answer: what each engine lists (None = it does not serve now: its name alone), each model once."""
    cards: dict[str, Mapping[str, Any]] = {}
    for engine, answer in answers:
        for card in _cards(answer) or [_own_card(engine)]:
            cards.setdefault(str(card.get("id")), card)
    return msgspec.json.encode({"object": "list", "data": list(cards.values())})


def _cards(answer: bytes | None) -> list[Mapping[str, Any]]:
    try:
        found = msgspec.json.decode(answer or b"{}")
    except msgspec.MsgspecError:
        return []
    data = found.get("data") if isinstance(found, dict) else None
    return [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []


def _own_card(engine: EngineStatus) -> Mapping[str, Any]:
    return {"id": engine.served_model_name, "object": "model", "created": int(engine.since), "owned_by": "tierdeck"}
