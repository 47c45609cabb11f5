"""Sizes and numbers as they are stored: as integers, however they were written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.profiles import keys
from app.profiles.finding import EXTRA, Finding, error, fix, note, put
from app.profiles.flags import FLAGS, WHOLE_KINDS
from app.profiles.nested import MOST_DEEP, at_place, children_of, place_of
from app.profiles.sizes import exact_size, meant_size, read_short, read_size, read_whole, shown

_CONNECTORS: Final = (keys.OFFLOADING, keys.SIMPLE)
_COUNT_KEYS: Final = (
    "mamba_state_slots_reference_tokens",
    "blocks_per_chunk",
    "block_size",
    "store_threshold",
    "max_tracker_size",
    "transfer_threads",
    "num_cpu_blocks",
)


@dataclass(frozen=True)
class Normal:
    """A part of a profile with its numbers as numbers, and what was changed."""

    value: dict[str, Any]
    findings: tuple[Finding, ...] = ()


def normal_config(config: Mapping[str, Any], deep: int = 0) -> Normal:
    """The kv-transfer-config with sizes such as `5 GiB` and numbers in quotes as integers."""
    extra = config.get("kv_connector_extra_config")
    if isinstance(extra, Mapping) and children_of(config) and deep < MOST_DEEP:
        return _joined(config, extra, deep)
    connector = keys.as_meant(config).get("kv_connector")
    if not isinstance(extra, Mapping) or connector not in _CONNECTORS:
        return Normal(dict(config))
    values, found = dict(extra), []
    for key in extra:
        path = f"{EXTRA}.{key}"
        value, finding = _size(path, extra[key]) if key in keys.SIZE_KEYS else _whole(path, key, extra[key])
        if finding and finding.severity == "error" and not _is_read(str(connector), extra, key):
            finding = None  # the key itself is the error
        values[key] = value
        found += [finding] if finding else []
    return Normal({**config, "kv_connector_extra_config": values}, tuple(found))


def _is_read(connector: str, extra: Mapping[str, Any], key: str) -> bool:
    """True when this connector with this spec reads the key."""
    table = keys.table(connector, str(extra.get("spec_name", keys.STOCK_SPEC)))
    return table is not None and any(one.name == key for one in table.keys)


def _joined(config: Mapping[str, Any], extra: Mapping[str, Any], deep: int) -> Normal:
    """The connectors that are joined, one by one."""
    children: list[Any] = []
    found: list[Finding] = []
    for number, child in enumerate(children_of(config)):
        read = normal_config(child, deep + 1) if isinstance(child, Mapping) else Normal({})
        children.append(read.value if isinstance(child, Mapping) else child)
        found += [at_place(one, place_of(number)) for one in read.findings]
    inner = {**extra, "connectors": children}
    return Normal({**config, "kv_connector_extra_config": inner}, tuple(found))


def normal_flags(flags: Mapping[str, Any]) -> Normal:
    """The flags with numbers in quotes, and sizes such as `60 MB`, as integers."""
    values, found = dict(flags), []
    for name, value in flags.items():
        flag, path = FLAGS.get(name), f"flags.{name}"
        if flag is None or flag.kind not in WHOLE_KINDS or not isinstance(value, str):
            continue
        number = read_size(value) if flag.kind == "bytes" else read_whole(value)
        if number is None:
            number = read_short(value)
        if number is not None:
            values[name] = number
            found.append(_noted(path, value, number, is_size=flag.kind == "bytes"))
    return Normal(values, tuple(found))


def _size(path: str, value: Any) -> tuple[Any, Finding | None]:
    size = read_size(value)
    if size is not None:
        return size, _noted(path, value, size, is_size=True) if isinstance(value, str) else None
    if near := meant_size(value):
        meant = read_size(near)
        remedy = fix("Write %(near)s", put(path, meant), near=near)
        return value, error(path, "%(value)s is not a size; was %(near)s meant?", remedy, value=shown(value), near=near)
    if value is None:
        return value, None
    return value, error(path, "Write %(wanted)s, not %(value)s.", wanted="a size such as 64 GiB", value=shown(value))


def _whole(path: str, key: str, value: Any) -> tuple[Any, Finding | None]:
    number = read_whole(value) if key in _COUNT_KEYS and isinstance(value, str) else None
    return (value, None) if number is None else (number, _noted(path, value, number, is_size=False))


def _noted(path: str, value: Any, number: int, *, is_size: bool) -> Finding:
    stored = exact_size(number) if is_size else str(number)
    remedy = fix("Write %(near)s", put(path, number), near=str(number))
    return note(path, "%(value)s is stored as the number %(stored)s.", remedy, value=shown(value), stored=stored)
