"""Rollouts of every kind while clients stream without pause through the door of a real deck process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.integration import cli_rig
from tests.integration.streaming_clients import (
    LIMIT_SECONDS,
    ended,
    post,
    streaming,
    until_more,
    until_serving,
    versions,
)

#: Each token takes a moment, and so does a start: answers are under way whenever something happens.
HABITS = "--fake-token-seconds 0.02 --fake-start-seconds 0.5"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """At a deck of its own, with one engine that serves."""
    with cli_rig.deck(cli_rig.home(tmp_path, HABITS)) as deck:
        headers = {"Authorization": f"Bearer {deck.welcome['token']}"}
        async with httpx.AsyncClient(
            base_url=deck.welcome["url"], headers=headers, timeout=LIMIT_SECONDS, trust_env=False
        ) as found:
            await until_serving(found, 1)
            yield found


async def _version(client: httpx.AsyncClient) -> tuple[str, int]:
    """A second version of the only profile."""
    [profile] = (await client.get("/api/v1/profiles")).json()["profiles"]
    latest = profile["latest"]
    body = {name: latest[name] for name in ("kv_transfer_config", "flags", "environment")}
    body["flags"] = {**body["flags"], "max-num-seqs": 7}
    saved = await post(client, f"/api/v1/profiles/{profile['name']}/versions", **body)
    return profile["name"], saved["number"]


@pytest.mark.parametrize(
    ("strategy", "engines", "fewest"), [("rolling", 2, 1), ("in_place", 1, 0), ("blue_green", 1, 1)]
)
async def test_no_answer_fails_or_is_cut_short(
    client: httpx.AsyncClient, strategy: str, engines: int, fewest: int
) -> None:
    """There and back: rolling and beside always serve; in place, requests wait. The deck counts no failure either."""
    if engines > 1:
        await post(client, "/api/v1/fleets/main/engines")
        await until_serving(client, engines)
    profile, version = await _version(client)
    async with streaming(client, "tierdeck-demo") as seen:
        for wanted in (version, 1):
            asked = {"fleet": "main", "profile": profile, "version": wanted, "strategy": strategy}
            told = await ended(client, (await post(client, "/api/v1/rollouts", **asked))["id"])
            assert told["state"] == "done", told["reason"]
            await until_serving(client, engines)
            assert set((await versions(client)).values()) == {wanted}
            await until_more(client, seen, seen.answers.total())
    assert set(seen.answers) == {"whole"}, seen
    assert seen.fewest_serving == fewest
    page = (await client.get(f"/rollouts/{told['id']}", headers={"accept": "text/html"})).text
    assert 'class="tone-good"' in page
