"""Errors in the shape that the caller understands, never with a traceback."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest

from app.derive.profile_text import as_text
from app.errors import Unavailable
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

JSON = BEARER | {"accept": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "field"),
    [
        ("GET", "/api/v1/nothing", None, 404, "not_found", None),
        ("DELETE", "/api/v1/engines", None, 405, "method_not_allowed", None),
        ("GET", "/api/v1/engines/no-such", None, 404, "not_found", "name"),
        ("GET", "/api/v1/series", None, 422, "invalid_input", "chart"),
        ("GET", "/api/v1/token-origin?window=never", None, 422, "invalid_input", "window"),
        ("POST", "/api/v1/profiles/validate", "{", 422, "invalid_json", None),
        ("POST", "/api/v1/rollouts", '{"fleet": "main"}', 422, "invalid_input", "profile"),
        ("POST", "/api/v1/profiles/validate", '{"kv_transfer_config": 3}', 422, "invalid_input", "kv_transfer_config"),
        ("POST", "/api/v1/profiles/validate", '{"allow": ["a", 3]}', 422, "invalid_input", "allow.1"),
        ("POST", "/api/v1/plan", '{"host_bytes": []}', 422, "invalid_input", "host_bytes"),
        ("POST", "/api/v1/plan", '{"host_byte": 1}', 422, "invalid_input", "host_byte"),
        ("POST", "/api/v1/profiles/validate", r'{"keep_with": "\ud800@1"}', 422, "invalid_input", "keep_with"),
        ("POST", "/api/v1/rollouts", r'{"profile": "\udfff"}', 422, "invalid_input", "profile"),
        ("POST", "/api/v1/profiles/demo/versions/1/clone", r'{"\ud800": 1}', 422, "invalid_input", None),
        ("PUT", "/api/v1/alert-rules/1", r'{"parameters": {"\ud800": 1}}', 422, "invalid_input", "parameters"),
        ("POST", "/api/v1/webhooks", r'{"name": "a\u0000b"}', 422, "invalid_input", "name"),
        ("PUT", "/api/v1/alert-rules/1", r'{"parameters": {"\\\u0000": 1}}', 422, "invalid_input", "parameters"),
        ("POST", "/api/v1/rollouts", r'{"fleet": "a text about \\u0000"}', 422, "invalid_input", "profile"),
        ("GET", "/api/v1/profiles/a%00/versions", None, 422, "invalid_input", "name"),
        ("GET", "/api/v1/requests?session=%00", None, 422, "invalid_input", "session"),
        ("PUT", "/api/v1/alert-rules/1", '{"parameters": {"hold_seconds": "x"}}', 422, "invalid_input", None),
        ("PUT", "/api/v1/alert-rules/1", '{"parameters": {"hold_seconds": NaN}}', 422, "invalid_input", None),
        ("PUT", "/api/v1/alert-rules/1", '{"parameters": {"hold_seconds": 1e999}}', 422, "invalid_input", None),
    ],
)
async def test_rest_has_one_shape(
    tmp_path: Path, method: str, path: str, body: str | None, status: int, code: str, field: str | None
) -> None:
    """Code, sentence, path: also for what the framework itself refuses."""
    async with running(fake_deck.build(tmp_path)) as client:
        headers = JSON | {"content-type": "application/json"}
        answer = await client.request(method, path, content=body, headers=headers)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "path"}
    assert error["code"] == code
    assert error["message"].endswith((".", "d"))
    if field is not None:
        assert error["path"] == field


TWICE = {
    "/api/v1/profiles/a/versions": ('{"flags": {"block-size": 16, "block-size": 32}}', "flags.block-size"),
    "/api/v1/profiles/import": ('{"document": {"flags": {"a": [{"b": 1, "b": 1}]}}}', "document.flags.a.0.b"),
    "/api/v1/profiles/validate": ('{"flags": {}, "flags": {"x": {"y": 1, "y": 2}}}', "flags"),
    "/api/v1/profiles/plan": ('{"environment": {"A": "1", "A": "2"}}', "environment.A"),
    "/api/v1/plan": ('{"config": {"text_config": {"head_dim": 1, "head_dim": 2}}}', "config.text_config.head_dim"),
    "/api/v1/rollouts": ('{"fleet": "main", "profile": "a", "fleet": "b"}', "fleet"),
    "/api/v1/webhooks": ('{"name": "a", "\\u006eame": "b"}', "name"),
}


@pytest.mark.parametrize("address", TWICE)
async def test_a_key_written_twice_is_refused_wherever_it_stands(tmp_path: Path, address: str) -> None:
    """A reader would keep the last and say nothing; the path of the key is told."""
    body, path = TWICE[address]
    async with running(fake_deck.build(tmp_path)) as client:
        answer = await client.post(address, content=body, headers=JSON | {"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["path"]) == (422, path)
    assert error["message"] == f'"{path}" is written twice; keep one.'


UNREADABLE: dict[str, tuple[str | bytes, str]] = {
    "deep": ('{"config": ' + '{"a":' * 3000 + "1" + "}" * 3001, "nested too deeply"),
    "deep lists": ('{"config": {"a": ' + "[" * 400 + "]" * 400 + "}}", "nested too deeply"),
    "digits": ('{"config": {"num_hidden_layers": ' + "9" * 5000 + "}}", "too many digits"),
    "not text": (b'{"config": "\xff"}', "UTF-8"),
}


@pytest.mark.parametrize("address", ["/api/v1/profiles/validate", "/api/v1/profiles/import", "/api/v1/webhooks"])
async def test_no_depth_of_a_body_is_the_deck_s_fault(tmp_path: Path, address: str) -> None:
    """Below and above what the interpreter itself takes."""
    async with running(fake_deck.build(tmp_path)) as client:
        for depth in (190, 300, 700, 900, 950, 980, 1000, 5000):
            nested = '{"a":' * depth + "1" + "}" * depth
            body = f'{{"name": "a", "kv_transfer_config": {nested}, "document": {{"format": "x", "flags": {nested}}}}}'
            answer = await client.post(address, content=body, headers=JSON | {"content-type": "application/json"})
            assert answer.status_code in ((200, 422) if depth < 200 else (422,)), (depth, answer.text)


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_body_that_cannot_be_read_says_why(tmp_path: Path, name: str) -> None:
    """Also where the framework itself gives up without a reason; in the reader's language."""
    body, why = UNREADABLE[name]
    async with running(fake_deck.build(tmp_path)) as client:
        headers = JSON | {"content-type": "application/json"}
        answer = await client.post("/api/v1/plan", content=body, headers=headers)
        chinese = await client.post("/api/v1/plan", content=body, headers=headers | {"accept-language": "zh"})
    assert answer.status_code == 422 and why in answer.json()["error"]["message"]
    assert not chinese.json()["error"]["message"].isascii()


