"""Profiles by REST: what field cases ask for, and the verbs on versions."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import fake_deck
from tests.unit.profiles.drafts import GIB, OURS, config
from tests.unit.profiles.test_check import MALFORMED
from tests.unit.web.conftest import BEARER, running

API = "/api/v1/profiles"
AWKWARD = "sp ace ' \" $HOME `id` \n 主机 \\ \t {x}"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Someone signed in, at a deck with one fleet."""
    async with running(fake_deck.build(tmp_path, "busy")) as client:
        client.headers.update(BEARER)
        yield client


async def validated(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"{API}/validate", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def saved(client: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"{API}/{name}/versions", json=body)
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_not_quite_json_is_told_with_its_place(client: httpx.AsyncClient) -> None:
    """A bare unit and a comment are refused with line and column, and with what a click makes of them."""
    for text, column, mended in (
        ('{"cpu_bytes_to_use": 2g}', 23, '{"cpu_bytes_to_use": 2147483648}'),
        (
            '{"cpu_bytes_to_use": "5368709120", # 5GB\n"eviction_policy": "lru"}',
            36,
            '{"cpu_bytes_to_use": "5368709120", \n"eviction_policy": "lru"}',
        ),
    ):
        told = await validated(client, kv_transfer_config=text)
        (finding,) = told["findings"]
        assert (finding["severity"], finding["line"], finding["column"]) == ("error", 1, column)
        assert told["profile"] is None
        edit = finding["fix"]["edit"]
        assert text[: edit["start"]] + edit["text"] + text[edit["end"] :] == mended
        answer = await client.post(f"{API}/new/versions", json={"kv_transfer_config": text})
        assert answer.status_code == 422
        assert answer.json()["error"]["path"] == "kv-transfer-config"


@pytest.mark.parametrize(
    ("written", "stored"), [("5368709120", 5368709120), ("5 GiB", 5368709120), ("5 GB", 5000000000)]
)
async def test_sizes_are_stored_as_integers(client: httpx.AsyncClient, written: str, stored: int) -> None:
    """Whatever was written, the version holds the number, and the answer says so."""
    transfer = config({**OURS, "cpu_bytes_to_use": written})
    told = await validated(client, kv_transfer_config=transfer)
    assert [one["severity"] for one in told["findings"] if str(stored) in one["message"]] == ["note"]
    version = await saved(client, "sized", kv_transfer_config=transfer)
    assert version["kv_transfer_config"]["kv_connector_extra_config"]["cpu_bytes_to_use"] == stored
    again = (await client.get(f"{API}/sized/versions/1")).json()
    assert again["kv_transfer_config"]["kv_connector_extra_config"]["cpu_bytes_to_use"] == stored


async def test_sizes_hardly_meant_are_warned_of_by_number(client: httpx.AsyncClient) -> None:
    """Ten bytes were ten GiB; a petabyte is more than this machine has. Both can still be saved."""
    for size, words in ((10, "10 GiB"), (1 << 50, str(1 << 50))):
        told = await validated(client, kv_transfer_config=config({**OURS, "cpu_bytes_to_use": size}))
        assert told["valid"]
        assert any(words in one["message"] for one in told["findings"] if one["severity"] == "warning")


async def test_total_and_per_rank_stand_side_by_side(client: httpx.AsyncClient) -> None:
    """Each connector counts in its own way; an old block count is flagged for a newer engine."""
    flags = {"tensor-parallel-size": 2}
    a = await validated(client, kv_transfer_config=config({"cpu_bytes_to_use": 53687091200}), flags=flags)
    assert (a["host_memory"][0]["per_rank_bytes"], a["host_total_bytes"]) == (25 * GIB, 50 * GIB)
    b = await validated(
        client, kv_transfer_config=config({"max_local_cpu_size": 50}, "LMCacheConnectorV1"), flags=flags
    )
    assert (b["host_memory"][0]["per_rank_bytes"], b["host_total_bytes"]) == (50 * GIB, 100 * GIB)
    c = config({"num_cpu_blocks": 1000})
    assert not (await validated(client, kv_transfer_config=c))["valid"]
    assert (await validated(client, kv_transfer_config=c, engine_version="0.12"))["valid"]


async def test_unknown_keys_are_listed_with_path_and_nearest(client: httpx.AsyncClient) -> None:
    """Two typos and a key at the wrong level; nothing is saved until they are mended or allowed."""
    extra = {
        "cpu_bytes_to_use": 10737418240,
        "evict_policy": "arc",
        "secondary_tier": [{"type": "fs", "root_dir": "/mnt/kv"}],
    }
    transfer = config(extra, spec_name="TieringOffloadingSpec")
    told = await validated(client, kv_transfer_config=transfer)
    errors = {one["path"]: one["message"] for one in told["findings"] if one["severity"] == "error"}
    inside = "kv-transfer-config.kv_connector_extra_config"
    assert "eviction_policy" in errors[f"{inside}.evict_policy"]
    assert "secondary_tiers" in errors[f"{inside}.secondary_tier"]
    assert "kv_connector_extra_config.spec_name" in errors["kv-transfer-config.spec_name"]
    assert (await client.post(f"{API}/typos/versions", json={"kv_transfer_config": transfer})).status_code == 422
    allowed = {"kv_transfer_config": transfer, "allow": list(errors)}
    assert (await saved(client, "typos", **allowed))["allow"] == list(errors)


async def test_store_threshold_under_the_tiering_spec_is_an_error(client: httpx.AsyncClient) -> None:
    """The engine would refuse it at start."""
    told = await validated(client, kv_transfer_config=config({**OURS, "store_threshold": 2}))
    (finding,) = [one for one in told["findings"] if one["path"].endswith("store_threshold")]
    assert finding["severity"] == "error"
    assert [step["op"] for step in finding["fix"]["patch"]] == ["remove"]


async def test_command_survives_a_shell(client: httpx.AsyncClient) -> None:
    """Pasted into a shell, the program gets exactly the stored object, whatever its texts hold."""
    transfer = config({**OURS}, engine_id=AWKWARD)
    environment = {"NOTE": "it's $HOME `id`\n主机"}
    await saved(client, "awkward", kv_transfer_config=transfer, flags={"seed": 1}, environment=environment)
    line = (await client.get(f"{API}/awkward/versions/1/command")).json()["command"]
    dump = "import json, os, sys; print(json.dumps([sys.argv, os.environ['NOTE']]))"
    prefix, _, rest = line.partition(" -m vllm")
    words = subprocess.run(
        ["bash", "-c", f"{prefix.rpartition(' ')[0]} python3 -c {json.dumps(dump)} -m vllm{rest}"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    arguments, note = json.loads(words)
    assert json.loads(arguments[arguments.index("--kv-transfer-config") + 1]) == transfer
    assert note == environment["NOTE"]


async def test_stored_object_is_what_was_sent(client: httpx.AsyncClient) -> None:
    """Templates, shells and escapes change nothing on the way into the store and out of it."""
    transfer = config({**OURS}, engine_id=AWKWARD)
    await saved(client, "kept", kv_transfer_config=json.dumps(transfer))
    assert (await client.get(f"{API}/kept/versions/1")).json()["kv_transfer_config"] == transfer


async def test_clone_export_and_import(client: httpx.AsyncClient) -> None:
    """The content goes along; a name that is taken is a conflict; a file goes round unchanged."""
    clone = await client.post(f"{API}/agents/versions/2/clone", json={"name": "copy"})
    assert clone.status_code == 201
    source = (await client.get(f"{API}/agents/versions/2")).json()
    for part in ("kv_transfer_config", "flags", "environment", "allow"):
        assert clone.json()[part] == source[part]
    assert (await client.post(f"{API}/agents/versions/2/clone", json={"name": "copy"})).status_code == 409
    exported = await client.get(f"{API}/agents/versions/2/export")
    assert 'filename="agents-v2.json"' in exported.headers["content-disposition"]
    taken = await client.post(f"{API}/import", json={"document": exported.json(), "name": "elsewhere"})
    assert taken.status_code == 201
    again = (await client.get(f"{API}/elsewhere/versions/1/export")).json()
    differs = {"name", "version", "created_at", "author"}
    assert {k: v for k, v in again.items() if k not in differs} == {
        k: v for k, v in exported.json().items() if k not in differs
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "x",
        {},
        {"format": "other"},
        {"format": "tierdeck-profile/1", "flags": []},
        {"format": "tierdeck-profile/1", "name": "ok", "allow": [1]},
        {"format": "tierdeck-profile/1", "name": "a b"},
        {"format": "tierdeck-profile/1", "name": 3},
        {"format": "tierdeck-profile/1", "name": "ok", "kv_transfer_config": {"kv_connector": 1}},
    ],
)
async def test_files_that_are_no_profile_are_refused(client: httpx.AsyncClient, document: Any) -> None:
    """With a sentence and a path, never a fault of the deck."""
    answer = await client.post(f"{API}/import", json={"document": document})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"]


async def test_any_two_versions_are_compared(client: httpx.AsyncClient) -> None:
    """Of one profile or of two, field by field."""
    await client.post(f"{API}/agents/versions/2/clone", json={"name": "copy"})
    same = (await client.get(f"{API}/compare", params={"old": "agents@2", "new": "copy"})).json()
    assert same["changes"] == []
    other = (await client.get(f"{API}/compare", params={"old": "copy@1", "new": "agents@3"})).json()["changes"]
    assert [(one["old"], one["new"]) for one in other] == [(262144, 65536)]
    for wrong in ("agents@99", "nobody"):
        assert (await client.get(f"{API}/compare", params={"old": wrong, "new": "copy"})).status_code == 404
    assert (await client.get(f"{API}/compare", params={"old": "a@b", "new": "copy"})).status_code == 422


async def test_a_version_says_what_it_was_checked_against(client: httpx.AsyncClient) -> None:
    """Engine version, platform and model, with the findings of that time."""
    version = await saved(client, "told", kv_transfer_config=config({**OURS, "cpu_bytes_to_use": 10}))
    (validation,) = version["validations"]
    assert validation["depth"] == 1
    assert validation["against"]["engine_version"] == "0.32"
    assert any("10 GiB" in one["message"] for one in validation["findings"])


async def test_findings_are_told_in_the_reader_s_language(client: httpx.AsyncClient) -> None:
    """The page asks with the browser's language; programs that ask for none get English."""
    body = {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": 10})}
    chinese = await client.post(f"{API}/validate", json=body, headers={"accept-language": "zh-CN"})
    english = await client.post(f"{API}/validate", json=body)
    (said,) = [one["message"] for one in english.json()["findings"] if "10 GiB" in one["message"]]
    assert said.startswith("The host tier is 10 bytes")
    assert said not in chinese.text
    assert "10 GiB" in chinese.text


async def test_unknown_fleets_and_versions_are_told(client: httpx.AsyncClient) -> None:
    """Not silently another one's context."""
    assert (await client.post(f"{API}/validate", json={"fleet": "nobody"})).status_code == 404
    assert (await client.post(f"{API}/validate", json={"engine_version": "new"})).status_code == 422
    assert (await client.get(f"{API}/agents/versions/2/command", params={"fleet": "nobody"})).status_code == 404


@pytest.mark.parametrize("part", ["kv_transfer_config", "flags", "environment"])
async def test_whatever_is_pasted_is_answered(client: httpx.AsyncClient, part: str) -> None:
    """Each malformed text is one error at its part, and saving it is refused with a sentence."""
    for text in MALFORMED:
        told = await validated(client, **{part: text})
        assert [one["severity"] for one in told["findings"]] == ["error"], text
        answer = await client.post(f"{API}/pasted/versions", json={part: text})
        assert answer.status_code == 422, text
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "size", ["9" * 400, "9" * 400 + " GiB", "9" * 30 + "TiB", 10**18, -(10**18), 1e300, [1], {"a": 1}]
)
async def test_sizes_beyond_reason_are_answered(client: httpx.AsyncClient, size: Any) -> None:
    """As sizes and as flags, never a fault of the deck."""
    for body in (
        {"kv_transfer_config": config({**OURS, "cpu_bytes_to_use": size})},
        {"kv_transfer_config": config({"cpu_bytes_to_use": size})},
        {"kv_transfer_config": config({"max_local_cpu_size": size}, "LMCacheConnectorV1")},
        {"kv_transfer_config": config(), "flags": {"kv-cache-memory-bytes": size, "tensor-parallel-size": size}},
        {"kv_transfer_config": config(), "flags": {"kv-offloading-size": size, "gpu-memory-utilization": size}},
    ):
        told = await validated(client, **body)
        assert told["findings"]


async def test_an_answer_comes_while_one_types(client: httpx.AsyncClient) -> None:
    """The whole request, with the database and the machine's numbers, takes less than 50 ms of the processor."""
    took = []
    for number in range(5):
        body = {"kv_transfer_config": json.dumps(config(), indent=2), "flags": {"max-num-seqs": number + 1}}
        began = time.process_time()
        await validated(client, **body)
        took.append(time.process_time() - began)
    assert min(took) < 0.05
