"""Drafts and contexts that several tests use."""

from __future__ import annotations

import copy
import json
from typing import Any

from app.profiles.check import Checked, Draft, check
from app.profiles.context import Box, Context, ModelFacts
from app.profiles.finding import EXTRA, Finding, Fix

GIB = 1 << 30
OURS = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 64 * GIB}
LARGE_BOX = Box(memory_bytes=512 * GIB, shared_bytes=512 * GIB)
HYBRID = ModelFacts("m", is_hybrid=True, longest_tokens=262_144, block_of=lambda _flags: 384)
DENSE = ModelFacts("m", is_hybrid=False, longest_tokens=131_072)
LATENT = ModelFacts("m", is_hybrid=False, is_latent=True)


def config(extra: dict[str, Any] | None = None, connector: str = "OffloadingConnector", **top: Any) -> dict[str, Any]:
    """A kv-transfer-config around `extra`."""
    return {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra or dict(OURS), **top}


def checked(
    transfer: dict[str, Any] | str | None = None,
    flags: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    allow: tuple[str, ...] = (),
    **context: Any,
) -> Checked:
    """The draft, checked on a large GPU box unless `context` says otherwise."""
    text = transfer if isinstance(transfer, str) else json.dumps(config() if transfer is None else transfer)
    draft = Draft(text, json.dumps(flags or {}), json.dumps(environment or {}), allow)
    return check(draft, Context(**{"platform": "cuda", "box": LARGE_BOX, **context}))


def at(found: Checked, path: str, severity: str | None = None) -> Finding:
    """The finding at a path; `path` may leave out the way to the connector's part."""
    here = [one for one in found.findings if one.path in {path, f"{EXTRA}.{path}"} and severity in {None, one.severity}]
    assert here, [(one.severity, one.path) for one in found.findings]
    return here[0]


def severities(found: Checked) -> dict[str, str]:
    """Path -> the gravest severity there."""
    return {one.path.removeprefix(f"{EXTRA}."): one.severity for one in reversed(found.findings)}


def patched(document: dict[str, Any], fix: Fix) -> dict[str, Any]:
    """The document after a click on the fix (RFC 6902, as far as fixes use it)."""
    result = copy.deepcopy(document)
    for operation in fix.operations:
        value = operation.value
        if operation.op == "move":
            value = _parent(result, operation.from_)[0].pop(_parent(result, operation.from_)[1])
        place, key = _parent(result, operation.path)
        if operation.op == "remove":
            del place[key]
        elif isinstance(place, list):
            place.append(value)
        else:
            place[key] = value
    return result


def _parent(document: dict[str, Any], pointer: str) -> tuple[Any, str]:
    *parts, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    place: Any = document
    for part in parts:
        place = place[int(part)] if isinstance(place, list) else place[part]
    return place, last


def document(transfer: dict[str, Any], flags: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    """What fixes are about."""
    return {"kv_transfer_config": transfer, "flags": flags or {}, "environment": {}, "allow": [], **rest}