async def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """In a body, and before a config that was pasted; places of what is wrong behind it stay the same."""
    async with running(fake_deck.build(tmp_path)) as client:
        for body in ({"kv_transfer_config": "\ufeff{}", "flags": '\ufeff{"block-size": 16}'}, {"flags": "\ufeff"}):
            content = b"\xef\xbb\xbf" + json.dumps(body).encode()
            headers = JSON | {"content-type": "application/json"}
            told = (await client.post("/api/v1/profiles/validate", content=content, headers=headers)).json()
            assert told["valid"] is True, told
        wrong = {"kv_transfer_config": "\ufeff{,}"}
        told = (await client.post("/api/v1/profiles/validate", json=wrong, headers=JSON)).json()
    assert told["findings"][0]["column"] == 3


@pytest.mark.parametrize(
    ("address", "status", "english", "chinese"),
    [
        ("/nothing-here", 404, "There is nothing at /nothing-here.", "/nothing-here 处没有内容。"),
        ("/profiles/agents?version=abc", 422, "version must be a whole number.", "version 必须是整数。"),
        ("/profiles/agents?version=0", 422, "version must be 1 or more.", "version 必须不小于 1。"),
        ("/?fleet=nobody", 404, "There is no fleet named", "没有名为“nobody”的机群。"),
        ("/new-profile?preset=zzz", 404, "There is no preset named", "没有名为“zzz”的预设"),
    ],
)
async def test_a_wrong_address_is_told_in_the_reader_s_language(
    tmp_path: Path, address: str, status: int, english: str, chinese: str
) -> None:
    """On pages."""
    async with running(fake_deck.build(tmp_path)) as client:
        for language, sentence in (("en", english), ("zh", chinese)):
            answer = await client.get(address, headers=BEARER | HTML | {"accept-language": language})
            assert answer.status_code == status
            assert sentence in answer.text


