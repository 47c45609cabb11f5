"""Reads where the input of each request came from: the file that an engine's connector keeps beside its memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from engine.residency_place import NotPrivateError, check_private
from engine.served import ServedRequest, served_below

log = structlog.get_logger(__name__)


def read_served(directory: Path) -> Mapping[str, ServedRequest]:
    """By the id that each request was sent with; nothing of an engine that keeps no memory, and so tells nothing.
    `directory` is that of the engine's memory.
    """
    try:
        if not directory.is_dir():
            return {}
        check_private(directory)
        return served_below(directory)
    except (NotPrivateError, OSError) as error:
        log.warning("served_not_read", directory=str(directory), reason=str(error))
        return {}
