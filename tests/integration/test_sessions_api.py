"""The sessions in host memory over REST, with what a connector would have written."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from app.services import resident_sessions
from app.supervisor import residentmemory
from app.web.api.sessions import router
from app.web.errors import install_error_handlers
from engine.residency_place import directory_of
from engine.snapshot import SNAPSHOT_NAME, ResidentSession, Snapshot, write_snapshot
from tests.integration.supervisor_rig import Engine, Rig, deck


def client_of(rig: Rig, data_dir: Path) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(router)
    install_error_handlers(app)
    settings = SimpleNamespace(data_dir=data_dir)
    app.state.deck = SimpleNamespace(engines=rig.engines, fleets=rig.fleets, settings=settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://deck")


async def test_sessions_of_the_engines_and_who_goes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Null with a reason before it told anything; then every field, those that go next first."""
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setattr(resident_sessions, "MOUNT", mount)
    async with deck(tmp_path, Engine({})) as rig, client_of(rig, tmp_path) as client:
        silent = (await client.get("/api/v1/sessions")).json()
        assert silent["sessions"] == []
        assert silent["engines"][0]["sessions"] is None
        assert "keeps no host memory" in silent["engines"][0]["reason"]

        memory = directory_of(residentmemory.identifier(tmp_path, "one"), mount)
        place = memory / "engine-0"
        memory.mkdir(mode=0o700)
        place.mkdir(mode=0o700)
        now = time.time()
        rows = (
            ResidentSession("aa", 900, 784, now - 60.0, 1000, False, 1),
            ResidentSession("bb", 784, 784, now - 10.0, 2000, True, 0),
            ResidentSession("cc", 500, 0, now, 3000, False, None),
        )
        write_snapshot(place / SNAPSHOT_NAME, Snapshot(now, 3, rows))
        answer = (await client.get("/api/v1/sessions", params={"engine": "one"})).json()
        assert [one["id"] for one in answer["sessions"]] == ["bb", "aa", "cc"]
        one = answer["sessions"][1]
        assert 60.0 <= one.pop("idle_seconds") < 90.0
        assert one == {
            "engine": "one",
            "fleet": answer["engines"][0]["fleet"],
            "id": "aa",
            "tokens": 900,
            "restorable_tokens": 784,
            "bytes": 1000,
            "superseded": False,
            "victim_rank": 1,
        }
        assert answer["engines"][0]["sessions"] == 3
        assert answer["engines"][0]["restorable_sessions"] == 2
        assert answer["engines"][0]["is_cut"] is False
        assert answer["engines"][0]["reason"] is None
        assert len((await client.get("/api/v1/sessions", params={"limit": 1})).json()["sessions"]) == 1

        write_snapshot(place / SNAPSHOT_NAME, Snapshot(now, 7_000, rows))
        [cut] = (await client.get("/api/v1/sessions")).json()["engines"]
        assert (cut["sessions"], cut["restorable_sessions"], cut["is_cut"]) == (7_000, 2, True), "at least two"
        for wrong in ({"fleet": "none"}, {"engine": "none"}):
            assert (await client.get("/api/v1/sessions", params=wrong)).status_code == 404
        assert (await client.get("/api/v1/sessions", params={"limit": 0})).status_code == 422
