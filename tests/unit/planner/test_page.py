"""The planner's page: the same plan in words, in both languages, with what was typed kept."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.config import PROJECT_ROOT
from app.planner.plan import Plan, make_plan
from app.planner.running import ToldLayout, layout_findings
from app.planner.wish import read_wish
from app.store.models import FleetRow
from app.web import plan_words
from app.web.i18n import languages
from tests.fakes import fake_deck
from tests.unit.planner.models import DEEPSEEK_V3, MODELS, QWEN35_9B, QWEN36_27B, plain
from tests.unit.profiles.test_check import MALFORMED
from tests.unit.web.conftest import BEARER, HTML, running

FRAGMENT = {"hx-request": "true", "hx-target": "plan-result"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(fake_deck.build(tmp_path / "deck")) as client:
        client.headers.update(BEARER | HTML)
        yield client


async def told(client: httpx.AsyncClient, config: Any, **asked: Any) -> str:
    """The result as a reader sees it: words and numbers, one space between them."""
    text = config if isinstance(config, str) else json.dumps(config)
    answer = await client.post("/planner", data={"config": text, **asked}, headers=FRAGMENT)
    assert answer.status_code == 200, answer.text
    assert "<html" not in answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


async def test_a_hybrid_is_explained_layer_kind_by_layer_kind(client: httpx.AsyncClient) -> None:
    """What grows, what holds a state, and the numbers that it comes from."""
    shown = await told(client, {"num_hidden_layers": 999, "text_config": QWEN36_27B}, length="262144")
    for part in (
        "Each token 64 KiB",
        "A sequence of 262k tok 16.1 GiB the engine reserves 16.3 GiB",
        "16 × full attention 64 KiB per token 2 K and V × 4 KV heads × 256 head size × 2 bytes",
        "48 × gated delta net",
        "Block 784 tok",
        "A prompt shorter than a block (784 tokens) can never hit.",
    ):
        assert part in shown


async def test_a_contradiction_is_a_warning_on_the_page(client: httpx.AsyncClient) -> None:
    """And the list is followed."""
    shown = await told(client, QWEN35_9B | {"full_attention_interval": 2})
    assert "Each token 32 KiB" in shown
    assert "Warning layer_types and full_attention_interval contradict each other; layer_types is used." in shown


async def test_a_latent_is_explained(client: httpx.AsyncClient) -> None:
    """One copy, no factor of two, and nowhere the number of the plain formula."""
    shown = await told(client, DEEPSEEK_V3)
    assert "61 × latent attention (MLA)" in shown and "576 latent + rope × 2 bytes" in shown
    assert "3,997,696" not in shown and "3.81 MiB" not in shown


async def test_a_head_size_that_cannot_be_determined_is_told(client: httpx.AsyncClient) -> None:
    """In place of numbers."""
    shown = await told(client, plain(36, 24, 8, 5120))
    assert "There is no plan yet. Cannot determine head size" in shown and "Each token" not in shown


async def test_both_budgets_are_shown(client: httpx.AsyncClient) -> None:
    """Per worker and host total side by side; the present reference marked; a verdict on the card."""
    asked = {"host_bytes": "50 GiB", "world_size": "2", "reference_tokens": "65536", "session_tokens": "65536"}
    card = {"gpu_bytes": "40 GB", "weights_bytes": "18 GB", "length": "131072", "sequences": "8"}
    shown = await told(client, QWEN35_9B, **asked, **card)
    assert "50 GiB in all, 25 GiB per worker" in shown and "65,536 now" in shown
    assert "Does it fit the card? fits 8 × 131k tok need" in shown


async def test_an_arena_is_shown_by_length_of_sessions(client: httpx.AsyncClient) -> None:
    """There is no reference length to choose then."""
    shown = await told(client, QWEN36_27B, host_bytes="64 GiB", eviction_policy="value", session_tokens="65536")
    assert "How many sessions come back?" in shown and "one arena, no split" in shown
    assert "reference length" not in shown.lower()


async def test_an_error_stands_at_its_field(client: httpx.AsyncClient) -> None:
    """The block names it, and the script puts the sentence there."""
    answer = await client.post("/planner", data={"config": "{}"}, headers=FRAGMENT)
    assert 'data-fault-field="config"' in answer.text
    body = {"config": json.dumps(QWEN35_9B), "host_bytes": "2g"}
    answer = await client.post("/planner", data=body, headers=FRAGMENT)
    assert 'data-fault-field="host_bytes"' in answer.text and "64GiB" in answer.text


async def test_without_scripts_the_whole_page_comes_with_what_was_typed(client: httpx.AsyncClient) -> None:
    """Nothing is lost, and nothing typed is markup."""
    evil = '</textarea><img src=x onerror="alert(1)">'
    answer = await client.post("/planner", data={"config": evil, "host_bytes": '"><b>', "mtp": "true"})
    assert answer.status_code == 200 and "<html" in answer.text
    assert "<img src=x" not in answer.text and "<b>" not in answer.text
    assert "&lt;/textarea&gt;&lt;img" in answer.text and 'id="mtp" name="mtp" value="true" checked' in answer.text


async def test_the_form_is_filled_from_what_runs(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """The fleet's model and its profile; from the editor, the version that is looked at."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN36_27B))
    database = client._transport.app.state.deck.database  # type: ignore[attr-defined]
    async with database.begin() as session:
        (await session.scalars(select(FleetRow))).one().model = str(tmp_path)
    page = (await client.get("/planner")).text
    assert "Filled from fleet main with profile agents v3." in page
    assert 'name="host_bytes" value="64 GiB"' in page and 'name="reference_tokens" value="65536"' in page
    assert "data-slots=" in page and "&#34;current&#34;: 65536" in page
    page = (await client.get("/planner?profile=agents&version=2")).text
    assert 'name="reference_tokens" value="262144"' in page
    assert 'href="/planner?profile=agents&amp;version=3"' in (await client.get("/profiles/agents")).text
    assert (await client.get("/planner?profile=nobody")).status_code == 404


