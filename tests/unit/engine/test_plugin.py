"""What the plug-in does to a vLLM process, and what the names then stand for."""

from __future__ import annotations

import builtins
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector as Upstream
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from app.scrape.names import METRICS as SCRAPED
from benchmarks.real_engine import HOST_TIER
from engine import metric_names, plugin
from engine.config import ConfigError
from engine.handover import handing_over, surroundings
from engine.manager import TierManager
from engine.metrics import definitions, zeros
from engine.worker import TierWorker

EXTRA = HOST_TIER["kv_connector_extra_config"]


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffloadingSpecFactory, "_registry", dict(OffloadingSpecFactory._registry))
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))


def test_the_field_reports_names_stand_for_this_connector() -> None:
    """However often a process loads its plug-ins; and other specs keep their meaning."""
    plugin.register()
    plugin.register()
    assert OffloadingSpecFactory.get_spec_cls(EXTRA).__module__ == "engine.spec"
    assert OffloadingSpecFactory.get_spec_cls({}) is CPUOffloadingSpec
    connector = KVConnectorFactory.get_connector_class_by_name("OffloadingConnector")
    assert issubclass(connector, Upstream)
    assert connector.__module__ == "engine.connector"


def test_a_vllm_without_these_factories_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in is loaded in every vLLM process of the environment, also where nobody asked for it."""
    real = builtins.__import__

    def no_factory(name: str, *rest: Any, **more: Any) -> Any:
        if name.endswith("kv_offload.factory"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_factory)
    plugin.register()
    monkeypatch.undo()
    assert OffloadingSpecFactory.get_spec_cls(EXTRA).__module__ != "engine.spec"


def test_a_bad_configuration_is_refused_while_vllm_builds_its_own() -> None:
    """Before the model is loaded; another spec's configuration is none of our business."""
    plugin.register()
    connector = KVConnectorFactory.get_connector_class_by_name("OffloadingConnector")

    def layout(**extra: Any) -> Any:
        transfer = SimpleNamespace(kv_connector_extra_config=extra)
        attention = SimpleNamespace(hisparse_config=None)
        return connector.get_required_kvcache_layout(
            SimpleNamespace(kv_transfer_config=transfer, attention_config=attention)
        )

    with pytest.raises(ConfigError, match="cpu_bytes_to_use"):
        layout(**EXTRA | {"cpu_bytes_to_use": 0})
    assert layout(**EXTRA)
    assert layout(cpu_bytes_to_use=0)


def test_the_classes_are_whole_for_the_installed_vllm() -> None:
    """Nothing abstract is left."""
    for ours, theirs in ((TierManager, OffloadingManager), (TierWorker, OffloadingWorker)):
        assert issubclass(ours, theirs)
        assert not ours.__abstractmethods__


def _attention(**change: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=384, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, **change)


def _chunked_local() -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(384, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, attention_chunk_size=1024)


def _mamba(mode: str = "align") -> MambaSpec:
    shapes, dtypes = ((1024,), (512,)), (torch.bfloat16, torch.float32)
    return MambaSpec(block_size=384, shapes=shapes, dtypes=dtypes, page_size_padded=196_608, mamba_cache_mode=mode)


def _spec(specs: list[Any], extra: dict[str, Any] | None = None, retention: int | None = 0, **change: Any) -> Any:
    plugin.register()
    groups = tuple(OffloadingGroupConfig(384, ("a", "b"), number) for number in range(len(specs)))
    parallel = OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)
    config = OffloadingConfig(
        groups=groups,
        worker_kv_bytes_per_block=0,
        enable_kv_cache_events=False,
        extra_config=EXTRA | (extra or {}),
        engine_id="e",
        model=OffloadingModelConfig("m", "bfloat16"),
        cache=OffloadingCacheConfig(384, 1),
        parallel=replace(parallel, **change),
    )
    caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])
    settings = SimpleNamespace(cache_config=SimpleNamespace(prefix_cache_retention_interval=retention))
    with handing_over(settings, caches):
        return OffloadingSpecFactory.create_spec(config)


def test_groups_are_laid_out_by_what_their_layers_keep() -> None:
    """Linear layers in the state pool without the padding of their pages, attention in the token pool."""
    spec = _spec([_mamba(), _mamba(), _attention()])
    assert isinstance(spec, OffloadingSpec)
    assert [group.pool for group in spec.layout.groups] == ["state", "state", "token"]
    assert spec.layout.state_slot_bytes == 2 * 2 * (1024 * 2 + 512 * 4)
    assert spec.layout.token_slot_bytes == 2 * _attention().page_size_bytes
    assert [group.offset_bytes for group in spec.layout.groups] == [0, 2 * 4096, 0]
    assert spec.get_manager() is spec.get_manager()


def test_every_worker_gets_its_share() -> None:
    """Twice the workers, half the slots: the budget is the total."""
    one, two = _spec([_attention()]), _spec([_attention()], world_size=2, tp_size=2)
    assert two.layout.plan.token_slots == one.layout.plan.token_slots // 2


@pytest.mark.parametrize(
    ("specs", "change", "reason"),
    [
        ([_chunked_local()], {}, "ChunkedLocalAttentionSpec"),
        ([_attention(), _mamba("none")], {}, "--mamba-cache-mode align"),
        ([_attention()], {"pp_size": 2, "world_size": 2}, "pipeline"),
        ([_attention()], {"extra": {"cpu_bytes_to_use": 1000}}, "at least 393216 bytes"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    specs: list[Any], change: dict[str, Any], reason: str
) -> None:
    """At the start, never by serving wrong bytes."""
    with pytest.raises(ConfigError, match=reason):
        _spec(specs, **change)


def test_without_the_plug_in_the_spec_says_so() -> None:
    """VLLM_PLUGINS can leave it out; the spec alone cannot know the cache's layout."""
    with pytest.raises(ConfigError, match="VLLM_PLUGINS"):
        surroundings()


def test_metrics_are_defined_as_named_and_scraped() -> None:
    """One list of names: what the engine publishes is what the deck reads."""
    assert set(definitions()) == {metric.name for metric in metric_names.METRICS}
    for metric in metric_names.METRICS:
        assert definitions()[metric.name].labelnames == metric.labels
    read = {name for scraped in SCRAPED for name in scraped.names if name.startswith("tierdeck_")}
    assert read <= set(metric_names.BY_NAME)


def test_counters_begin_at_zero_in_every_series() -> None:
    """A series that is missing would read as unknown."""
    data = zeros().data["data"]
    assert set(data) == {metric.name for metric in metric_names.METRICS if metric.kind != "gauge"}
    assert data[metric_names.LOOKUP_TOKENS] == {(outcome,): 0 for outcome in metric_names.OUTCOMES}
    assert data[metric_names.IDLE_SECONDS] == {("token",): [], ("state",): []}
