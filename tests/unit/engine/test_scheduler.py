"""With vLLM's own scheduler: whatever happens to a request, nobody reads a block that is not what was computed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from engine import plugin, spec
from engine.served import ServedRequest
from tests.unit.engine.scheduler_rig import BLOCK, FULL, LINEAR, PAGE, SLIDING, Chances, LateCopier, Rig, names

LAYOUTS = {"attention": (FULL,), "windows": (FULL, SLIDING), "hybrid": (FULL, LINEAR)}
SEEDS, STEPS = (8, 9), 300


def tier(policy: str, **more: Any) -> dict[str, Any]:
    """Room for forty blocks of one group."""
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 40 * PAGE, "eviction_policy": policy, **more}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


@pytest.fixture(autouse=True)
def _plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for factory in (OffloadingSpecFactory, KVConnectorFactory):
        monkeypatch.setattr(factory, "_registry", dict(factory._registry))
    plugin.register()


@pytest.mark.parametrize("policy", ["lru", "arc", "value"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nobody_reads_what_was_not_computed(
    layout: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts grow and fork, run at once, are given up and pushed out; caches are emptied at any time; and every
    transfer takes as long as it may.
    """
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        chances = Chances(seed)
        monkeypatch.setattr(spec, "_copier", lambda *_, rng=chances.rng: LateCopier(rng))
        rig = Rig(tmp_path, tier(policy), LAYOUTS[layout])
        happened += live(rig, chances, STEPS)
        served = [one.id for one in rig.served()]
        assert len(served) == len(set(served))
        happened["told"] += len(served)
        rig.close()
    assert happened["asked"] - happened["given up"] <= happened["told"] <= happened["asked"]
    assert all(happened[what] for what in ("asked", "given up", "emptied", "loads", "preempted")), happened


def live(rig: Rig, chances: Chances, steps: int) -> Counter[str]:
    """Random events between steps, then steps until all requests have ended; how often what happened."""
    rng, name, happened = chances.rng, names(), Counter[str]()
    for _ in range(steps):
        if rng.random() < 0.25 and len(rig.running) < 8:
            rig.add(next(name), chances.prompt(), rng.choice((1, 4, 20, 60)))
            happened["asked"] += 1
        if rng.random() < 0.03 and rig.running:
            rig.abort(rng.choice(rig.running))
            happened["given up"] += 1
        if rng.random() < 0.05:
            rig.scheduler.reset_prefix_cache(reset_connector=rng.random() < 0.1)
            happened["emptied"] += 1
        rig.step()
    for _ in range(2_000):
        if not rig.running:
            return happened + Counter({"loads": rig.loads, "preempted": rig.preempted})
        rig.step()
    raise AssertionError(f"still running: {rig.running}")


@pytest.mark.parametrize("policy", ["lru", "value"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_costs_time_alone(
    layout: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `verify` the load that would bring it fails, the request computes and stores its tokens anew, and the
    next one finds them.
    """
    chances = Chances(1)
    # Not on threads: the steps of a model that computes nothing are soon over, its transfers may not have begun.
    monkeypatch.setattr(spec, "_copier", lambda *_: LateCopier(chances.rng))
    rig = Rig(tmp_path, tier(policy, verify=True), LAYOUTS[layout])
    tokens = chances.fresh(5 * BLOCK + 3)
    rig.run("cold", tokens)
    rig.empty()
    rig.slots[17] ^= 1
    rig.run("back", tokens)
    assert (rig.loads, rig.failed_loads) == (1, 1)
    rig.empty()
    rig.run("again", tokens)
    assert (rig.loads, rig.failed_loads) == (2, 1)
    assert [(one.id, one.host_tokens) for one in rig.served()] == [("cold", 0), ("back", 0), ("again", 5 * BLOCK)]
    rig.close()


@pytest.mark.parametrize("policy", ["lru", "value"])
def test_each_request_is_told_where_its_input_came_from(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts of what was cached, of whatever a client asked for, also when it left."""
    chances = Chances(1)
    monkeypatch.setattr(spec, "_copier", lambda *_: LateCopier(chances.rng))
    rig = Rig(tmp_path, tier(policy), LAYOUTS["attention"])
    tokens = chances.fresh(5 * BLOCK + 3)
    rig.run("cold", tokens[: 2 * BLOCK + 3])
    rig.run("grown", tokens)
    rig.empty()
    rig.run("host", tokens[: 3 * BLOCK + 3])
    rig.run("both", tokens)
    rig.add("gone", tokens, 60)
    for _ in range(5):
        rig.step()
    rig.abort("gone")
    rig.step()
    length = len(tokens)
    *ended, gone = rig.served()
    assert ended == [
        ServedRequest("cold", 2 * BLOCK + 3, 0, 0, 1),
        ServedRequest("grown", length, 2 * BLOCK, 0, 1),
        ServedRequest("host", 3 * BLOCK + 3, 0, 3 * BLOCK, 1),
        ServedRequest("both", length, 3 * BLOCK, 2 * BLOCK, 1),
    ]
    assert (gone.id, gone.input_tokens, gone.vram_tokens, gone.host_tokens) == ("gone", length, 5 * BLOCK, 0)
    assert 0 < gone.output_tokens <= 5
    rig.close()