async def test_a_model_that_is_elsewhere_is_said(client: httpx.AsyncClient) -> None:
    """The settings are filled in all the same."""
    page = (await client.get("/planner")).text
    assert "There is no /models/qwen here." in page and 'value="64 GiB"' in page
    assert "Paste a model's config.json." in page


@pytest.mark.parametrize("text", MALFORMED)
async def test_whatever_is_pasted_is_answered(client: httpx.AsyncClient, text: str) -> None:
    """As a model's config and as a profile: a sentence in its place, never a fault of the deck."""
    shown = await told(client, text)
    assert "There is no plan yet." in shown
    for part in ("kv_transfer_config", "flags"):
        draft = {"hx-request": "true", "hx-target": "profile-plan"}
        answer = await client.post("/planner/draft", data={part: text}, headers=draft)
        assert answer.status_code == 200
        assert re.search(r'<p class="empty">[^<]+\.</p>', answer.text), answer.text


def every_finding() -> list[Plan]:
    """Plans that together have everything to say."""
    gpu = {"gpu_bytes": "80GB", "weights_bytes": "1GB", "host_bytes": "64GiB"}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (QWEN35_9B | {"full_attention_interval": 2, "mamba_ssm_dtype": None}, gpu | {"block_tokens": 64}),
        (QWEN36_27B, {"platform": "cpu", "host_bytes": 900_000_000, "max_model_len": 1 << 20}),
        (QWEN36_27B, {"host_bytes": "64GiB", "retention_interval": "every_block"}),
        (plain(4, 8, 8, 512, model_type="gemma3_text", sliding_window=512, num_key_value_heads=None), gpu),
        (plain(4, 8, 2, 512, n_layer=5, quantization_config={"kv_cache_quant_algo": "FP8"}), {}),
        (DEEPSEEK_V3 | {"index_topk": 2048}, {}),
        (QWEN36_27B, {"host_bytes": "64GiB", "retention_interval": "every_block", "eviction_policy": "value"}),
        (QWEN36_27B, {"host_bytes": "64GiB", "retention_interval": 100}),
        (plain(2, 8, 2, 512, layer_types=["chunked_attention", "full_attention"], attention_chunk_size=512), gpu),
        ({**MODELS["Granite-4.0-H-Tiny"].config, "mamba_d_conv": None}, {}),
    ]
    plans = [make_plan(config, read_wish(asked)) for config, asked in cases]
    one = make_plan(QWEN36_27B, read_wish({"host_bytes": "64GiB"}))
    return [*plans, replace(one, findings=layout_findings(one, ToldLayout(800, 1e6, 1e6)))]


def test_findings_have_the_same_words_everywhere() -> None:
    """REST and the command say in English what the page says."""
    for plan in every_finding():
        for found in plan.findings:
            assert plan_words.finding(found, languages()["en"].gettext) == found.message
            assert plan_words.finding(found, languages()["zh"].gettext) != found.message


def test_no_finding_is_without_words() -> None:
    """Every code of the planner is known to the page, and each is seen in the test above but one of the machine's."""
    codes = set()
    for path in [*(PROJECT_ROOT / "app/planner").glob("*.py"), PROJECT_ROOT / "app/services/planning.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            place = {"Finding": 1, "note": 0}.get(getattr(name, "id", getattr(name, "attr", "")))
            if isinstance(node, ast.Call) and place is not None and isinstance(node.args[place], ast.Constant):
                codes.add(node.args[place].value)  # type: ignore[attr-defined]
    seen = {found.code for plan in every_finding() for found in plan.findings}
    assert codes - seen == {"beyond_memory"}
    assert codes == set(plan_words._findings(languages()["en"].gettext))


async def test_every_model_has_a_page_in_both_languages(client: httpx.AsyncClient) -> None:
    """No word is missing, no number is None."""
    for model in MODELS.values():
        body = {"config": json.dumps(model.config), "host_bytes": "64 GiB", "gpu_bytes": "80GB", "weights_bytes": "9GB"}
        for language in ("en", "zh-CN"):
            answer = await client.post("/planner", data=body, headers=FRAGMENT | {"accept-language": language})
            assert answer.status_code == 200
            assert not re.search(r"\bNaN\b|\bNone\b|%\(", re.sub(r"<[^>]+>", " ", answer.text))
            assert "data-fault" not in answer.text
