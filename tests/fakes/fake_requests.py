"""Requests as a busy door leaves them: every outcome, with and without counts."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.store.queries import requests

#: session, outcome, status, streams, identical, joined, input, output, cached, VRAM, host, queue, first byte, total
ROWS: tuple[tuple[Any, ...], ...] = (
    ("main-agent", "done", 200, True, False, False, 281_344, 412, 280_896, 279_552, 1344, 0.001, 1.21, 19.4),
    ("prompt:9f2c41d07be35a88", "done", 200, False, False, False, 6200, 96, 5376, None, None, 0.002, 4.4, 4.41),
    ("main-agent", "client_closed", 200, True, False, False, None, None, None, None, None, 0.001, None, 300.2),
    ("main-agent", "done", 200, True, True, True, 281_344, 380, 280_896, 0, 280_896, 0.001, 5.72, 22.8),
    ("user_6b1d_account__session_2f0c9a31-77aa-4c5e", "done", 400, False, False, False, *[None] * 5, 0.001, 0.02, 0.02),
    (None, "refused", 503, False, False, False, *[None] * 5, None, None, 0.004),
    ("prompt:03aa5b1e2270cd11", "upstream_closed", 502, True, False, False, *[None] * 5, 12.2, None, 48.1),
    ("prompt:03aa5b1e2270cd11", "done", 200, True, True, False, 512, 64, 0, 0, 0, 31.0, 31.9, 33.0),
)
NAMES = (
    *("session", "outcome", "status", "streams", "is_identical", "is_joined"),
    *("input_tokens", "output_tokens", "cached_tokens", "vram_tokens", "host_tokens"),
    *("queue_seconds", "first_byte_seconds", "total_seconds"),
)


async def seed(session: AsyncSession, now: float) -> None:
    """Write them, the first the newest."""
    rows = [_row(values, now - 40 * age) for age, values in enumerate(ROWS, start=1)]
    await requests.add(session, rows[::-1])


def _row(values: tuple[Any, ...], at: float) -> dict[str, Any]:
    row = dict(zip(NAMES, values, strict=True))
    reached = {"fleet": "main", "engine": "main-1", "profile": "agents", "version": 3}
    found = reached if row["queue_seconds"] is not None else dict.fromkeys(reached)
    return {**row, **found, "at": at, "path": "/v1/chat/completions", "model": "qwen", "sent_bytes": 4096}
