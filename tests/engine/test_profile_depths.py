"""The engine's own word on a profile: its interpreter asked, and a dry run of the demo engine."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from app.demo.model import build_demo_model
from app.demo.profile import DEMO_FLAGS, DEMO_KV_TRANSFER_CONFIG
from app.profiles.check import Draft, check
from app.profiles.context import Context
from app.profiles.engine_checks import check_connector, check_dry_run, check_engine
from app.services.engine_probe import EngineProbe
from app.supervisor.command import flag_arguments
from tests.unit.profiles.drafts import HYBRID

pytestmark = pytest.mark.engine


def test_the_demo_profile_passes_every_depth(tmp_path: Path) -> None:
    """The interpreter knows each flag, the connector and the spec; the dry run tells what the engine logs at start."""
    model = build_demo_model(tmp_path / "model")
    draft = Draft(json.dumps(DEMO_KV_TRANSFER_CONFIG), json.dumps(DEMO_FLAGS))
    checked = check(draft, Context(platform="cpu"))

    async def ask() -> None:
        probe = EngineProbe(tmp_path / "probes")
        facts = await probe.facts(sys.executable)
        assert facts.unanswered == {}
        assert facts.known.platform == "cpu"
        assert check_engine(checked, facts.flags, facts.connectors, facts.architectures, HYBRID) == []
        wrong = check(Draft("", '{"max-model-length": 1, "kv-cache-dtype": "fp7"}'), Context())
        found = check_engine(wrong, facts.flags, None, None, None)
        assert [one.fixes[0].operations[0].path for one in found] == ["/flags/max-model-len", "/flags/kv-cache-dtype"]
        told = await probe.connector(sys.executable, DEMO_KV_TRANSFER_CONFIG)
        assert check_connector(checked, told, HYBRID) == []
        assert told["hybrid"] is True
        arguments = ["--model", str(model), *flag_arguments(DEMO_FLAGS)]
        arguments += ["--kv-transfer-config", json.dumps(DEMO_KV_TRANSFER_CONFIG)]
        dry = await probe.dry_run(sys.executable, arguments, {})
        assert check_dry_run(dry) == []
        numbers = dry["numbers"]
        assert (numbers["block_size"], numbers["kv_cache_groups"], numbers["kv_blocks"]) == (384, 4, 152)
        assert 54_000 <= numbers["kv_tokens"] < 55_000
        small = [part if part != "60000000" else "1000000" for part in arguments]
        (refused,) = check_dry_run(await probe.dry_run(sys.executable, small, {}))
        assert refused.severity == "error"
        assert "memory" in refused.message

    asyncio.run(ask())
