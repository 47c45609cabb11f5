"""The walls of the house: who may import whom, and how large a file may grow."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

from tests.unit.source_tree import ROOT, Module, is_within, read_modules, third_party

APP = read_modules("app")
ENGINE = read_modules("engine")
OURS = APP | ENGINE

#: Never in the deck's process: they cost seconds and gigabytes, and may not be installed there.
ENGINE_ONLY = frozenset({"torch", "vllm", "transformers", "tokenizers", "safetensors", "numpy"})
#: What the engine half may import, the standard library and itself apart.
ENGINE_MAY_IMPORT = frozenset({"numpy", "torch", "vllm"})
#: The modules of the engine half that the deck uses too. They import the standard library alone.
SHARED = frozenset(
    {
        "engine.sizing",
        "engine.metric_names",
        "engine.config",
        "engine.residency_place",
        "engine.page_arena",
        "engine.served",
        "engine.snapshot",
    }
)
#: Modules that everything may import because they import nothing of ours.
LEAVES = ("app.errors", "app.supervisor.states", "engine.metric_names")
#: Who may import the web layer: the composition root, and the command line that starts it.
WEB_MAY_BE_IMPORTED_BY = ("app.web", "app.main", "app.cli")
#: Who may look at the process environment, and why.
ENVIRONMENT_READERS = {
    "app.config": "the settings",
    "engine.device_cache": "the marker that the deck proves itself with",
    "engine.residency": "the name the deck gives its memory, and the seed of block hashes",
}
FORBIDDEN_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"})
#: vLLM's own word for this part.
ALLOWED_NAMES = frozenset({"engine.manager"})
MOST_LINES = 450


def offenders(modules: dict[str, Module], is_wrong: object) -> list[str]:
    """`file imports name` for each import of `modules` that is wrong."""
    assert callable(is_wrong)
    return sorted(
        f"{module.where} imports {name}"
        for module in modules.values()
        for name in module.imports
        if is_wrong(module, name)
    )


def test_source_tree_is_read() -> None:
    """The rules below look at the real tree, and see imports in every form."""
    assert {"app.config", "app.store.models", "engine.sizing"} <= OURS.keys()
    assert "app.config.PROJECT_ROOT" in APP["app.store.database"].imports


def test_engine_half_never_imports_the_deck() -> None:
    """`engine/` runs inside vLLM's processes, where the deck may not be installed."""
    assert offenders(ENGINE, lambda _, name: is_within(name, "app")) == []


def test_engine_half_imports_only_numpy_torch_and_vllm() -> None:
    """Whatever else it imported would have to be in every engine's environment."""
    wrong = {module.where: third_party(module.top_level_imports) - ENGINE_MAY_IMPORT for module in ENGINE.values()}
    assert {where: names for where, names in wrong.items() if names} == {}


def test_deck_imports_nothing_of_the_engine_but_the_shared_modules() -> None:
    """The deck uses the engine half's sums and names, never its machinery."""

    def is_wrong(_: Module, name: str) -> bool:
        return is_within(name, "engine") and name != "engine" and not any(is_within(name, one) for one in SHARED)

    assert offenders(APP, is_wrong) == []


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_modules_need_the_standard_library_alone(name: str) -> None:
    """So that the deck starts without torch and vllm: followed through everything they import."""
    waiting, seen = [name], set()
    while waiting:
        module = ENGINE[waiting.pop()]
        seen.add(module.name)
        assert third_party(module.top_level_imports) == set(), module.where
        reached = {one for one in ENGINE if one in module.imports} | {module.name.rpartition(".")[0]} - {""}
        waiting += sorted(reached - seen)


def test_deck_never_imports_what_only_the_engine_has() -> None:
    """`app/` runs where torch and vllm are not installed."""
    assert offenders(APP, lambda _, name: name.split(".")[0] in ENGINE_ONLY) == []


def test_deck_runs_without_torch_and_vllm() -> None:
    """Every module of the deck can be imported where torch, vllm and transformers do not exist."""
    modules = sorted(name for name in APP if not name.endswith("__main__"))
    program = (
        "import importlib, sys\n"
        f"for name in {sorted(ENGINE_ONLY)!r}: sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_deck_imports_only_declared_dependencies() -> None:
    """What comes along with vllm by chance is missing where the deck runs alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_canonical(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in project["dependencies"]}
    distributions = importlib.metadata.packages_distributions()
    undeclared = {
        f"{module.where} imports {name}"
        for module in APP.values()
        for name in third_party(module.top_level_imports) - {""}
        if not declared & ({_canonical(one) for one in distributions.get(name, [])} | _comes_with(name))
    }
    assert sorted(undeclared) == []


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _comes_with(name: str) -> set[str]:
    """Packages that exist only as part of a declared one."""
    parts = {"starlette": {"fastapi"}, "click": {"typer"}, "markupsafe": {"jinja2"}}
    return parts.get(name, set())


def test_nothing_imports_the_web_layer() -> None:
    """Data flows towards the web layer, so that pages can change without anything below noticing."""

    def is_wrong(module: Module, name: str) -> bool:
        return is_within(name, "app.web") and not any(is_within(module.name, one) for one in WEB_MAY_BE_IMPORTED_BY)

    assert offenders(APP, is_wrong) == []


@pytest.mark.parametrize("name", LEAVES)
def test_leaves_import_nothing_of_ours(name: str) -> None:
    """Errors, states and names may be used by every layer only while they depend on none."""
    own = sorted(one for one in OURS[name].imports if one.split(".")[0] in {"app", "engine"})
    assert own == []


def test_only_the_settings_read_the_environment() -> None:
    """One reader: what can be set is what `app/config.py` lists."""
    readers = {module.name for module in OURS.values() if _reads_environment(module)}
    assert readers - ENVIRONMENT_READERS.keys() == set()


def _reads_environment(module: Module) -> bool:
    if module.imports & {"os.environ", "os.getenv", "os.environb"}:
        return True
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv", "os.environb"}
        for node in ast.walk(module.tree)
    )


def test_no_module_is_called_after_nothing() -> None:
    """A module's name says what is in it."""
    assert {name for name in OURS if name.rpartition(".")[2] in FORBIDDEN_NAMES and name not in ALLOWED_NAMES} == set()


def test_files_stay_short() -> None:
    """A longer file holds two things."""
    lengths = {module.where: len(module.path.read_text().splitlines()) for module in OURS.values()}
    assert {where: length for where, length in lengths.items() if length > MOST_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    """The first thing in a file is the sentence that says what it is for."""
    silent = [module.where for module in OURS.values() if module.tree.body and not ast.get_docstring(module.tree)]
    assert silent == []
