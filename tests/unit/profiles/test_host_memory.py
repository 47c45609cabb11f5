"""Host memory that a profile asks for: the total over all ranks, and whether it is there."""

from __future__ import annotations

from typing import Any

import pytest

from app.profiles.context import Box, Claim
from app.profiles.memory import host_memory
from tests.unit.profiles.drafts import GIB, at, checked, config


@pytest.mark.parametrize(
    ("transfer", "flags", "environment", "total", "text"),
    [
        (config({"cpu_bytes_to_use": 53687091200}), {"tensor-parallel-size": 2}, {}, 50, "25 GiB x 2 = 50 GiB"),
        (
            config({"lmcache.max_local_cpu_size": 50}, "LMCacheConnectorV1"),
            {"tensor-parallel-size": 2},
            {},
            100,
            "50 GiB x 2 = 100 GiB",
        ),
        (
            config({"use_layerwise": False}, "LMCacheConnectorV1"),
            {"tensor-parallel-size": 2},
            {"LMCACHE_MAX_LOCAL_CPU_SIZE": "50"},
            100,
            "50 GiB x 2 = 100 GiB",
        ),
        (config(), {"tensor-parallel-size": 4, "data-parallel-size": 2}, {}, 128, "16 GiB x 8 = 128 GiB"),
        (config(), {"data-parallel-size": 8, "data-parallel-size-local": 2}, {}, 128, "64 GiB x 2 = 128 GiB"),
        (
            config({"cpu_bytes_to_use_per_rank": 10 * GIB}, "SimpleCPUOffloadConnector"),
            {"tensor-parallel-size": 2},
            {},
            20,
            "10 GiB x 2 = 20 GiB",
        ),
        ({}, {"kv-offloading-size": 32, "tensor-parallel-size": 2}, {}, 32, "16 GiB x 2 = 32 GiB"),
        (
            config({"connectors": [config({"cpu_bytes_to_use": 8 * GIB})]}, "MultiConnector"),
            {"tensor-parallel-size": 2},
            {},
            8,
            "4 GiB x 2 = 8 GiB",
        ),
    ],
)
def test_total_against_per_rank(
    transfer: dict[str, Any], flags: dict[str, Any], environment: dict[str, Any], total: int, text: str
) -> None:
    """The same word means a total for one connector and a rank's part for another; both are spelled out."""
    (one,) = host_memory(transfer, flags, environment)
    assert one.total_bytes == total * GIB
    assert one.sum_text == text


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (Box(32 * GIB), "32 GiB"),
        (Box(512 * GIB, limit_bytes=48 * GIB), "control group"),
        (Box(512 * GIB, shared_bytes=64 << 20), "/dev/shm"),
        (Box(100 * GIB, claims=(Claim("chat", "big v3", 60 * GIB),)), "chat (big v3) 60 GiB"),
    ],
    ids=["memory", "control group", "shared memory", "other fleets"],
)
def test_memory_that_is_not_there_is_told_with_both_numbers(box: Box, words: str) -> None:
    """The whole machine's need against memory, limit, mount, and what others ask for."""
    finding = at(checked(box=box), "cpu_bytes_to_use", "warning")
    assert words in finding.message
    assert "64 GiB" in finding.message


def test_every_engine_of_the_fleet_takes_its_own() -> None:
    """Two engines of a 64 GiB profile need 128 GiB."""
    found = checked(box=Box(100 * GIB), engines=2)
    assert "128 GiB" in at(found, "cpu_bytes_to_use", "warning").message
