"""The demo model is built once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.demo import model
from app.demo.model import STAMP, build_demo_model, ensure_demo_model
from app.errors import LaunchFailed

BUILDER = """
import sys, pathlib
directory = pathlib.Path(sys.argv[1])
directory.mkdir()
(directory / "config.json").write_text("{}")
count = pathlib.Path(__file__).with_suffix(".count")
count.write_text(count.read_text() + "x" if count.exists() else "x")
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A builder that needs no torch and counts its runs in a file beside it."""
    script = tmp_path / "builder.py"
    script.write_text(BUILDER)
    monkeypatch.setattr(model, "BUILDER", script)
    return script


def _runs(builder: Path) -> int:
    return len(builder.with_suffix(".count").read_text())


def test_model_is_built_once(builder: Path, tmp_path: Path) -> None:
    """The second call finds the finished model and builds nothing."""
    directory = tmp_path / "data" / "demo"
    assert build_demo_model(directory) == directory
    assert build_demo_model(directory) == directory
    assert _runs(builder) == 1
    assert sorted(path.name for path in directory.parent.iterdir()) == ["demo"]


@pytest.mark.parametrize("stamp", [None, "0\n"], ids=["half-made", "older format"])
def test_what_is_not_finished_is_built_anew(builder: Path, tmp_path: Path, stamp: str | None) -> None:
    """A directory without the stamp, or with that of an older format, is replaced as a whole."""
    directory = tmp_path / "demo"
    directory.mkdir()
    (directory / "left-over").touch()
    if stamp is not None:
        (directory / STAMP).write_text(stamp)
    build_demo_model(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", STAMP]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "exit status 3"),
    ],
)
def test_failed_build_says_why_and_leaves_nothing(builder: Path, tmp_path: Path, script: str, sentence: str) -> None:
    """One sentence with the cause; no directory that looks like a model."""
    builder.write_text(script)
    directory = tmp_path / "data" / "demo"
    with pytest.raises(LaunchFailed) as caught:
        build_demo_model(directory)
    assert caught.value.message == f"The demo model could not be built: {sentence}."
    assert list(directory.parent.iterdir()) == []


async def test_missing_interpreter_names_the_setting(tmp_path: Path) -> None:
    """An interpreter that is not there is the operator's setting, so the sentence names it."""
    with pytest.raises(LaunchFailed, match=r"/no/python cannot be run .* set TIERDECK_ENGINE_PYTHON"):
        await ensure_demo_model(tmp_path / "demo", Path("/no/python"))


def test_command_prints_where_the_model_is(
    builder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m app.demo.model DIRECTORY` ends with the path, or with the sentence and status 1."""
    directory = tmp_path / "demo"
    monkeypatch.setattr(sys, "argv", ["model", str(directory)])
    assert model.main() == 0
    assert capsys.readouterr().out == f"{directory}\n"
    monkeypatch.setattr(sys, "argv", ["model", str(tmp_path / "other"), "--interpreter", "/no/python"])
    assert model.main() == 1
    assert "cannot be run" in capsys.readouterr().err
