"""The REST side, and that secrets go in and never come out."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import structlog
from fastapi import FastAPI

from app.web.api.alerts import router
from app.web.errors import install_error_handlers
from tests.fakes.receiver import Reply, running_receiver
from tests.integration.alerts_rig import Rig, opened_rig

TOKEN = "tok-5f4dcc3b5aa765d6"
SECRET = "sec-d8578edf8458ce06"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened_rig(tmp_path) as opened:
        yield opened


@pytest.fixture
async def api(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(router)
    install_error_handlers(app)
    app.state.deck = SimpleNamespace(alerts=rig.alerts)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://deck/api/v1") as client:
        yield client


def hook(**fields: object) -> dict[str, object]:
    return {"name": "ops", "channel": "generic", "url": "http://127.0.0.1:9/hook", **fields}


async def test_a_webhook_is_added_changed_and_removed(api: httpx.AsyncClient):
    """What is left out of a change stays; an empty secret removes it."""
    added = await api.post("/webhooks", json=hook(url=f"https://example.org/x/{TOKEN}", secret=SECRET))
    assert added.status_code == 201
    assert added.json() == {
        "id": 1,
        "name": "ops",
        "channel": "generic",
        "url_shown": "https://example.org/…65d6",
        "has_secret": True,
        "keyword": "",
        "enabled": True,
        "last_delivery": None,
    }
    changed = await api.put("/webhooks/1", json={"name": "night", "channel": "feishu", "keyword": "监控"})
    assert (changed.json()["url_shown"], changed.json()["has_secret"]) == ("https://example.org/…65d6", True)
    removed = await api.put("/webhooks/1", json={"name": "night", "channel": "feishu", "secret": ""})
    assert (removed.json()["has_secret"], removed.json()["keyword"]) == (False, "")
    assert [each["name"] for each in (await api.get("/webhooks")).json()["webhooks"]] == ["night"]
    assert (await api.delete("/webhooks/1")).status_code == 204
    assert (await api.get("/webhooks")).json() == {"webhooks": []}


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        (hook(url="ftp://host/x"), 422, "url"),
        (hook(url=None), 422, "url"),
        (hook(channel="fax"), 422, "channel"),
        (hook(name=" "), 422, "name"),
        (hook(name="x" * 65), 422, "name"),
        (hook(channel="slack", secret="s"), 422, "secret"),
        (hook(secret="s" * 300), 422, "secret"),
        (hook(secret="a\0b"), 422, "secret"),
        (hook(url="http://host/a\0b"), 422, "url"),
        (hook(url="http://host/" + "x" * 2048), 422, "url"),
        (hook(keyword="a\nb"), 422, "keyword"),
        (hook(secert="s"), 422, "secert"),
        (hook(name="taken"), 409, "name"),
    ],
)
async def test_a_wrong_webhook_gets_one_sentence_and_the_field(api: httpx.AsyncClient, body, status, path):
    """The one shape of errors."""
    await api.post("/webhooks", json=hook(name="taken"))
    answer = await api.post("/webhooks", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["path"] == path
    assert answer.json()["error"]["message"]
    assert len((await api.get("/webhooks")).json()["webhooks"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/7"),
        ("DELETE", "/webhooks/7"),
        ("POST", "/webhooks/7/test"),
        ("GET", "/webhooks/7/deliveries"),
    ],
)
async def test_an_unknown_webhook_is_not_found(api: httpx.AsyncClient, method: str, path: str):
    """404 in the one shape."""
    answer = await api.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_test_button_tells_what_the_robot_said(api: httpx.AsyncClient):
    """Failure with code and message, and the same in the list of deliveries."""
    with running_receiver() as receiver:
        receiver.replies = [Reply(200, '{"errcode":310000,"errmsg":"keywords not in content"}')]
        await api.post("/webhooks", json=hook(channel="dingtalk", url=receiver.url()))
        tested = (await api.post("/webhooks/1/test")).json()
    assert (tested["state"], tested["answer"], tested["event"]) == ("failed", "310000: keywords not in content", "test")
    assert (await api.get("/webhooks/1/deliveries")).json() == {"deliveries": [tested]}
    assert (await api.get("/webhooks/1")).json()["last_delivery"] == tested


async def test_alerts_and_rules_are_read_and_changed(api: httpx.AsyncClient, rig: Rig):
    """State, changes and parameters as the page shows them."""
    await rig.fire()
    body = (await api.get("/alerts")).json()
    states = [(alert["rule"], alert["fleet"], alert["state"]) for alert in body["alerts"]]
    assert states == [("Host hits near 0", "main", "firing"), ("Engine down", "main", "no_data")]
    assert [flip["new"] for flip in body["flips"]] == ["firing"]
    assert (await api.get("/alerts", params={"fleet": "other"})).json()["alerts"] == []
    rule, _ = (await api.get("/alert-rules")).json()["rules"]
    changed = await api.put(f"/alert-rules/{rule['id']}", json={"parameters": {"hold_seconds": 60}})
    assert changed.json() == rule | {"parameters": rule["parameters"] | {"hold_seconds": 60}}
    wrong = await api.put("/alert-rules/1", json={"parameters": {"hold_seconds": "long"}})
    assert wrong.json()["error"]["path"] == "parameters.hold_seconds"
    assert (await api.put("/alert-rules/9", json={"enabled": False})).status_code == 404


async def test_secrets_go_in_and_never_come_out(api: httpx.AsyncClient, rig: Rig, caplog):
    """Not in an answer, not in an error, not in a log of any library, even when the receiver echoes them."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    async def ask(method: str, path: str, body: object = None) -> None:
        said.append((await api.request(method, path, json=body)).text)

    with running_receiver() as receiver, structlog.testing.capture_logs() as logged:
        url = receiver.url(f"/robot/{TOKEN}?key={TOKEN}")
        receiver.replies = [
            Reply(500, f"no {TOKEN} at {url}, {SECRET}"),
            Reply(302, "", {"Location": url}),
            Reply(200, TOKEN),
        ]
        await ask("POST", "/webhooks", hook(url=url, secret=SECRET))
        await ask("POST", "/webhooks", hook(url=url, secret=SECRET))
        await ask("POST", "/webhooks", hook(name="n2", url=f"ftp://{TOKEN}", secret=SECRET))
        await ask("POST", "/webhooks", {"url": url, "secret": SECRET})
        await ask("POST", "/webhooks", hook(name="n3", url=[url], secret={"a": SECRET}))
        await ask("POST", "/webhooks", hook(name="n4", url=f"http://127.0.0.1:9/{TOKEN}", secret=SECRET))
        await ask(
            "POST", "/webhooks", hook(name="n5", channel="dingtalk", url=f"http://no.invalid/{TOKEN}", secret=SECRET)
        )
        for webhook_id in (1, 1, 1, 2, 3):
            await ask("POST", f"/webhooks/{webhook_id}/test")
        await rig.fire()
        await rig.delivery.send_due()
        for path in ("/webhooks", "/webhooks/1", "/webhooks/1/deliveries", "/webhooks/2/deliveries", "/alerts"):
            await ask("GET", path)
        await ask("PUT", "/webhooks/1", hook(name="n4", url=url, secret=SECRET))
        await ask("DELETE", "/webhooks/1")
    everything = "\n".join([*said, json.dumps(logged, default=repr), caplog.text])
    assert "•••" in everything
    assert TOKEN not in everything
    assert SECRET not in everything


async def test_a_database_error_does_not_print_what_was_stored(rig: Rig):
    """Tracebacks of failed statements end in logs."""
    from app.store.models import WebhookRow

    with pytest.raises(Exception) as raised:
        async with rig.database.begin() as session:
            session.add(WebhookRow(id=1, name="a", channel="generic", url=TOKEN, secret=SECRET, created_at=0.0))
            session.add(WebhookRow(id=2, name="a", channel="generic", url=TOKEN, secret=SECRET, created_at=0.0))
    assert TOKEN not in str(raised.value)
    assert SECRET not in str(raised.value)
