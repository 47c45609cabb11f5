"""The product's central act on real engines: a profile rolled over two of them, and back, while clients stream.

One deck serves the tests of this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.residency_place import deck_prefix, existing
from tests.engine.deck_rig import MODEL, Deck, running_deck
from tests.integration.streaming_clients import (
    CLIENTS,
    ended,
    post,
    streaming,
    until_more,
    until_serving,
    versions,
)

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """Whose engines leave nothing behind."""
    with running_deck(tmp_path_factory.mktemp("rolling")) as deck:
        yield deck
    assert not list(existing(deck_prefix(deck.data_dir), Path("/dev/shm")))


async def test_a_version_is_rolled_out_and_back_while_clients_stream(deck: Deck) -> None:
    """Two engines, four clients without pause: no answer failed or cut short, one engine always serves."""
    async with deck.client() as client:
        await post(client, "/api/v1/fleets/main/engines")
        await until_serving(client, 2)
        version = await _save_changed(client, mamba_state_slots_reference_tokens=65_536)
        async with streaming(client, MODEL) as seen:
            rollout = await post(client, "/api/v1/rollouts", fleet="main", profile="demo", version=version)
            there = await ended(client, rollout["id"])
            assert (there["state"], there["strategy"]) == ("done", "rolling"), there
            assert await versions(client) == {"main-1": version, "main-2": version}
            await post(client, f"/api/v1/rollouts/{rollout['id']}/rollback")
            back = await ended(client, rollout["id"])
            answers = seen.answers.total()
            assert back["state"] == "rolled_back", back
            assert await versions(client) == {"main-1": 1, "main-2": 1}
            await until_more(client, seen, answers)
    assert set(seen.answers) == {"whole"}, seen
    assert seen.answers["whole"] > 4 * CLIENTS
    assert seen.fewest_serving == 1
    for engine in there["engines"]:
        [canary] = [cell for cell in engine["forward"] if cell["step"] == "canary"]
        assert "came back from host memory" in canary["detail"]


async def _save_changed(client: httpx.AsyncClient, **extra: Any) -> int:
    latest = (await client.get("/api/v1/profiles/demo/versions")).json()["versions"][0]
    latest["kv_transfer_config"]["kv_connector_extra_config"] |= extra
    body = {name: latest[name] for name in ("kv_transfer_config", "flags", "environment")}
    return int((await post(client, "/api/v1/profiles/demo/versions", **body))["number"])
