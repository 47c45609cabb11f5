"""What routes ask for: the deck of the running application."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Path, Request

from app.derive.strict_json import HALF_CHARACTER, read_strict
from app.errors import InvalidInput

if TYPE_CHECKING:
    from app.deck import Deck
else:  # routes need the name only; importing the deck would pull in every service
    Deck = Any


def get_deck(request: Request) -> Deck:
    """The deck put on `app.state` by the composition root."""
    return cast("Deck", request.app.state.deck)


DeckDep = Annotated[Deck, Depends(get_deck)]

#: The id of a row: what a 32-bit key column can hold.
Id = Annotated[int, Path(ge=1, le=2**31 - 1)]

#: How JSON writes half a character, and NUL.
_SUSPECT = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
#: A NUL character in JSON: behind an even number of backslashes, else it is a text about one.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


async def storable_texts(request: Request) -> None:
    """Refuse what no database holds: a lone surrogate or a NUL character, in the address or a JSON body.

    And what a reader of JSON would lose in silence: a key written twice. Raises InvalidInput with the field.
    """
    for name, value in [*request.path_params.items(), *request.query_params.multi_items(), *await _sent(request)]:
        if (sentence := _flaw([name, value])) is not None:
            raise InvalidInput(sentence, path=name if _flaw(name) is None else None)


async def _sent(request: Request) -> list[tuple[Any, Any]]:
    """The fields of a JSON body that may hold such a text. A form is its page's business."""
    content = b"" if "form" in request.headers.get("content-type", "") else await request.body()
    try:
        body = read_strict(content) if content else None
    except ValueError:
        return []  # whoever reads it says so
    if not _SUSPECT.search(content):
        return []
    return [*body.items()] if isinstance(body, dict) else [(None, body)]


def _flaw(value: Any) -> str | None:
    """The sentence on it; None where there is none."""
    text = json.dumps(value, ensure_ascii=False)
    sentence: str | None = None
    if _NUL.search(text):
        sentence = "A text here has a NUL character; leave it out."
    try:
        text.encode()
    except UnicodeEncodeError:
        sentence = HALF_CHARACTER
    return sentence
