"""The deck's own health, as probes and load balancers ask for it."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import fake_deck
from tests.unit.web.conftest import running


async def test_ready_is_who_takes_requests(tmp_path: Path) -> None:
    """An engine that is held out of traffic does not make the deck ready, whatever its state; another one does."""
    app = fake_deck.build(tmp_path)
    async with running(app) as client:
        assert (await client.get("/readyz")).json() == {
            "ready": True,
            "engines": {"main-1": "ready", "main-2": "ready"},
            "held": {},
        }
        for name in ("main-1", "main-2"):
            assert (await client.get("/readyz")).status_code == 200
            app.state.deck.engines.hold(name, "Rollout 1 takes it to agents v3.")
        told = await client.get("/readyz")
        assert (told.status_code, told.json()["ready"]) == (503, False)
        assert told.json()["held"]["main-1"] == "Rollout 1 takes it to agents v3."
        app.state.deck.engines.release("main-2")
        assert (await client.get("/readyz")).status_code == 200
