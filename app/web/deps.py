"""What routes ask for: the deck of the running application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Path, Request

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
