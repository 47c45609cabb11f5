"""The connector's own reading of its configuration, asked before an engine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.derive.profile_text import Finding
from engine.config import ConfigError, parse_config

PATH = "kv-transfer-config.kv_connector_extra_config"


def check_extra_config(extra: Mapping[str, Any]) -> list[Finding]:
    """The sentence with which the connector would refuse `kv_connector_extra_config`, at its key."""
    try:
        parse_config(extra)
    except ConfigError as error:
        return [Finding("error", f"{PATH}.{error.key}" if error.key else PATH, str(error))]
    return []
