"""Errors in the shape that the caller understands, never with a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import Unavailable
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

JSON = BEARER | {"accept": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "field"),
    [
        ("GET", "/api/v1/nothing", None, 404, "not_found", None),
        ("DELETE", "/api/v1/engines", None, 405, "method_not_allowed", None),
        ("GET", "/api/v1/engines/no-such", None, 404, "not_found", "name"),
        ("GET", "/api/v1/series", None, 422, "invalid_input", "chart"),
        ("GET", "/api/v1/token-origin?window=never", None, 422, "invalid_input", "window"),
        ("POST", "/api/v1/profiles/validate", "{", 422, "invalid_json", None),
        ("POST", "/api/v1/rollouts", '{"fleet": "main"}', 422, "invalid_input", "profile"),
        ("PUT", "/api/v1/alert-rules/1", '{"parameters": {"hold_seconds": "x"}}', 422, "invalid_input", None),
    ],
)
async def test_rest_has_one_shape(
    tmp_path: Path, method: str, path: str, body: str | None, status: int, code: str, field: str | None
) -> None:
    """Code, sentence, path: also for what the framework itself refuses."""
    async with running(fake_deck.build(tmp_path)) as client:
        headers = JSON | {"content-type": "application/json"}
        answer = await client.request(method, path, content=body, headers=headers)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "path"}
    assert error["code"] == code
    assert error["message"].endswith((".", "d"))
    if field is not None:
        assert error["path"] == field


async def test_door_s_errors_look_like_openai_s(tmp_path: Path) -> None:
    """Clients of the engines read `error.message`, `type` and `code`."""
    application = fake_deck.build(tmp_path)

    @application.get("/v1-test")
    async def fail() -> None:
        raise Unavailable("Later.", retry_after_seconds=7)

    async with running(application) as client:
        refused = await client.get("/v1/models", headers={"origin": "https://evil.example"})
        later = await client.get("/v1-test", headers=JSON)
    assert refused.status_code == 403
    assert refused.json()["error"].keys() == {"message", "type", "code", "param"}
    assert (later.status_code, later.headers["retry-after"]) == (503, "7")


@pytest.mark.parametrize("headers", [HTML, {"accept": "application/json"}])
async def test_unexpected_errors_tell_a_reference_and_no_more(tmp_path: Path, headers: dict[str, str]) -> None:
    """No traceback, no text of the exception: it may hold what nobody else should read."""
    application = fake_deck.build(tmp_path)

    @application.get("/broken")
    async def fail() -> None:
        raise RuntimeError("password=hunter2")

    async with running(application) as client:
        answer = await client.get("/broken", headers=BEARER | headers)
    assert answer.status_code == 500
    assert "Its log has it under" in answer.text
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
