"""`scripts/setup.sh` with stand-ins for Python, pip and the system: what it does when, and when nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.config import PROJECT_ROOT

COPIED = ("pyproject.toml", "constraints.txt", "scripts")

#: The base interpreter: it can only make environments, whose own interpreter writes down its calls.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    "-m venv --clear "*)
        mkdir -p "$4/bin"
        printf '%s\\n' '#!/usr/bin/env bash' 'exec "$STAND_INS/venv-python" "$@"' >"$4/bin/python"
        chmod +x "$4/bin/python" ;;
    --version) echo "Python 3.11.0" ;;
esac
"""
VENV_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
    *"pip install"*"extra-index-url"*) exit "${PIP_WITH_INDEX:-0}" ;;
    *"pip install"*)
        read -r _ _ _ script _ <"/proc/$PPID/stat"
        case "${KILLED:-nothing}" in
            pip) kill -KILL "$$" ;;
            all) kill -KILL "$script" "$PPID" ;;
        esac
        exit "${PIP_PLAIN:-0}" ;;
esac
"""
#: What the script itself calls; nothing else is on its PATH.
TOOLS = ("bash", "cat", "chmod", "cksum", "dirname", "env", "flock", "id", "mkdir", "rm", "uname")


class Machine:
    """A clone with the set-up's files, and a PATH on which only stand-ins and a few tools are."""

    def __init__(self, root: Path) -> None:
        self.clone = root / "clone"
        self.path = root / "path"
        self.calls_file = root / "calls"
        self.clone.mkdir()
        self.path.mkdir()
        for name in COPIED:
            source = PROJECT_ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, self.clone / name)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is not installed"))
        self.program("venv-python", VENV_PYTHON)
        self.program("chromium", "#!/bin/sh\n")

    def program(self, name: str, text: str) -> None:
        """Put a program on the machine's PATH."""
        file = self.path / name
        file.write_text(text)
        file.chmod(0o755)

    def set_up(self, purpose: str = "run", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script as in a pipe: no terminal, no standard input."""
        self.calls_file.write_text("")
        own = {"PATH": str(self.path), "STAND_INS": str(self.path), "CALLS": str(self.calls_file)}
        return subprocess.run(
            [str(self.clone / "scripts/setup.sh"), purpose],
            env={"ENGINE": "cpu", **own, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def installs(self) -> list[str]:
        """What pip was asked to install in the last run: the words after its options."""
        calls = self.calls_file.read_text().splitlines()
        return [call.partition("--progress-bar off ")[2] for call in calls if "pip install" in call]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A fresh machine with a Python and a Chromium."""
    machine = Machine(tmp_path)
    machine.program("python3.11", PYTHON)
    return machine


def test_first_run_installs_and_the_second_does_nothing(machine: Machine) -> None:
    """The stamp makes every further `make run` free of pip."""
    assert machine.set_up().returncode == 0
    assert machine.installs == ["--editable .[cpu] --constraint constraints.txt"]
    assert machine.set_up().returncode == 0
    assert machine.calls_file.read_text() == ""


def test_tests_need_more_than_a_run(machine: Machine) -> None:
    """After `make run`, `make test` adds its packages; after `make test`, `make run` is content."""
    machine.set_up()
    machine.set_up("test")
    assert machine.installs == ["--editable .[cpu,dev] --constraint constraints.txt"]
    machine.set_up("run")
    assert machine.installs == []


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt", "scripts/setup.sh"])
def test_changed_requirements_are_installed(machine: Machine, file: str) -> None:
    """What the environment was made from is part of the stamp."""
    machine.set_up()
    with (machine.clone / file).open("a") as text:
        text.write("\n# changed\n")
    machine.set_up()
    assert len(machine.installs) == 1


def test_gpu_build_where_there_is_a_gpu(machine: Machine) -> None:
    """An NVIDIA driver chooses the GPU build, which brings its own pins."""
    machine.program("nvidia-smi", "#!/bin/sh\n")
    machine.set_up(ENGINE="")
    assert machine.installs == ["--editable .[gpu]"]


def test_own_interpreter_needs_no_engine_here(machine: Machine) -> None:
    """With TIERDECK_ENGINE_PYTHON the deck is installed alone."""
    machine.set_up(ENGINE="", TIERDECK_ENGINE_PYTHON="/opt/vllm/bin/python")
    assert machine.installs == ["--editable . --constraint constraints.txt"]


def test_cpu_wheel_of_torch_is_looked_for_elsewhere(machine: Machine) -> None:
    """Where the default index lacks it, PyTorch's own is asked."""
    assert machine.set_up(PIP_PLAIN="1").returncode == 0
    first, second = machine.installs
    assert first == "--editable .[cpu] --constraint constraints.txt"
    assert second == f"--extra-index-url https://download.pytorch.org/whl/cpu {first}"


def test_failed_install_is_tried_again_the_next_time(machine: Machine) -> None:
    """A failure is told and leaves no stamp; the environment itself is still good."""
    result = machine.set_up(PIP_PLAIN="1", PIP_WITH_INDEX="1")
    assert result.returncode != 0
    assert "pip could not install the packages" in result.stderr
    again = machine.set_up()
    assert again.returncode == 0
    assert "starting over" not in again.stdout
    assert len(machine.installs) == 1


@pytest.mark.parametrize("killed", ["pip", "all"])
def test_killed_install_starts_over(machine: Machine, killed: str) -> None:
    """Nothing that a killed pip left half installed is trusted, whoever was killed with it."""
    assert machine.set_up(KILLED=killed).returncode != 0
    assert len(machine.installs) == 1
    left_over = machine.clone / ".venv/half-installed"
    left_over.touch()
    again = machine.set_up()
    assert "The last set-up was cut off; starting over." in again.stdout
    assert not left_over.exists()
    assert len(machine.installs) == 1


def test_missing_python_is_one_sentence(tmp_path: Path) -> None:
    """A machine without a Python of 3.11 or newer is told so."""
    result = Machine(tmp_path).set_up()
    assert result.returncode == 1
    assert result.stderr.startswith("Set-up stopped: Python 3.11 or newer is needed")


def test_missing_chromium_is_one_sentence(machine: Machine) -> None:
    """Where there is no apt-get, the reader is told what to install."""
    (machine.path / "chromium").unlink()
    result = machine.set_up("test")
    assert result.returncode == 1
    assert result.stderr.startswith("Set-up stopped: the browser tests need Chromium; install it")
    assert machine.set_up("run").returncode == 0


def test_chromium_comes_from_the_systems_packages(machine: Machine) -> None:
    """On Debian, as root or with sudo."""
    (machine.path / "chromium").unlink()
    machine.program("apt-get", '#!/usr/bin/env bash\necho "apt-get $*" >>"$CALLS"\n')
    machine.program("sudo", '#!/usr/bin/env bash\nshift\nexec "$@"\n')
    assert machine.set_up("test").returncode == 0
    calls = [line for line in machine.calls_file.read_text().splitlines() if line.startswith("apt-get")]
    assert calls == [
        "apt-get update -qq",
        "apt-get install -qq -y --no-install-recommends chromium fonts-wqy-zenhei",
    ]


@pytest.mark.parametrize(("source", "is_removed"), [("raise RuntimeError('no nms')", True), ("", False)])
def test_only_what_does_not_import_is_removed(tmp_path: Path, source: str, is_removed: bool) -> None:
    """A torchvision that fails to import goes, one that works stays."""
    (tmp_path / "torchvision.py").write_text(source)
    (tmp_path / "torchvision-1.0.dist-info").mkdir()
    (tmp_path / "torchvision-1.0.dist-info/METADATA").write_text("Name: torchvision\nVersion: 1.0\n")
    (tmp_path / "pip.py").write_text("import sys; print('pip', *sys.argv[1:])")
    result = subprocess.run(
        [sys.executable, str(PROJECT_ROOT / "scripts/mend_torch_extras.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("pip uninstall --quiet --yes torchvision" in result.stdout) is is_removed
    assert ("no nms" in result.stdout) is is_removed
