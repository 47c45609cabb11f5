"""`tierdeck plan`, as it is typed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.config import PROJECT_ROOT
from tests.unit.planner.models import MODELS

KEYS = {
    "bytes_per_token",
    "window_bytes_per_sequence",
    "state_bytes_per_sequence",
    "growing_layers",
    "window_layers",
    "recurrent_layers",
    "block_tokens",
    "findings",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a config.json and two files of weights."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3.6-27B"].config))
    for part in (1, 2):
        with (tmp_path / f"model-{part}.safetensors").open("wb") as file:
            file.truncate(27 << 30)
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments], input=stdin)


def answer(*arguments: str, stdin: str | bytes | None = None) -> Any:
    done = run(*arguments, "--json", stdin=stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_directory_and_its_config_are_the_same(model: Path, name: str) -> None:
    """With the keys that programs rely on; slots only with a host budget."""
    told = answer("--model", str(model / name))
    assert told.keys() >= KEYS and "slots" not in told
    assert told["bytes_per_token"] == 65_536 and told["block_tokens"] == 784
    slots = answer("--model", str(model / name), "--host-bytes", "64GiB")["slots"]
    assert slots[0].keys() >= {
        "reference_tokens",
        "token_slots",
        "state_slots",
        "tokens_held",
        "restorable_sessions",
    }


def test_a_config_may_come_from_standard_input(model: Path) -> None:
    """For a config that was just downloaded."""
    assert answer("--model", "-", stdin=(model / "config.json").read_text())["growing_layers"] == 16


def test_a_byte_order_mark_is_accepted_wherever_a_config_comes_from(model: Path) -> None:
    """Some editors write one."""
    file = model / "config.json"
    marked = b"\xef\xbb\xbf" + file.read_bytes()
    assert answer("--model", "-", stdin=marked)["growing_layers"] == 16
    file.write_bytes(marked)
    assert answer("--model", str(file))["growing_layers"] == 16


@pytest.mark.parametrize(
    "content", ['{"a": 1}'.encode("utf-16"), '{"a": "é"}'.encode("latin-1"), bytes(range(256))], ids=range(3)
)
def test_standard_input_that_is_no_text_is_one_sentence(content: bytes) -> None:
    """As for a file of the same bytes."""
    done = run("--model", "-", "--json", stdin=content)
    assert done.exit_code == 1
    told = json.loads(done.stdout)["error"]
    assert (told["path"], told["message"]) == ("model", "Standard input cannot be read: it is not UTF-8 text.")


def test_weights_are_taken_from_the_directory(model: Path) -> None:
    """Unless they are told."""
    asked = ("--model", str(model), "--gpu-bytes", "80GB", "--world-size", "2")
    assert answer(*asked)["vram"]["weights_bytes"] == 27 << 30
    assert answer(*asked, "--weights-bytes", "30GB")["vram"]["weights_bytes"] == 15 * 10**9


def test_people_get_tables(model: Path) -> None:
    """The explanation, both budgets, and what else there is to know."""
    shown = run(
        *("--model", str(model), "--host-bytes", "64GiB", "--gpu-bytes", "141GB", "--reference-tokens", "65536")
    ).stdout
    for part in ("gated_delta_net", "16 x (2 k and v x 4 kv heads", "65,536 bytes", "<- now", "it fits", "note: "):
        assert part in shown
    assert "None" not in shown and max(len(line) for line in shown.splitlines()) < 200


def test_slots_can_be_planned_without_a_model() -> None:
    """From sizes that a running engine told."""
    told = answer(
        *("--host-bytes", "16GiB", "--world-size", "4", "--block-tokens", "784", "--retention-interval", "0"),
        *("--token-slot-bytes", "10.24MB", "--state-slot-bytes", "29.7MB", "--reference-tokens", "16384"),
    )
    (row,) = [row for row in told["slots"] if row["is_current"]]
    assert (row["token_slots"], row["state_slots"]) == (326, 32)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--host-bytes", "2g", "--model", "{model}"), "host_bytes"),
        (("--model", "{model}/nothing"), "model"),
        (("--model", "/dev/zero"), "model"),
        (("--model", "{model}/model-1.safetensors"), "model"),
        (("--host-bytes", "64GiB"), "model"),
        ((), "host_bytes"),
        (("--model", "{model}", "--world-size", "5"), "world_size"),
        (("--model", "{model}", "--platform", "tpu"), "platform"),
        (("--model", "{model}", "--kv-dtype", "int3"), "kv_dtype"),
        (("--model", "{model}", "--retention-interval", "sometimes"), "retention_interval"),
    ],
)
def test_what_is_wrong_is_one_sentence(model: Path, arguments: tuple[str, ...], path: str) -> None:
    """On standard error with status 1; with --json the error and its path."""
    filled = [argument.format(model=model) for argument in arguments]
    done = run(*filled)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and done.stderr.endswith(".\n")
    assert json.loads(run(*filled, "--json").stdout)["error"]["path"] == path


def test_it_answers_within_a_second_and_without_the_engine(model: Path) -> None:
    """Measured in processor time, since the machine may be busy; torch, vllm and the web stack stay unloaded."""
    program = (
        "import sys\n"
        "for name in ('torch', 'vllm', 'transformers', 'numpy'): sys.modules[name] = None\n"
        "from app.cli.main import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert not {'fastapi', 'sqlalchemy'} & sys.modules.keys()\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = ("plan", "--model", str(model), "--host-bytes", "64GiB", "--json")
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=PROJECT_ROOT, env=os.environ, capture_output=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["slots"]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
