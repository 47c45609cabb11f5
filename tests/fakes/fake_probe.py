"""Answers like `engine.probe`, at once and without an engine. What it is told to do is in its environment.

FAKE_PROBE: `silent` never answers, `noise` prints no JSON, `gaps` cannot say what its flags are. FAKE_PROBE_LOG
names a file to which each request is added. FAKE_VLLM is its version.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

VALUED = ("max-model-len", "block-size", "kv-cache-memory-bytes", "gpu-memory-utilization", "seed", "max-num-seqs")
SWITCHES = ("enable-prefix-caching", "enforce-eager")


def flags() -> dict[str, Any]:
    """A few of the engine's."""
    known: dict[str, Any] = {name: {"takes_value": True, "choices": None} for name in VALUED}
    known["kv-cache-dtype"] = {"takes_value": True, "choices": ["auto", "fp8"]}
    for name in SWITCHES:
        known[name] = known[f"no-{name}"] = {"takes_value": False, "choices": None}
    known["headless"] = {"takes_value": False, "choices": None}
    return known


def facts(mode: str, versions: dict[str, str]) -> dict[str, Any]:
    """As an interpreter with vLLM 0.32 on a CPU."""
    told = {
        "versions": versions,
        "unanswered": {},
        "flags": flags(),
        "connectors": ["LMCacheConnectorV1", "OffloadingConnector"],
        "specs": ["CPUOffloadingSpec", "TieringOffloadingSpec"],
        "architectures": ["LlamaForCausalLM"],
        "platform": "cpu",
    }
    if mode == "gaps":
        del told["flags"]
        told["unanswered"] = {"flags": "LookupError: it is elsewhere"}
    return told


def connector(config: dict[str, Any]) -> dict[str, Any]:
    """Our connector, or the reason why not."""
    name = config["kv_connector"]
    if name not in {"OffloadingConnector", "LMCacheConnectorV1"}:
        return {"connector": None, "hybrid": None, "spec": None, "error": f"ValueError: Unsupported connector: {name}"}
    is_ours = name == "OffloadingConnector"
    spec = "vllm.v1.kv_offload.tiering.spec.TieringOffloadingSpec" if os.environ.get("FAKE_STOCK") else "engine.spec.X"
    return {"connector": f"m.{name}", "hybrid": is_ours, "spec": spec if is_ours else None, "error": None}


def dry_run(arguments: list[str]) -> dict[str, Any]:
    """Refuses a length of more than a million; else some numbers."""
    steps = [{"name": name, "ok": True, "error": None} for name in ("arguments", "configuration", "kv_sizing")]
    length = arguments[arguments.index("--max-model-len") + 1] if "--max-model-len" in arguments else "1"
    if int(length) > 1_000_000:
        steps[2:] = [{"name": "kv_sizing", "ok": False, "error": "ValueError: KV cache is too small for one request."}]
        return {"steps": steps, "numbers": {"block_size": 384}}
    return {"steps": steps, "numbers": {"block_size": 384, "kv_cache_groups": 4, "kv_tokens": 54138}}


def main() -> None:
    """One request, one answer."""
    request, mode = json.load(sys.stdin), os.environ.get("FAKE_PROBE", "")
    if log := os.environ.get("FAKE_PROBE_LOG"):
        with Path(log).open("a") as file:
            file.write(json.dumps(request) + "\n")
    if mode == "silent":
        time.sleep(60)
    if mode == "noise":
        print("no module named vllm", file=sys.stderr)
        raise SystemExit(1)
    versions = {"python": "3.11.0", "vllm": os.environ.get("FAKE_VLLM", "0.32.0")}
    told: dict[str, Any] = {"versions": versions}
    if request.get("facts"):
        told["facts"] = facts(mode, versions)
    if request.get("connectors"):
        told["connectors"] = [connector(config) for config in request["connectors"]]
    if request.get("dry_run"):
        told["dry_run"] = dry_run(request["dry_run"]["arguments"])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
