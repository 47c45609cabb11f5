"""Reads a model's config.json, and how large its weights are, from this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.errors import InvalidInput
from app.planner.fields import read_config

#: A config.json is a few kilobytes; what is larger is something else.
LARGEST_CONFIG_BYTES: Final = 2 << 20
WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True)
class ModelFiles:
    """A model as found on disk."""

    path: Path
    config: dict[str, Any]
    weights_bytes: int | None
    """None where no weights lie beside the config."""


def read_model(model: str) -> ModelFiles:
    """The model in a directory, or at its config.json. Raises InvalidInput."""
    path = Path(model).expanduser()
    try:
        file = path / "config.json" if path.is_dir() else path
        text = _text(file, model)
        config = read_config(text)
        return ModelFiles(file, config, _weights(file.parent))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name or its text is not valid"
        raise InvalidInput(f"{model} cannot be read: {why}.", path="model") from error


def _text(file: Path, model: str) -> str:
    if not file.exists():
        raise InvalidInput(f"There is no {file if file.name == 'config.json' else model} here.", path="model")
    if file.suffix != ".json" or not file.is_file():
        raise InvalidInput(f"{model} is no config.json and no directory that holds one.", path="model")
    if file.stat().st_size > LARGEST_CONFIG_BYTES:
        raise InvalidInput(f"{file} is too large to be a config.json.", path="model")
    return file.read_text(encoding="utf-8-sig")


def _weights(directory: Path) -> int | None:
    """Of the first format that is there: some repositories bring the same weights twice."""
    for suffix in WEIGHT_SUFFIXES:
        sizes = [file.stat().st_size for file in directory.glob(f"*{suffix}") if file.is_file()]
        if sum(sizes):
            return sum(sizes)
    return None
