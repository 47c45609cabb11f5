"""From profile to command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.supervisor.command import (
    EngineSpec,
    Given,
    Profile,
    engine_argv,
    flag_arguments,
    launch_plan,
    shell_command,
)

DUMP = ("-c", "import json, sys; print(json.dumps(sys.argv[1:]))")


def spec(config: dict[str, Any] | None = None, flags: dict[str, Any] | None = None, **changes: Any) -> EngineSpec:
    profile = Profile("p", 1, 1, config or {}, flags or {}, changes.pop("environment", {}))
    values: dict[str, Any] = {
        "engine_id": 1,
        "name": "one",
        "fleet_id": 1,
        "fleet": "f",
        "model": "/models/m",
        "served_model_name": "m",
        "interpreter": sys.executable,
        "host": "127.0.0.1",
        "port": 8710,
        "profile": profile,
        "entry": DUMP,
    }
    return EngineSpec(**{**values, **changes})


AWKWARD = {"a": "sp ace ' \" $HOME `id` \n 主机 \\ \t {x}", "n": 10737418240, "deep": {"b": [True, None, 1.5]}}


def test_configuration_is_one_argument() -> None:
    """The program receives the stored object, whatever its strings hold."""
    argv = engine_argv(spec(AWKWARD))
    out = subprocess.run(argv, capture_output=True, check=True, text=True).stdout
    received = json.loads(out)
    assert json.loads(received[received.index("--kv-transfer-config") + 1]) == AWKWARD


def test_pasted_command_survives_a_shell() -> None:
    """The command to copy means the same behind `bash -c`."""
    line = shell_command(spec(AWKWARD, {"list": ["a b", "c"]}, environment={"X": "it's $HOME"}))
    out = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True).stdout
    received = json.loads(out)
    assert json.loads(received[received.index("--kv-transfer-config") + 1]) == AWKWARD
    assert received[received.index("--list") + 1 :][:2] == ["a b", "c"]


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.booleans(), max_size=5))
def test_any_object_round_trips(config: dict[str, Any]) -> None:
    """JSON in the argument list maps back to exactly the stored object."""
    argv = engine_argv(spec(config))
    found = argv[argv.index("--kv-transfer-config") + 1] if config else "{}"
    assert json.loads(found) == config


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"quantization": None}, []),
        ({"max-model-len": 32768}, ["--max-model-len", "32768"]),
        ({"gpu-memory-utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"served": ["a", "b c"]}, ["--served", "a", "b c"]),
        ({"hf-overrides": {"a": "b"}}, ["--hf-overrides", '{"a": "b"}']),
        ({"offset": -1}, ["--offset=-1"]),
        ({"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
    ],
)
def test_flags(flags: dict[str, Any], expected: list[str]) -> None:
    """Each kind of value has one form on the command line."""
    assert flag_arguments(flags) == expected


@pytest.mark.parametrize("name", ["--port", "Max", "a b", "", "a;b", "host", "port", "model", "kv-transfer-config"])
def test_refused_flags(name: str) -> None:
    """What is not a flag's name, or belongs to the deck, is refused with its path."""
    with pytest.raises(InvalidInput) as refused:
        flag_arguments({name: 1})
    assert refused.value.path == f"flags.{name}"


def test_environment() -> None:
    """The marker cannot be taken away by a profile; the profile wins over the deck's defaults."""
    one = spec(environment={"TIERDECK_ENGINE_MARKER": "forged", "PYTHONUNBUFFERED": "0"})
    plan = launch_plan(one, "mark", {"PATH": "/bin", "PYTHONPATH": "/x"}, import_root="/root")
    assert plan.environment["TIERDECK_ENGINE_MARKER"] == "mark"
    assert plan.environment["PYTHONUNBUFFERED"] == "0" and plan.environment["PATH"] == "/bin"
    assert plan.environment["PYTHONPATH"] == "/x:/root"
    assert plan.environment["HF_HUB_OFFLINE"] == "1", "a local model needs no hub"
    assert "HF_HUB_OFFLINE" not in launch_plan(spec(model="org/name"), "mark", {}).environment


def test_environment_names() -> None:
    """A variable's name that no process can have is refused."""
    with pytest.raises(InvalidInput):
        launch_plan(spec(environment={"A=B": "1"}), "mark", {})


def test_what_the_fleet_gives_and_the_profile_overrides() -> None:
    """A profile wins over its fleet's flags and variables; the devices are the engine's own, whoever says otherwise."""
    one = spec(
        flags={"max-num-seqs": 4, "enforce-eager": None},
        environment={"A": "profile", "CUDA_VISIBLE_DEVICES": "7"},
        base_flags={"max-num-seqs": 8, "enforce-eager": True, "tensor-parallel-size": 2},
        base_environment={"A": "fleet", "B": "fleet"},
        devices=("2", "3"),
    )
    argv, plan = engine_argv(one), launch_plan(one, "mark", {"CUDA_VISIBLE_DEVICES": "0"})
    assert argv[argv.index("--max-num-seqs") + 1] == "4" and argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert "--enforce-eager" not in argv, "None takes a flag of the fleet away"
    assert (plan.environment["A"], plan.environment["B"]) == ("profile", "fleet")
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_what_was_given_survives_being_kept() -> None:
    """Kept as JSON with a start, it tells after a restart of the deck which fields of the fleet have changed since."""
    one = spec(base_flags={"max-num-seqs": 8}, devices=("0",))
    kept = Given.from_json(json.loads(json.dumps(one.given.as_json())))
    assert kept.differing(one.given) == ()
    changed = spec(base_flags={"max-num-seqs": 4}, devices=("0",), model="/models/other")
    assert kept.differing(changed.given) == ("model", "base_flags")
