"""A version as a file: written to be kept or taken elsewhere, and read back strictly. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from app.errors import InvalidInput

FORMAT: Final = "tierdeck-profile/1"
_OBJECTS: Final = ("kv_transfer_config", "flags", "environment")


class Content(Protocol):
    """What a version holds."""

    @property
    def kv_transfer_config(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def flags(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def environment(self) -> dict[str, str]: ...  # noqa: D102
    @property
    def allow(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def comment(self) -> str: ...  # noqa: D102
    @property
    def author(self) -> str: ...  # noqa: D102
    @property
    def created_at(self) -> float: ...  # noqa: D102


def exported(name: str, number: int, version: Content) -> dict[str, Any]:
    """The document of a version."""
    return {
        "format": FORMAT,
        "name": name,
        "version": number,
        "author": version.author,
        "created_at": version.created_at,
        "comment": version.comment,
        "kv_transfer_config": version.kv_transfer_config,
        "flags": version.flags,
        "environment": version.environment,
        "allow": list(version.allow),
    }


def imported(document: Any) -> dict[str, Any]:
    """A document that was read, its parts of the right kinds. Raises InvalidInput."""
    if not isinstance(document, Mapping):
        raise InvalidInput("A profile file is a JSON object.", path="document")
    if document.get("format") != FORMAT:
        sentence = 'This is no profile file: "format" must be "%(format)s".'
        raise InvalidInput(sentence, path="document.format", values={"format": FORMAT})
    taken: dict[str, Any] = {"name": document.get("name", ""), "comment": document.get("comment", "")}
    for part in ("name", "comment"):
        if not isinstance(taken[part], str):
            raise InvalidInput("%(part)s must be text.", path=f"document.{part}", values={"part": part})
    for part in _OBJECTS:
        taken[part] = document.get(part, {})
        if not isinstance(taken[part], Mapping):
            sentence = "%(part)s must be an object in braces."
            raise InvalidInput(sentence, path=f"document.{part}", values={"part": part})
    taken["allow"] = document.get("allow", [])
    if not isinstance(taken["allow"], list) or not all(isinstance(path, str) for path in taken["allow"]):
        raise InvalidInput("allow must be a list of texts.", path="document.allow")
    return taken