async def test_a_preset_in_the_address_fills_the_editor(tmp_path: Path) -> None:
    """Any that the interface lists."""
    async with running(fake_deck.build(tmp_path)) as client:
        empty = unescape((await client.get("/new-profile", headers=BEARER | HTML)).text)
        for preset in (await client.get("/api/v1/profiles/presets", headers=JSON)).json()["presets"]:
            page = unescape((await client.get(f"/new-profile?preset={preset['key']}", headers=BEARER | HTML)).text)
            filled = [as_text(preset[part]) for part in ("kv_transfer_config", "flags") if preset[part]]
            assert filled and all(text in page and text not in empty for text in filled), preset["key"]


async def test_errors_are_told_in_the_reader_s_language(tmp_path: Path) -> None:
    """By the browser's language; a program that asks for none gets English. Kinds of a field are told at once."""
    async with running(fake_deck.build(tmp_path)) as client:
        wrong = {"kv_transfer_config": 3}
        english = await client.post("/api/v1/profiles/validate", json=wrong, headers=JSON)
        missing = await client.get("/api/v1/profiles/nobody/versions", headers=JSON | {"accept-language": "zh-CN"})
        page = await client.get("/profiles/nobody", headers=BEARER | HTML | {"accept-language": "zh-CN"})
    assert english.json()["error"]["message"] == "kv_transfer_config must be text, or an object."
    for text in (missing.json()["error"]["message"], page.text):
        assert "没有名为“nobody”的配置" in text


@pytest.mark.parametrize(
    ("address", "body", "english", "chinese"),
    [
        ("profiles/validate", {"flags": 3}, "flags must be text, or an object.", "flags 必须是文本，或对象。"),
        ("profiles/validate", {"allow": 3}, "allow must be a list.", "allow 必须是列表。"),
        ("profiles/validate", {"allow": ["a", 3]}, "allow.1 must be text.", "allow.1 必须是文本。"),
        ("profiles/validate", {"depth": []}, "depth must be a whole number.", "depth 必须是整数。"),
        ("profiles/validate", {"depth": 9}, "depth must be 3 or less.", "depth 必须不大于 3。"),
        (
            "profiles/validate",
            {"allow": ["a"] * 201},
            "allow is too long: at most 200.",
            "allow 过长：最多 200。",
        ),
        ("profiles/validate", [], "The body must be an object.", "请求正文 必须是对象。"),
        ("plan", {"mtp": []}, "mtp must be true or false, or text.", "mtp 必须是true 或 false，或文本。"),
        ("plan", {"host_bytes": []}, "host_bytes must be a number, or text.", "host_bytes 必须是数字，或文本。"),
    ],
)
async def test_a_wrong_field_is_told_in_the_reader_s_language(
    tmp_path: Path, address: str, body: object, english: str, chinese: str
) -> None:
    """A page shows what REST says of its form: the field, what it may be, and the limit."""
    async with running(fake_deck.build(tmp_path)) as client:
        for language, sentence in (("en", english), ("zh", chinese)):
            headers = JSON | {"accept-language": language}
            answer = await client.post(f"/api/v1/{address}", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["message"]) == (422, sentence)


async def test_door_s_errors_look_like_openai_s(tmp_path: Path) -> None:
    """Clients of the engines read `error.message`, `type` and `code`."""
    application = fake_deck.build(tmp_path)

    @application.get("/v1-test")
    async def fail() -> None:
        raise Unavailable("Later.", retry_after_seconds=7)

    async with running(application) as client:
        refused = await client.get("/v1/models", headers={"origin": "https://evil.example"})
        later = await client.get("/v1-test", headers=JSON)
    assert refused.status_code == 403
    assert refused.json()["error"].keys() == {"message", "type", "code", "param"}
    assert (later.status_code, later.headers["retry-after"]) == (503, "7")


@pytest.mark.parametrize("headers", [HTML, {"accept": "application/json"}])
async def test_unexpected_errors_tell_a_reference_and_no_more(tmp_path: Path, headers: dict[str, str]) -> None:
    """No traceback, no text of the exception: it may hold what nobody else should read."""
    application = fake_deck.build(tmp_path)

    @application.get("/broken")
    async def fail() -> None:
        raise RuntimeError("password=hunter2")

    async with running(application) as client:
        answer = await client.get("/broken", headers=BEARER | headers)
    assert answer.status_code == 500
    assert "Its log has it under" in answer.text
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
