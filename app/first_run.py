"""What a new deck starts with: the demo model, or the operator's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import structlog

from app.config import Settings
from app.demo.model import ensure_demo_model
from app.demo.profile import DEMO_FLAGS, DEMO_KV_TRANSFER_CONFIG
from app.errors import InvalidInput
from app.fleets.file import Around, read_fleets
from app.planner.model_files import read_model
from app.planner.plan import make_plan
from app.planner.wish import read_wish
from app.profiles.presets import KEPT_STATES, presets
from app.services.surroundings import DRIVER
from app.store.queries.fleets import FirstEngine, FirstFleet, FirstProfile
from app.supervisor.checks import port_is_free

log = structlog.get_logger(__name__)

DEMO_MODEL_NAME = "tierdeck-demo"

#: Where the operator names the file; errors name it.
FILE_VARIABLE = "TIERDECK_FLEETS_FILE"

#: The preset that an own model begins with.
FIRST_PRESET = "many-short"


async def first_fleets(settings: Settings) -> tuple[FirstFleet, ...]:
    """What a new deck begins with: the fleets of the file, if one is set, else the one of the settings."""
    if settings.fleets_file is not None:
        return await asyncio.to_thread(fleets_of_file, settings, settings.fleets_file)
    return (await first_fleet(settings),)


def fleets_of_file(settings: Settings, file: Path) -> tuple[FirstFleet, ...]:
    """The fleets of a file. Raises InvalidInput that names the file and the field in it."""
    around = Around(
        str(settings.engine_python),
        settings.engine_port,
        psutil.virtual_memory().total,
        lambda port: port != settings.port and port_is_free("127.0.0.1", port),
    )
    try:
        return read_fleets(file.expanduser().read_text(encoding="utf-8"), around)
    except InvalidInput as error:
        sentence = ": ".join(part for part in (str(file), error.path, error.message) if part)
        raise InvalidInput(sentence, path=FILE_VARIABLE) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInput(f"{file} cannot be read: {why}.", path=FILE_VARIABLE) from error


async def first_fleet(settings: Settings) -> FirstFleet:
    """The fleet that the settings describe; builds the demo model when no model is configured."""
    if settings.model is None:
        model = await ensure_demo_model(settings.data_dir / "demo-model", settings.engine_python)
        return _fleet(settings, str(model), DEMO_MODEL_NAME, "demo", DEMO_KV_TRANSFER_CONFIG, DEMO_FLAGS)
    config = first_transfer_config(psutil.virtual_memory().total)
    flags = first_flags(settings.model, on_cpu=not DRIVER.exists())
    return _fleet(settings, settings.model, _short_name(settings.model), "first", config, flags)


def first_transfer_config(memory_bytes: int) -> Mapping[str, Any]:
    """The kv-transfer-config that an own model begins with."""
    return next(preset.kv_transfer_config for preset in presets(memory_bytes) if preset.key == FIRST_PRESET)


def first_flags(model: str, *, on_cpu: bool) -> dict[str, Any]:
    """The flags that an own model begins with.

    On a CPU a hybrid model needs its block size said: the engine's scheduler does not learn there that
    the block grew to hold a state, and half of what comes back would be missed.
    """
    flags = dict(KEPT_STATES)
    block_tokens = _block_of_hybrid(model) if on_cpu else None
    return flags if block_tokens is None else {**flags, "block-size": block_tokens}


def _block_of_hybrid(model: str) -> int | None:
    if not Path(model).expanduser().is_dir():
        return None
    try:
        plan = make_plan(read_model(model).config, read_wish({"platform": "cpu"}))
    except InvalidInput as error:  # the engine may know better; what it says is shown at its start
        log.warning("the model's config was not understood", model=model, why=error.message)
        return None
    if plan.model is None or not plan.model.geometry.recurrent_layers:
        return None
    return plan.model.block_tokens


def _fleet(
    settings: Settings,
    model: str,
    served_as: str,
    profile: str,
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
) -> FirstFleet:
    return FirstFleet(
        name="main",
        columns={
            "model": model,
            "served_model_name": served_as,
            "interpreter": str(settings.engine_python),
        },
        engines=(FirstEngine("main-1", settings.engine_port),),
        profile=FirstProfile(profile, "Made on the first run.", dict(config), dict(flags)),
    )


def _short_name(model: str) -> str:
    return Path(model).name or model
