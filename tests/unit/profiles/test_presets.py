"""The profiles that ship."""

from __future__ import annotations

import pytest

from app.profiles.context import Box
from app.profiles.presets import Preset, presets
from engine.config import EVICTION_POLICIES
from tests.unit.profiles.drafts import DENSE, GIB, HYBRID, checked

MEMORY = 64 * GIB
ALL = presets(MEMORY)


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.key)
def test_presets_are_without_error_or_warning(preset: Preset) -> None:
    """On a machine of the size they were made for, for hybrid models and dense ones."""
    for model in (HYBRID, DENSE):
        found = checked(dict(preset.kv_transfer_config), dict(preset.flags), model=model, box=Box(MEMORY))
        told = [one for one in found.findings if one.severity != "note" and one.path != "flags.max-model-len"]
        assert told == []


def test_presets_say_when_to_use_them() -> None:
    """One sentence each, and no two the same."""
    assert len({preset.sentence for preset in ALL}) == len(ALL) == len({preset.key for preset in ALL})
    assert all(preset.sentence.endswith(".") for preset in ALL)


def test_presets_cover_what_operators_meet() -> None:
    """Long sessions, many short ones, one arena where the connector serves it, VRAM alone, careful, tight."""
    wanted = {"few-long", "many-short", "very-short", "vram-only", "careful", "tight"}
    wanted |= {"one-arena"} if "value" in EVICTION_POLICIES else set()
    assert {preset.key for preset in ALL} == wanted


def test_host_tier_follows_the_machine() -> None:
    """A quarter of its memory in whole GiB, and never nothing."""
    for memory, size in ((64 * GIB, 16 * GIB), (3 * GIB, GIB)):
        extra = presets(memory)[0].kv_transfer_config["kv_connector_extra_config"]
        assert extra["cpu_bytes_to_use"] == size
