"""Profiles that ship, each with the sentence when to use it. Pure.

Sizes that depend on the machine are left to a share of its memory; a policy that the connector does not
serve yet takes its preset out of the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.profiles.keys import OFFLOADING
from engine.config import EVICTION_POLICIES, SPEC_NAME

GIB: Final = 1 << 30
#: Share of the machine's memory that a preset gives to the host tier.
HOST_SHARE: Final = 0.25

#: What a hybrid model needs so that its states are kept and found again; harmless to others.
KEPT_STATES: Final[Mapping[str, Any]] = {
    "enable-prefix-caching": True,
    "mamba-cache-mode": "align",
    "prefix-cache-retention-interval": 0,
}


@dataclass(frozen=True)
class Preset:
    """A beginning. `label` and `sentence` are templates for the reader's language."""

    key: str
    label: str
    sentence: str
    kv_transfer_config: Mapping[str, Any]
    flags: Mapping[str, Any]


def presets(memory_bytes: int) -> tuple[Preset, ...]:
    """Every preset that the connector serves, for a machine with this much memory."""
    host = max(int(memory_bytes * HOST_SHARE) // GIB, 1) * GIB
    sized = (_few_long, _many_short, _very_short, _one_arena)
    found = (*(make(host) for make in sized), _vram_only(), _careful(host), _tight(host))
    return tuple(preset for preset in found if _policy(preset) in {None, *EVICTION_POLICIES})


def _few_long(host: int) -> Preset:
    label = "Few long sessions"
    sentence = "For a few agents that each keep hundreds of thousands of tokens: memory goes to tokens, states are few."
    return Preset("few-long", label, sentence, _split(host, 262_144), {**KEPT_STATES, "max-model-len": 262_144})


def _many_short(host: int) -> Preset:
    label = "Main sessions with many sub-sessions"
    sentence = "For agents that open many sub-sessions beside a long one: twice the states, so that both come back."
    return Preset("many-short", label, sentence, _split(host, 65_536), {**KEPT_STATES, "max-model-len": 262_144})


def _very_short(host: int) -> Preset:
    label = "Hundreds of short sub-sessions"
    sentence = "When states give out first although there are free token slots: many more states, fewer tokens."
    return Preset("very-short", label, sentence, _split(host, 16_384), {**KEPT_STATES, "max-model-len": 262_144})


def _one_arena(host: int) -> Preset:
    label = "One arena"
    sentence = "When lengths vary or nobody knows them: tokens and states share the memory by what they are worth."
    extra = {"spec_name": SPEC_NAME, "cpu_bytes_to_use": host, "eviction_policy": "value"}
    return Preset("one-arena", label, sentence, _connector(extra), {**KEPT_STATES, "max-model-len": 262_144})


def _vram_only() -> Preset:
    label = "VRAM only"
    sentence = "To compare with, or where host memory is needed for something else: no host tier at all."
    return Preset("vram-only", label, sentence, {}, {**KEPT_STATES, "max-model-len": 131_072})


def _careful(host: int) -> Preset:
    label = "A careful start"
    sentence = "For a model on this machine for the first time: short, and with memory to spare."
    flags = {**KEPT_STATES, "max-model-len": 131_072, "gpu-memory-utilization": 0.90}
    return Preset("careful", label, sentence, _split(host, 65_536), flags)


def _tight(host: int) -> Preset:
    label = "Tight VRAM"
    sentence = "When the weights leave little room: an fp8 cache (compare answers first), fewer sequences at once."
    flags = {
        **KEPT_STATES,
        "max-model-len": 131_072,
        "gpu-memory-utilization": 0.94,
        "kv-cache-dtype": "fp8",
        "max-num-seqs": 16,
        "max-num-batched-tokens": 4096,
    }
    return Preset("tight", label, sentence, _split(host, 65_536), flags)


def _split(host: int, reference_tokens: int) -> dict[str, Any]:
    return _connector(
        {
            "spec_name": SPEC_NAME,
            "cpu_bytes_to_use": host,
            "eviction_policy": "lru",
            "demote_superseded_states": True,
            "mamba_state_slots_reference_tokens": reference_tokens,
        }
    )


def _connector(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {"kv_connector": OFFLOADING, "kv_role": "kv_both", "kv_connector_extra_config": dict(extra)}


def _policy(preset: Preset) -> str | None:
    extra = preset.kv_transfer_config.get("kv_connector_extra_config", {})
    policy: str | None = extra.get("eviction_policy")
    return policy
