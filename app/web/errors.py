"""Errors as answers: one JSON shape for REST, the OpenAI shape at the door, a page for people."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.errors import InvalidInput, TierdeckError, Unavailable
from app.web.headers import SECURITY_HEADERS
from app.web.render import render_error

log = structlog.get_logger(__name__)

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of every route; no traceback ever leaves the deck."""
    app.add_exception_handler(TierdeckError, _on_tierdeck_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(Exception, _on_unexpected)


def is_page(request: Request) -> bool:
    """True when a person's browser waits for HTML."""
    if request.url.path.startswith(("/api/", "/v1/", "/events")):
        return False
    return "hx-request" in request.headers or "text/html" in request.headers.get("accept", "")


def error_response(request: Request, error: TierdeckError) -> Response:
    """`error` in the shape the caller expects."""
    headers = dict(SECURITY_HEADERS)
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_seconds)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if is_page(request):
        response: Response = render_error(request, error)
    else:
        shape = openai_error if request.url.path.startswith("/v1/") else api_error
        response = JSONResponse(shape(error), error.status)
    response.headers.update(headers)
    return response


def api_error(error: TierdeckError) -> dict[str, Any]:
    """The one shape of errors under /api/v1."""
    return {"error": {"code": error.code, "message": error.message, "path": error.path}}


def openai_error(error: TierdeckError) -> dict[str, Any]:
    """The shape that OpenAI's clients understand."""
    kind = OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "code": error.code, "param": error.path}}


def from_http_exception(error: HTTPException, method: str, path: str) -> TierdeckError:
    """What the framework raised (unknown path, wrong method, ...) as one of ours."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"There is nothing at {path}."
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{path} does not take {method}."
    else:
        message = str(error.detail)
    status = HTTPStatus(error.status_code)
    mapped = TierdeckError(message, code=status.name.lower())
    mapped.status = int(status)
    return mapped


def from_validation(problems: Sequence[Any]) -> InvalidInput:
    """The first problem of a request's body or query as a sentence and the path of its field."""
    first = problems[0]
    path = ".".join(str(part) for part in first["loc"] if part not in {"body", "query", "path"}) or None
    if first["type"] == "json_invalid":
        return InvalidInput(f"The body is not JSON: {first['ctx']['error']}.", code="invalid_json", path=None)
    field = path or "The request"
    return InvalidInput(f"{field}: {first['msg']}.", path=path)


async def _on_tierdeck_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TierdeckError):
        raise error
    return error_response(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    response = error_response(request, from_http_exception(error, request.method, request.url.path))
    response.headers.update(error.headers or {})
    return response


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(request, from_validation(error.errors()))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    reference = secrets.token_hex(4)
    log.error("unexpected_error", reference=reference, path=request.url.path, exc_info=error)
    return error_response(request, TierdeckError(f"The deck made an error. Its log has it under {reference}."))
