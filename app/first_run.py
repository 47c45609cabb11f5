"""What a new deck starts with: the demo model, or the operator's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from app.config import Settings
from app.demo.model import ensure_demo_model
from app.demo.profile import DEMO_FLAGS, DEMO_KV_TRANSFER_CONFIG
from app.store.queries.fleets import FirstFleet

GIB = 1 << 30
DEMO_MODEL_NAME = "tierdeck-demo"

#: Share of the machine's memory that the first profile of an own model gives to the host tier.
HOST_TIER_SHARE = 0.25


async def first_fleet(settings: Settings) -> FirstFleet:
    """The fleet that the settings ask for; builds the demo model when no model is configured."""
    if settings.model is None:
        model = await ensure_demo_model(settings.data_dir / "demo-model", settings.engine_python)
        return _fleet(settings, str(model), DEMO_MODEL_NAME, "demo", DEMO_KV_TRANSFER_CONFIG, DEMO_FLAGS)
    config = own_transfer_config(psutil.virtual_memory().total)
    return _fleet(
        settings, settings.model, _short_name(settings.model), "first", config, {"enable-prefix-caching": True}
    )


def own_transfer_config(memory_bytes: int) -> dict[str, Any]:
    """The kv-transfer-config that an own model begins with: a host tier of a quarter of the memory, whole GiB."""
    host_bytes = max(int(memory_bytes * HOST_TIER_SHARE) // GIB, 1) * GIB
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": host_bytes,
            "eviction_policy": "lru",
            "demote_superseded_states": True,
            "mamba_state_slots_reference_tokens": 65536,
        },
    }


def _fleet(
    settings: Settings, model: str, served_as: str, profile: str, config: dict[str, Any], flags: dict[str, Any]
) -> FirstFleet:
    return FirstFleet(
        fleet="main",
        engine="main-1",
        model=model,
        served_model_name=served_as,
        interpreter=str(settings.engine_python),
        port=settings.engine_port,
        profile=profile,
        comment="Made on the first run.",
        kv_transfer_config=dict(config),
        flags=dict(flags),
    )


def _short_name(model: str) -> str:
    return Path(model).name or model
