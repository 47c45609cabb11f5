"""The connector's own reading of its configuration, asked before an engine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config import ConfigError, parse_extra_config


def extra_config_error(extra: Mapping[str, Any]) -> str | None:
    """The sentence with which the connector would refuse `kv_connector_extra_config`; None when it takes it."""
    try:
        parse_extra_config(extra)
    except ConfigError as error:
        return str(error)
    return None
