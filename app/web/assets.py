"""Static files under addresses that change with their content, so that browsers may keep them for good."""

from __future__ import annotations

import hashlib
from functools import cache
from os import stat_result
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.config import PROJECT_ROOT

STATIC_DIR = PROJECT_ROOT / "static"
FOR_GOOD = "public, max-age=31536000, immutable"


@cache
def build() -> str:
    """A short digest over every static file. One for all: scripts import each other by relative address."""
    digest = hashlib.sha256()
    for path in sorted(STATIC_DIR.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(STATIC_DIR)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def static_url(path: str) -> str:
    """The address of a file in static/."""
    return f"/static/{build()}/{path}"


class VersionedFiles(StaticFiles):
    """Serves static/ with and without the digest in front; only the former may be kept."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC_DIR)

    def get_path(self, scope: Scope) -> str:
        """The file's path, the digest taken off."""
        path = super().get_path(scope)
        first, _, rest = path.partition("/")
        scope["tierdeck.versioned"] = first == build()
        return rest if scope["tierdeck.versioned"] else path

    def file_response(self, full_path: Any, stat: stat_result, scope: Scope, status_code: int = 200) -> Response:
        """The file, with how long it may be kept."""
        response = super().file_response(full_path, stat, scope, status_code)
        response.headers["cache-control"] = FOR_GOOD if scope.get("tierdeck.versioned") else "no-cache"
        return response
