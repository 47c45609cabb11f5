"""Remove torchvision, torchaudio and torchcodec where they do not import.

pip resolves them beside the CPU build of torch, but its wheels are made for another build. A
torchvision that fails to import takes every engine start with it (transformers imports it if it is
installed), while a text model needs none of the three. One that imports is kept.

Run by the interpreter whose packages are to be mended: `.venv/bin/python scripts/mend_torch_extras.py`.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

EXTRAS = ("torchvision", "torchaudio", "torchcodec")
IMPORT_LIMIT_SECONDS = 300


def is_installed(package: str) -> bool:
    """True when pip knows the package."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def import_fault(package: str) -> str | None:
    """Why `import package` fails, tried in a process of its own; None when it works."""
    try:
        result = subprocess.run(  # noqa: S603 - an argument list, no shell
            [sys.executable, "-c", f"import {package}"],
            capture_output=True,
            text=True,
            timeout=IMPORT_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the import took more than {IMPORT_LIMIT_SECONDS} s"
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def uninstall(packages: list[str]) -> None:
    """Uninstall `packages` from this interpreter's environment."""
    command = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *packages]
    subprocess.run(command, check=True)  # noqa: S603 - an argument list, no shell


def main() -> int:
    """Mend the environment; 0 when every engine start can import what it needs."""
    broken = []
    for package in filter(is_installed, EXTRAS):
        fault = import_fault(package)
        if fault is not None:
            print(f"{package} does not import with this torch and is removed: {fault}")
            broken.append(package)
    if broken:
        uninstall(broken)
    return 0


if __name__ == "__main__":
    sys.exit(main())
