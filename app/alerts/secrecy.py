"""What may be shown of a webhook. The address of a chat robot is a password: whoever has it can post."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

from app.errors import InvalidInput

URL_LIMIT = 2048
TAIL_LENGTH = 4
SHORTEST_WITH_TAIL = 16
"""Below this length of path and query, four characters would be too much of it."""
SHORTEST_SECRET = 6
"""Shorter pieces of an address are words like `hook` and `v2`, which hide nothing."""


def check_url(url: str) -> str:
    """`url` if a webhook may have it. Raises InvalidInput; the sentence does not repeat the address."""
    address = url.strip()
    try:
        parts = urlsplit(address)
        host, has_login, _ = parts.hostname, parts.username is not None, parts.port
    except ValueError:
        raise _wrong_url("That is not an address.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise _wrong_url("The address must begin with http:// or https:// and name a host.")
    if has_login:
        raise _wrong_url("The address must not carry a user name or password.")
    if " " in address or not address.isprintable():
        raise _wrong_url("The address must not contain spaces, line breaks or other unprintable characters.")
    if len(address) > URL_LIMIT:
        raise _wrong_url(f"The address must not be longer than {URL_LIMIT} characters.")
    return address


def shown_url(url: str) -> str:
    """Scheme, host and the last characters, to tell one address from another."""
    parts = urlsplit(url)
    hidden = url[len(f"{parts.scheme}://{parts.netloc}") :]
    tail = hidden[-TAIL_LENGTH:] if len(hidden) >= SHORTEST_WITH_TAIL else ""
    return f"{parts.scheme}://{parts.netloc}/…{tail}"


def secrets_of(url: str, secret: str | None) -> tuple[str, ...]:
    """Every text that must not appear in an answer that is kept, longest first."""
    parts = urlsplit(url)
    pieces = [*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))]
    secret_pieces = {piece for raw in pieces for piece in (raw, unquote(raw)) if len(piece) >= SHORTEST_SECRET}
    whole = url[len(f"{parts.scheme}://{parts.netloc}") :]
    found = {url, *secret_pieces, *([secret] if secret else []), *([whole] if len(whole) >= SHORTEST_SECRET else [])}
    return tuple(sorted(found, key=len, reverse=True))


def scrub(text: str, secrets: Iterable[str]) -> str:
    """`text` with every one of `secrets` blotted out."""
    for secret in secrets:
        text = text.replace(secret, "•••")
    return text


def _wrong_url(sentence: str) -> InvalidInput:
    return InvalidInput(f"{sentence} Write for example https://example.org/hook.", path="url")
