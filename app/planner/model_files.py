"""Reads a model's config.json, and how large its weights are, from this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.errors import InvalidInput
from app.planner.fields import read_config

#: A config.json is a few kilobytes; what is larger is something else.
LARGEST_CONFIG_BYTES: Final = 2 << 20
NOT_VALID: Final = "its name or its text is not valid"
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
        why = error.strerror if isinstance(error, OSError) else NOT_VALID
        values = {"model": model, "why": why}
        raise InvalidInput("%(model)s cannot be read: %(why)s.", path="model", values=values) from error


def _text(file: Path, model: str) -> str:
    if not file.exists():
        place = file if file.name == "config.json" else model
        raise InvalidInput("There is no %(place)s here.", path="model", values={"place": str(place)})
    if file.suffix != ".json" or not file.is_file():
        sentence = "%(model)s is no config.json and no directory that holds one."
        raise InvalidInput(sentence, path="model", values={"model": model})
    if file.stat().st_size > LARGEST_CONFIG_BYTES:
        raise InvalidInput("%(file)s is too large to be a config.json.", path="model", values={"file": str(file)})
    return file.read_text(encoding="utf-8-sig")


def _weights(directory: Path) -> int | None:
    """Of the first format that is there: some repositories bring the same weights twice."""
    for suffix in WEIGHT_SUFFIXES:
        sizes = [file.stat().st_size for file in directory.glob(f"*{suffix}") if file.is_file()]
        if sum(sizes):
            return sum(sizes)
    return None
