"""The project's own modules and what each of them imports, read from the source without running it."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "engine")


@dataclass(frozen=True)
class Module:
    """One source file. `imports` are dotted names: `from a import b` gives `a.b` as well as `a`."""

    name: str
    path: Path
    tree: ast.Module
    imports: frozenset[str]

    @property
    def where(self) -> str:
        """The file as one would click on it."""
        return str(self.path.relative_to(ROOT))

    @property
    def top_level_imports(self) -> frozenset[str]:
        """First parts of what is imported."""
        return frozenset(name.split(".")[0] for name in self.imports)


def read_modules(*folders: str) -> dict[str, Module]:
    """Every module below `folders`, by dotted name."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {module.name: module for module in map(_read, paths)}


def is_within(name: str, package: str) -> bool:
    """True for the package itself and what lies in it."""
    return name == package or name.startswith(package + ".")


def third_party(names: frozenset[str]) -> set[str]:
    """Those first parts that are neither the standard library's nor ours."""
    return {name for name in names if name not in sys.stdlib_module_names and name not in PACKAGES}


def _read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    tree = ast.parse(path.read_text(), str(path))
    package = name if is_package else name.rpartition(".")[0]
    return Module(name, path, tree, frozenset(_imports(tree, package)))


def _imports(tree: ast.Module, package: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(module, level, package)
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}:
                    found.add(name)
    return found


def _absolute(module: str | None, level: int, package: str) -> str:
    if level == 0:
        return module or ""
    base = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join([*base, *([module] if module else [])])
