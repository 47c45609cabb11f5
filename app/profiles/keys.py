"""Which keys `kv_connector_extra_config` may hold, by connector, spec and engine version. Pure.

The keys of our own spec come from the connector itself; those of vLLM's are read from its source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Literal

from app.profiles.context import Version
from engine.config import SPEC_NAME, UNSERVED, TierConfig

Kind = Literal["any", "bytes", "gib", "whole", "count", "yes", "text", "list", "object"]

#: Keys of vLLM's KVTransferConfig.
TRANSFER_KEYS: Final = (
    "kv_connector",
    "engine_id",
    "kv_buffer_device",
    "kv_role",
    "kv_port",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "enable_permute_local_kv",
    "kv_load_failure_policy",
)
TRANSFER_KINDS: Final[Mapping[str, Kind]] = {
    "kv_connector": "text",
    "engine_id": "text",
    "kv_buffer_device": "text",
    "kv_role": "text",
    "kv_port": "whole",
    "kv_connector_extra_config": "object",
    "kv_connector_module_path": "text",
    "enable_permute_local_kv": "yes",
    "kv_load_failure_policy": "text",
}
#: Keys for which null says the same as leaving them out; vLLM refuses null for every other one.
NULL_KEYS: Final = ("kv_connector", "engine_id", "kv_role", "kv_connector_module_path")
TRANSFER_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "kv_role": ("kv_both", "kv_producer", "kv_consumer"),
    "kv_buffer_device": ("cuda", "cpu", "xpu"),
    "kv_load_failure_policy": ("recompute", "fail"),
}

_LONGEST_NAME: Final = 64
OFFLOADING: Final = "OffloadingConnector"
LMCACHE: Final = "LMCacheConnectorV1"
SIMPLE: Final = "SimpleCPUOffloadConnector"
MULTI: Final = "MultiConnector"
#: Keys whose values are bytes, and may be written with a unit.
SIZE_KEYS: Final = (
    "cpu_bytes_to_use",
    "cpu_bytes_to_use_per_rank",
    "disk_capacity_bytes",
    "sync_load_budget_bytes",
)
#: The spec that the connector takes when none is named.
STOCK_SPEC: Final = "CPUOffloadingSpec"
OUR_KEYS: Final = tuple(item.name for item in fields(TierConfig))
#: Those of them that take true or false.
OUR_SWITCHES: Final = tuple(item.name for item in fields(TierConfig) if item.type == "bool")
#: Those of them that cannot be left out; another one has a default.
NEEDED: Final = ("cpu_bytes_to_use", "spec_name")


@dataclass(frozen=True)
class Key:
    """A key, and the engine versions that know it."""

    name: str
    kind: Kind = "any"
    since: Version = (0, 0)
    until: Version | None = None
    """The first version that does not know it any more."""

    def is_in(self, version: Version) -> bool:
        """True when an engine of this version reads it."""
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True)
class KeyTable:
    """All keys of one connector with one spec. `prefixes` begin keys that are handed on unread."""

    keys: tuple[Key, ...]
    prefixes: tuple[str, ...] = ()


_BYTES_SINCE: Final = (0, 14)
_SHARED: Final = (
    Key("spec_name", "text"),
    Key("spec_module_path", "text"),
    Key("block_size", "count"),
    Key("blocks_per_chunk", "count", since=(0, 20)),
    Key("offload_prompt_only", "yes", since=(0, 20)),
    Key("self_describing_kv_events", "yes", since=(0, 20)),
    Key("canonical_layout", "yes", since=(0, 30)),
)
_STOCK: Final = (
    *_SHARED,
    Key("cpu_bytes_to_use", "bytes", since=_BYTES_SINCE),
    Key("num_cpu_blocks", "whole", until=_BYTES_SINCE),
    Key("eviction_policy", "text"),
    Key("cache_policy_module_path", "text", since=(0, 30)),
    Key("store_threshold", "whole", since=(0, 20)),
    Key("max_tracker_size", "whole", since=(0, 20)),
)
_SPECS: Final[Mapping[str, KeyTable]] = {
    STOCK_SPEC: KeyTable(_STOCK),
    SPEC_NAME: KeyTable(tuple(Key(name) for name in OUR_KEYS)),
}
#: Keys that some spec of the connector reads; what is mistyped is compared with these.
_SPEC_KEYS: Final = tuple(dict.fromkeys([*(key.name for key in _STOCK), *OUR_KEYS, *UNSERVED]))

_CONNECTORS: Final[Mapping[str, KeyTable]] = {
    LMCACHE: KeyTable(
        (
            Key("use_layerwise", "yes"),
            Key("use_native", "yes"),
            Key("skip_last_n_tokens", "whole"),
            Key("discard_partial_chunks", "yes"),
            Key("max_local_cpu_size", "gib"),
            Key("lmcache.max_local_cpu_size", "gib"),
        ),
        ("lmcache.",),
    ),
    "LMCacheMPConnector": KeyTable((), ("lmcache.",)),
    SIMPLE: KeyTable(
        (
            Key("cpu_bytes_to_use", "bytes"),
            Key("cpu_bytes_to_use_per_rank", "bytes"),
            Key("lazy_offload", "yes"),
            Key("kv_offload_backend", "text"),
            Key("disk_path", "text"),
            Key("disk_capacity_bytes", "bytes"),
            Key("disk_buffer_slots", "whole"),
            Key("use_page_cache", "yes"),
        )
    ),
    MULTI: KeyTable((Key("connectors", "list"),)),
    "ExampleConnector": KeyTable((Key("shared_storage_path", "text"),)),
    **dict.fromkeys(
        ("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
        KeyTable(
            (
                Key("backends", "list"),
                Key("bidirectional_kv_xfer", "yes"),
                Key("decoder_kv_blocks_ttl"),
                Key("enforce_handshake_compat", "yes"),
                Key("engine_ttl"),
                Key("kv_lease_duration"),
                Key("kv_recompute_threshold"),
                Key("num_threads", "whole"),
                Key("push_registration_timeout"),
            )
        ),
    ),
}
#: Connectors of vLLM whose own keys are not listed here: they are not judged.
UNLISTED: Final = frozenset(
    {
        "ExampleHiddenStatesConnector",
        "HiSparseConnector",
        "MoRIIOConnector",
        "DecodeBenchConnector",
        "MooncakeConnector",
        "MooncakeStoreConnector",
        "FlexKVConnectorV1",
        "HF3FSKVConnector",
    }
)


#: Every connector of vLLM by name.
CONNECTORS: Final = (OFFLOADING, *_CONNECTORS, *sorted(UNLISTED))
_ENDING: Final = re.compile(r"connector(v1)?$", re.IGNORECASE)


@lru_cache(maxsize=256)
def meant_connector(name: str) -> str:
    """The connector of vLLM whose name was mistyped; the name itself where it is one, or like none.

    What is before the ending counts by itself: `MyConnector` is not `MultiConnector` mistyped.
    """
    if name in CONNECTORS or len(name) > _LONGEST_NAME:
        return name
    stem = _ENDING.sub("", name).lower()
    stems = {_ENDING.sub("", one).lower(): one for one in reversed(CONNECTORS)}
    if stem in stems:
        return stems[stem]
    whole = difflib.get_close_matches(name, CONNECTORS, n=1, cutoff=0.9)
    near = difflib.get_close_matches(stem, stems, n=1, cutoff=0.75)
    return whole[0] if whole else stems[near[0]] if near else name


def as_meant(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the connector that was meant, where its name was mistyped; one with a module is taken as is."""
    name = config.get("kv_connector")
    if not isinstance(name, str) or config.get("kv_connector_module_path") or meant_connector(name) == name:
        return config
    return {**config, "kv_connector": meant_connector(name)}


def table(connector: str, spec: str) -> KeyTable | None:
    """The keys of a connector with this spec; None when the deck does not know them."""
    return _SPECS.get(spec) if connector == OFFLOADING else _CONNECTORS.get(connector)


def shared_offloading_keys() -> tuple[str, ...]:
    """The keys that the offloading connector itself reads, whatever the spec."""
    return tuple(key.name for key in _SHARED)


def related(connector: str) -> tuple[str, ...]:
    """Every key that the connector reads with one spec or another, to find the nearest among."""
    if connector == OFFLOADING:
        return _SPEC_KEYS
    known = _CONNECTORS.get(connector)
    return () if known is None else tuple(key.name for key in known.keys)


def specs_with(name: str) -> tuple[str, ...]:
    """The specs of the offloading connector that read a key."""
    return tuple(spec for spec, known in _SPECS.items() if any(key.name == name for key in known.keys))
