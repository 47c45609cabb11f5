"""The demo model: built once, by the engine's interpreter, and reused for as long as its format holds.

`python -m app.demo.model DIRECTORY` builds it by hand. The deck itself never imports torch, so the
work is done by `scripts/build_demo_model.py` in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from app.config import PROJECT_ROOT
from app.errors import LaunchFailed, TierdeckError

#: Raise it when the builder makes another model: older ones are then built anew.
FORMAT = "1"
STAMP = "tierdeck-demo-model"
BUILDER = PROJECT_ROOT / "scripts" / "build_demo_model.py"
BUILD_LIMIT_SECONDS = 300.0


async def ensure_demo_model(directory: Path, interpreter: Path) -> Path:
    """The finished demo model in `directory`, built with `interpreter` if it is not there yet."""
    return await asyncio.to_thread(build_demo_model, directory, interpreter)


def build_demo_model(directory: Path, interpreter: Path | str = sys.executable) -> Path:
    """As `ensure_demo_model`, blocking. Half a model is never seen in `directory`."""
    directory = directory.absolute()
    if is_finished(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        built = Path(scratch) / "model"
        _run_builder(built, interpreter)
        (built / STAMP).write_text(f"{FORMAT}\n")
        _put_in_place(built, directory, Path(scratch) / "outdated")
    return directory


def is_finished(directory: Path) -> bool:
    """True when `directory` holds a whole demo model of the present format."""
    try:
        return (directory / STAMP).read_text().strip() == FORMAT
    except (FileNotFoundError, NotADirectoryError):
        return False


def _run_builder(directory: Path, interpreter: Path | str) -> None:
    try:
        result = subprocess.run(  # noqa: S603 - an argument list, no shell
            [str(interpreter), str(BUILDER), str(directory)],
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _fault(f"{interpreter} cannot be run ({error.strerror}); set TIERDECK_ENGINE_PYTHON") from error
    except subprocess.TimeoutExpired as error:
        raise _fault(f"it took more than {BUILD_LIMIT_SECONDS:.0f} s") from error
    if result.returncode != 0:
        raise _fault(_last_line(result.stderr) or f"exit status {result.returncode}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _fault(why: str) -> LaunchFailed:
    return LaunchFailed(f"The demo model could not be built: {why}.", code="demo_model_failed")


def _put_in_place(built: Path, directory: Path, outdated: Path) -> None:
    """Rename, so that another deck that builds at the same time sees a whole model or none."""
    if directory.exists():
        directory.rename(outdated)
    try:
        built.rename(directory)
    except OSError:
        if not is_finished(directory):
            raise
    shutil.rmtree(outdated, ignore_errors=True)


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m app.demo.model", description="Build the demo model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--interpreter", type=Path, default=Path(sys.executable), help="has torch and transformers")
    arguments = parser.parse_args()
    try:
        print(build_demo_model(arguments.directory, arguments.interpreter))
    except TierdeckError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
