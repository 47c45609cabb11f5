"""Errors as answers: one JSON shape for REST, the OpenAI shape at the door, a page for people."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.derive.strict_json import TOO_DEEP, TOO_MANY_DIGITS
from app.errors import InvalidInput, TierdeckError, Unavailable
from app.proxy.routes import is_door
from app.web.finding_words import told_error
from app.web.headers import SECURITY_HEADERS
from app.web.i18n import Gettext
from app.web.render import language_of, render_error

log = structlog.get_logger(__name__)

#: What the framework wanted of a field in a query or body, by what it calls the fault, in words that can be translated.
KIND_WORDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_attributes_type": "an object",
}
LIMIT_WORDS = {
    "greater_than_equal": "%(field)s must be %(ge)s or more.",
    "less_than_equal": "%(field)s must be %(le)s or less.",
    "literal_error": "%(field)s must be one of %(expected)s.",
    "string_too_long": "%(field)s is too long: at most %(max_length)s.",
    "too_long": "%(field)s is too long: at most %(max_length)s.",
}
WHOLE_WORDS = {"body": "The body"}
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of every route; no traceback ever leaves the deck."""
    app.add_exception_handler(TierdeckError, _on_tierdeck_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(Exception, _on_unexpected)


def is_page(request: Request) -> bool:
    """True when a person's browser waits for HTML."""
    if is_door(request.url.path) or request.url.path.startswith(("/api/", "/events")):
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
        at_door = is_door(request.url.path)
        shape = openai_error(error) if at_door else api_error(error, language_of(request).gettext)
        response = JSONResponse(shape, error.status)
    response.headers.update(headers)
    return response


def api_error(error: TierdeckError, _: Gettext) -> dict[str, Any]:
    """The one shape of errors under /api/v1; the sentence in the reader's language where it is known."""
    return {"error": {"code": error.code, "message": told_error(error, _), "path": error.path}}


def openai_error(error: TierdeckError) -> dict[str, Any]:
    """The shape that OpenAI's clients understand."""
    kind = OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "code": error.code, "param": error.path}}


def from_http_exception(error: HTTPException, method: str, path: str) -> TierdeckError:
    """What the framework raised (unknown path, wrong method, ...) as one of ours."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        sentence = "There is nothing at %(path)s."
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        sentence = "%(path)s does not take %(method)s."
    else:
        return _with_status(TierdeckError(str(error.detail)), error.status_code)
    return _with_status(TierdeckError(sentence, values={"path": path, "method": method}), error.status_code)


def _with_status(mapped: TierdeckError, number: int) -> TierdeckError:
    status = HTTPStatus(number)
    mapped.code = status.name.lower()
    mapped.status = int(status)
    return mapped


def from_body(cause: BaseException | None) -> InvalidInput | None:
    """Why a body could not be read, where the framework says only that; None for any other error of its."""
    if isinstance(cause, RecursionError):
        return InvalidInput(TOO_DEEP, code="invalid_json")
    if isinstance(cause, UnicodeDecodeError):
        return InvalidInput("The body is not UTF-8 text.", code="invalid_json")
    return InvalidInput(TOO_MANY_DIGITS, code="invalid_json") if isinstance(cause, ValueError) else None


def from_validation(problems: Sequence[Any], body: Any = None) -> InvalidInput:
    """The first problem of a request's body or query as a sentence and the path of its field."""
    first = problems[0]
    path = _path(first["loc"], body, first["type"])
    if first["type"] == "json_invalid":
        values = {"why": first["ctx"]["error"]}
        return InvalidInput("The body is not JSON: %(why)s.", code="invalid_json", values=values)
    if first["type"] == "missing":
        return InvalidInput("%(field)s is missing.", path=path, values={"field": path or WHOLE_WORDS["body"]})
    if first["type"] == "extra_forbidden":
        return InvalidInput("%(field)s is no field here.", path=path, values={"field": path})
    return _refused([one for one in problems if _path(one["loc"], body, one["type"]) == path], path)


def _refused(problems: Sequence[Any], path: str | None) -> InvalidInput:
    """What is wrong with one field. Where its kind was right for one of several, only what is beside that counts."""
    field = path or WHOLE_WORDS["body"]
    other = next((one for one in problems if one["type"] not in KIND_WORDS), None)
    if other is None:
        return _of_wrong_kind([one["type"] for one in problems], field, path)
    if template := LIMIT_WORDS.get(other["type"]):
        return InvalidInput(template, path=path, values={"field": field, **other.get("ctx", {})})
    return InvalidInput("%(field)s: %(told)s.", path=path, values={"field": field, "told": other["msg"]})


def _of_wrong_kind(kinds: Sequence[str], field: str, path: str | None) -> InvalidInput:
    wanted = list(dict.fromkeys(KIND_WORDS[kind] for kind in kinds))
    if KIND_WORDS["float_type"] in wanted:  # a whole one is a number, too
        wanted = [one for one in wanted if one != KIND_WORDS["int_type"]]
    first, *others = wanted
    values = {"field": field, "first": first, "other": " or ".join(others)}
    if others:
        return InvalidInput("%(field)s must be %(first)s, or %(other)s.", path=path, values=values)
    return InvalidInput("%(field)s must be %(first)s.", path=path, values=values)


def _path(loc: Sequence[Any], body: Any, kind: str) -> str | None:
    """The field as it was written: where it may be of several kinds, the framework adds the name of each."""
    parts = [part for part in loc if part not in {"body", "query", "path"}]
    if loc and loc[0] == "body" and isinstance(body, Mapping):
        parts = _there(parts, body, kind)
    return ".".join(map(str, parts)) or None


def _there(parts: Sequence[Any], body: Any, kind: str) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        is_there = part in body if isinstance(body, Mapping) else isinstance(body, list) and isinstance(part, int)
        if not is_there and kind != "missing":
            break
        found.append(part)
        body = body[part] if is_there else None
    return found


async def _on_tierdeck_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TierdeckError):
        raise error
    return error_response(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    told = from_body(error.__cause__) or from_http_exception(error, request.method, request.url.path)
    response = error_response(request, told)
    response.headers.update(error.headers or {})
    return response


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(request, from_validation(error.errors(), error.body))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    reference = secrets.token_hex(4)
    log.error("unexpected_error", reference=reference, path=request.url.path, exc_info=error)
    return error_response(request, TierdeckError(f"The deck made an error. Its log has it under {reference}."))
