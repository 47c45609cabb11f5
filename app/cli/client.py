"""The running deck, as the commands reach it: its REST interface and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from app.config import Settings
from app.derive.strict_json import HALF_CHARACTER
from app.errors import InvalidInput, TierdeckError, Unavailable
from app.services.signin import admin_token

ANSWER_TIMEOUT_SECONDS = 30.0


def base_url(settings: Settings) -> str:
    """Where the deck of these settings is reached from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - read, not bound
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def credentials(settings: Settings) -> dict[str, str]:
    """The header that signs a request in."""
    return {"Authorization": f"Bearer {admin_token(settings)}"}


class DeckClient:
    """Asks the deck; every refusal comes back as the error that the deck meant."""

    def __init__(self, settings: Settings) -> None:
        self._url = base_url(settings)
        self._client = httpx.Client(
            base_url=self._url, headers=credentials(settings), timeout=ANSWER_TIMEOUT_SECONDS, trust_env=False
        )

    def get(self, path: str, **query: Any) -> Any:
        """GET a path below /api/v1."""
        return self._ask("GET", path, params={key: value for key, value in query.items() if value is not None})

    def post(self, path: str, body: dict[str, Any] | None = None, *, is_slow: bool = False) -> Any:
        """POST to a path below /api/v1. What asks an engine's interpreter `is_slow`: it has no time limit here."""
        return self._ask("POST", path, json=body, **({"timeout": None} if is_slow else {}))

    def delete(self, path: str) -> Any:
        """DELETE a path below /api/v1."""
        return self._ask("DELETE", path)

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The data of a stream of server-sent events, for as long as it is open."""
        try:
            with self._client.stream("GET", path, timeout=None) as response:
                if response.is_error:
                    response.read()
                    raise as_error(response)
                yield _event_data(response)
        except httpx.TransportError as error:
            raise not_reached(self._url) from error

    def _ask(self, method: str, path: str, **how: Any) -> Any:
        try:
            response = self._client.request(method, f"/api/v1{path}", **how)
        except httpx.TransportError as error:
            raise not_reached(self._url) from error
        except UnicodeEncodeError as error:
            raise InvalidInput(HALF_CHARACTER) from error
        if response.is_error:
            raise as_error(response)
        return response.json() if response.content else {}


def not_reached(url: str) -> Unavailable:
    """The deck does not answer at all."""
    return Unavailable(f"No deck answers at {url}. Start one with: tierdeck up", code="no_deck")


def as_error(response: httpx.Response) -> TierdeckError:
    """The deck's own error, from its answer."""
    try:
        told = response.json()["error"]
        error = TierdeckError(told["message"], code=told["code"], path=told.get("path"))
    except (ValueError, KeyError, TypeError):
        error = TierdeckError(f"{response.url} answered {response.status_code}.", code="unexpected_answer")
    error.status = response.status_code
    return error


def _event_data(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
