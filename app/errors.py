"""Every error the deck raises on purpose.

    TierdeckError
    ├── InvalidInput      422  something the user wrote is wrong; `path` names the field
    ├── NotFound          404
    ├── Conflict          409  the thing exists, or is in a state that forbids the act
    ├── Unauthorized      401
    ├── Forbidden         403
    ├── TooLarge          413  the body is above the configured limit
    ├── HeadTooLarge      431  the request's line and headers are; a TooLarge
    ├── Unavailable       503  not now; `retry_after_seconds` says when to try again
    ├── EngineFault       502  an engine broke off or answered something that is not HTTP
    ├── TooManyAttempts   429  wrong tokens came too fast; an Unavailable
    └── LaunchFailed      500  an engine could not be started; the sentence says why

This module imports nothing of the deck, so that every layer may raise from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TierdeckError(Exception):
    """Base of the tree: a stable code, one sentence, and the offending field if there is one.

    With `values` the sentence is a template with `%(name)s` in it; so a page can tell it in its reader's language.
    """

    status = 500
    code = "internal"

    def __init__(
        self,
        sentence: str,
        *,
        code: str | None = None,
        path: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.sentence = sentence
        self.values: Mapping[str, Any] = values or {}
        self.message = sentence % self.values if self.values else sentence
        self.path = path
        super().__init__(self.message)
        if code is not None:
            self.code = code


class InvalidInput(TierdeckError):
    """What was sent is wrong; `path` is the field as written in the request."""

    status = 422
    code = "invalid_input"


class NotFound(TierdeckError):
    """The named thing does not exist."""

    status = 404
    code = "not_found"


class Conflict(TierdeckError):
    """The act is not possible in the present state."""

    status = 409
    code = "conflict"


class Unauthorized(TierdeckError):
    """No valid sign-in or token came with the request."""

    status = 401
    code = "unauthorized"


class Forbidden(TierdeckError):
    """The caller may be known, but this way of asking is refused."""

    status = 403
    code = "forbidden"


class Unavailable(TierdeckError):
    """Nothing can serve this now; worth trying again after `retry_after_seconds`."""

    status = 503
    code = "unavailable"

    def __init__(
        self,
        sentence: str,
        *,
        retry_after_seconds: int = 5,
        code: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(sentence, code=code, values=values)
        self.retry_after_seconds = retry_after_seconds


class TooManyAttempts(Unavailable):
    """Wrong tokens were sent too often from one address."""

    status = 429
    code = "too_many_attempts"


class TooLarge(TierdeckError):
    """More was sent than the deck takes."""

    status = 413
    code = "body_too_large"


class HeadTooLarge(TooLarge):
    """The headers alone are more than the deck takes."""

    status = 431
    code = "headers_too_large"


class EngineFault(TierdeckError):
    """An engine took the request and then failed it; it may have worked on it."""

    status = 502
    code = "engine_fault"


class LaunchFailed(TierdeckError):
    """An engine cannot be started as asked; retrying without a change will not help."""

    status = 500
    code = "launch_failed"


def in_short(error: BaseException) -> str:
    """Any error in one line: the deck's own sentence, else kind and first line. A database adds whole statements."""
    if isinstance(error, TierdeckError):
        return error.message
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")
