"""What commands read: a file, or standard input as `-`."""

from __future__ import annotations

from pathlib import Path

import typer

from app.errors import InvalidInput


def read_text(file: str | Path, path: str | None = None) -> str:
    """UTF-8 text, with or without a byte order mark. Raises InvalidInput; `path` is the option that named it."""
    try:
        content = typer.get_binary_stream("stdin").read() if str(file) == "-" else Path(file).read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        name = "Standard input" if str(file) == "-" else file
        raise InvalidInput(f"{name} cannot be read: {why}.", path=path or str(file)) from error
