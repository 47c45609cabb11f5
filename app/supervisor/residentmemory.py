"""Host memory that outlives its engine: which is whose, whether it fits, and giving it back."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import structlog

from app.profiles.memory import total_bytes
from app.supervisor.causes import Cause
from app.supervisor.command import EngineSpec
from app.supervisor.faults import Fault
from engine.config import SPEC_NAME, ConfigError, TierConfig, parse_config
from engine.residency_place import MOUNT, InUseError, NotPrivateError, deck_prefix, directory_of, existing, shortage
from engine.residency_place import forget as forget_directory

#: Of a host tier: kept for the engine's next start, lost, or there is none.
Fate = Literal["kept", "lost", "none"]

log = structlog.get_logger(__name__)


def identifier(data_dir: Path, engine: str) -> str:
    """The name of an engine's memory: the same for every deck on this data directory, and for no other."""
    plain = (letter if letter.isascii() and letter.isalnum() else f"%{ord(letter):x}" for letter in engine)
    return deck_prefix(data_dir) + "".join(plain)


def kept_config(spec: EngineSpec) -> TierConfig | None:
    """The host tier of this engine, if its contents are to outlive it (the deck gives it a name)."""
    extra = spec.profile.kv_transfer_config.get("kv_connector_extra_config")
    if not isinstance(extra, dict) or extra.get("spec_name") != SPEC_NAME:
        return None
    try:
        config = parse_config(extra)
    except ConfigError:  # the engine says it better, with its own words and place
        return None
    return None if config.residency == "off" else config


def fate(spec: EngineSpec) -> Fate:
    """What becomes of this engine's host tier when it is stopped or restarted."""
    if kept_config(spec) is not None:
        return "kept"
    return "lost" if total_bytes(spec.profile.kv_transfer_config, spec.flags, spec.environment) else "none"


def check_space(spec: EngineSpec, name: str, mount: Path | None = None) -> Fault | None:
    """A fault with both numbers if the host tier does not fit; what the engine has there already counts as free."""
    config = kept_config(spec)
    short = config and shortage(directory_of(name, mount or MOUNT), config.cpu_bytes_to_use)
    if not short:
        return None
    return Fault("shared_memory_full", Cause.SHARED_MEMORY_FULL % {"why": short}, fatal=False)


def forget(name: str, mount: Path | None = None) -> int:
    """Give an engine's memory back; the bytes freed. What cannot be given back is said in the log."""
    directory = directory_of(name, mount or MOUNT)
    try:
        freed = forget_directory(directory)
    except (InUseError, NotPrivateError, OSError) as error:
        log.warning("host memory could not be given back", directory=str(directory), reason=str(error))
        return 0
    if freed:
        log.info("gave host memory back", directory=str(directory), freed_bytes=freed)
    return freed


def forget_all(data_dir: Path, but: frozenset[str] = frozenset(), mount: Path | None = None) -> None:
    """Give back what engines of this deck left, apart from those named in `but`."""
    for name in existing(deck_prefix(data_dir), mount or MOUNT):
        if name not in but:
            forget(name, mount)
