"""Connectors inside a MultiConnector: each is judged at its own place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.profiles.drafts import GIB, HYBRID, OURS, at, checked, config, document, patched


def joined(*children: Any) -> dict[str, Any]:
    """A MultiConnector around these."""
    return config({"connectors": list(children)}, "MultiConnector")


CHILD = "kv-transfer-config.kv_connector_extra_config.connectors.1"


def test_connectors_that_are_joined_are_judged_one_by_one() -> None:
    """Each at its own place, with the change that mends it there; sizes with units become numbers there too."""
    wrong = config({"cpu_bytes_to_use": "5 GiB", "evict_policy": "lru"}, spec_name="TieringOffloadingSpec")
    transfer = joined(config({"max_local_cpu_size": 5}, "LMCacheConnectorV1"), wrong)
    found = checked(transfer)
    inner = f"{CHILD}.kv_connector_extra_config"
    assert {one.path for one in found.findings if one.severity == "error"} == {
        f"{inner}.evict_policy",
        f"{CHILD}.spec_name",
    }
    assert at(found, f"{inner}.cpu_bytes_to_use", "note")
    assert (
        found.kv_transfer_config["kv_connector_extra_config"]["connectors"][1]["kv_connector_extra_config"][
            "cpu_bytes_to_use"
        ]
        == 5 * GIB
    )
    mended = document(transfer)
    for finding in found.findings:
        if finding.severity == "error":
            mended = patched(mended, finding.fixes[0])
    assert checked(mended["kv_transfer_config"]).is_valid
    allowed = document(transfer)
    for finding in found.findings:
        if finding.severity == "error":
            allowed = patched(allowed, finding.fixes[-1])
    assert checked(transfer, allow=tuple(allowed["allow"])).is_valid


def test_memory_of_connectors_that_are_joined_is_added_up() -> None:
    """Each row with its own field; a small size and a foreign chunk are found inside too."""
    one = config({**OURS, "cpu_bytes_to_use": 4 * GIB, "block_size": 400})
    found = checked(joined(config({"max_local_cpu_size": 5}, "LMCacheConnectorV1"), one), model=HYBRID)
    assert [row.total_bytes for row in found.host_memory] == [5 * GIB, 4 * GIB]
    assert found.host_memory[1].path == f"{CHILD}.kv_connector_extra_config.cpu_bytes_to_use"
    assert "768" in at(found, f"{CHILD}.kv_connector_extra_config.block_size", "error").fixes[0].values["near"]


@pytest.mark.parametrize("children", [[], [1], [None], [[]], [{}], ["OffloadingConnector"], 3, {"a": 1}])
def test_what_is_joined_must_be_connectors(children: Any) -> None:
    """Said at its place."""
    found = checked(config({"connectors": children}, "MultiConnector"))
    assert not found.is_valid
    deep = config()
    for _ in range(40):
        deep = joined(deep)
    assert any("nested too deeply" in one.message for one in checked(deep).findings)
