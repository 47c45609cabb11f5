"""The kv-transfer-config: types, keys nobody reads, and the connector's own reading of its part. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Context, Version
from app.profiles.finding import CONFIG, EXTRA, Finding, Fix, drop, error, fix, note, put, rename, warning
from app.profiles.keys import OFFLOADING, SIZE_KEYS, STOCK_SPEC, TRANSFER_KEYS, KeyTable
from app.profiles.sizes import MOST_GIB, read_number, read_size, shown
from engine.config import EVICTION_POLICIES, SPEC_NAME, UNSERVED, ConfigError, parse_config

#: In `TieringOffloadingSpec`, for a check of one key at a time.
_SOME_SIZE: Final = 1 << 30
_KIND_WORDS: Final[Mapping[str, str]] = {
    "whole": "a whole number",
    "yes": "true or false",
    "text": "text in quotes",
    "list": "a list in brackets",
    "object": "an object in braces",
    "bytes": "a size such as 64 GiB",
    "gib": "a number of GiB",
}

_STOCK_POLICIES: Final = ("lru", "arc")


def check_transfer_config(config: Mapping[str, Any], context: Context) -> list[Finding]:
    """Findings on a kv-transfer-config; empty = no connector, nothing to say."""
    if not config:
        return []
    connector = config.get("kv_connector")
    extra = config.get("kv_connector_extra_config", {})
    found = [*_top_level(config, context), *_missing(config)]
    if isinstance(connector, str) and isinstance(extra, Mapping):
        found += _extra(connector, config, extra, context)
    return found


def extra_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The connector's own part; empty when it is not an object."""
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def spec_of(config: Mapping[str, Any]) -> str:
    """The offloading spec that a config names, or the one that is taken without a name."""
    spec = extra_of(config).get("spec_name", STOCK_SPEC)
    return spec if isinstance(spec, str) else STOCK_SPEC


def is_ours(config: Mapping[str, Any]) -> bool:
    """True when the deck's own connector will serve this."""
    return config.get("kv_connector") == OFFLOADING and spec_of(config) == SPEC_NAME


def kind_finding(path: str, kind: str, value: Any) -> Finding | None:
    """What is wrong with the type of a value."""
    good = {
        "whole": isinstance(value, int) and not isinstance(value, bool),
        "yes": isinstance(value, bool),
        "text": isinstance(value, str),
        "list": isinstance(value, list),
        "object": isinstance(value, Mapping),
        "bytes": isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "gib": 0 < (read_number(value) or 0) <= MOST_GIB,
    }
    if good.get(kind, True):
        return None
    remedy = _as_boolean(path, value) if kind == "yes" else None
    return error(path, "Write %(wanted)s, not %(value)s.", remedy, wanted=_KIND_WORDS[kind], value=shown(value))


def _top_level(config: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    for key, value in config.items():
        path = f"{CONFIG}.{key}"
        if key not in TRANSFER_KEYS:
            yield _unknown_at_top(key, path, config, context)
        elif value is not None:
            yield from _typed(path, key, value)


def _typed(path: str, key: str, value: Any) -> Iterable[Finding]:
    if found := kind_finding(path, keys.TRANSFER_KINDS[key], value):
        yield found
        return
    choices = keys.TRANSFER_CHOICES.get(key)
    if choices and value not in choices:
        near = _nearest(str(value), choices) or choices[0]
        yield error(
            path,
            "Write one of %(choices)s, not %(value)s.",
            fix("Write %(near)s", put(path, near), near=near),
            choices=", ".join(choices),
            value=shown(value),
        )


def _missing(config: Mapping[str, Any]) -> Iterable[Finding]:
    for key, example in (("kv_connector", OFFLOADING), ("kv_role", "kv_both")):
        if config.get(key) is None:
            path = f"{CONFIG}.{key}"
            label = fix("Add %(key)s", put(path, example), key=key)
            yield error(path, 'Add "%(key)s": "%(example)s".', label, key=key, example=example)


def _unknown_at_top(key: str, path: str, config: Mapping[str, Any], context: Context) -> Finding:
    if context.is_allowed(path):
        return _allowed(path, key)
    connector = config.get("kv_connector")
    inside = keys.related(connector) if isinstance(connector, str) else keys.related(OFFLOADING)
    if key in inside:
        return error(
            path,
            "The engine knows no key %(key)s here; it belongs inside: %(near)s.",
            _move_inside(path, f"{EXTRA}.{key}", config),
            _allow(path),
            key=key,
            near=f"kv_connector_extra_config.{key}",
        )
    if near := _nearest(key, TRANSFER_KEYS):
        return _mistyped(path, key, near, f"{CONFIG}.{near}", near in config)
    if near := _nearest(key, inside):
        remedy = _move_inside(path, f"{EXTRA}.{near}", config)
        shown_near = f"kv_connector_extra_config.{near}"
        return _did_you_mean(path, key, shown_near, remedy)
    sentence = 'The engine knows no key %(key)s; keys of the connector go inside "kv_connector_extra_config".'
    return error(path, sentence, _allow(path), key=key)


def _move_inside(path: str, to: str, config: Mapping[str, Any]) -> Fix | None:
    label = "Move it to %(near)s"
    shown_near = to.removeprefix(f"{CONFIG}.")
    if "kv_connector_extra_config" not in config:
        return fix(label, put(EXTRA, {}), rename(path, to), near=shown_near)
    return fix(label, rename(path, to), near=shown_near) if isinstance(extra_of(config), Mapping) else None


def _extra(connector: str, config: Mapping[str, Any], extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    if connector in keys.UNLISTED:
        if extra:
            yield note(
                EXTRA, "The deck does not know the keys of %(connector)s and does not check them.", connector=connector
            )
        return
    spec = spec_of(config)
    table = keys.table(connector, spec)
    for key in extra:
        yield from _key(connector, spec, table, key, extra, context)
    if is_ours(config):
        yield from _as_the_connector_reads(extra)
        yield from _threshold(extra, context)
    elif connector == OFFLOADING and spec == STOCK_SPEC:
        yield from _stock(extra, context)


def _key(
    connector: str, spec: str, table: KeyTable | None, key: str, extra: Mapping[str, Any], context: Context
) -> Iterable[Finding]:
    path = f"{EXTRA}.{key}"
    known = _known(connector, table, key, context.engine_version)
    if known is not None:
        found = kind_finding(path, known, extra[key]) if extra[key] is not None else None
        if found:
            yield found
    elif context.is_allowed(path):
        yield _allowed(path, key)
    else:
        yield _unknown(connector, spec, table, key, extra, context.engine_version)


def _known(connector: str, table: KeyTable | None, key: str, version: Version) -> str | None:
    """The kind of value that a key takes; None when nobody reads the key."""
    if table is None:
        return "any" if connector == OFFLOADING and key in keys.shared_offloading_keys() else None
    if own := next((one.kind for one in table.keys if one.name == key and one.is_in(version)), None):
        return own
    return "any" if key.startswith(table.prefixes or ("\0",)) else None


def _unknown(
    connector: str, spec: str, table: KeyTable | None, key: str, extra: Mapping[str, Any], version: Version
) -> Finding:
    path = f"{EXTRA}.{key}"
    if table is None:
        return error(
            path,
            "The deck does not know the keys of %(who)s. Allow %(key)s if it is right.",
            _allow(path),
            fix("Allow every key of it", put("allow.-", f"{EXTRA}.*")),
            who=spec if connector == OFFLOADING else connector,
            key=key,
        )
    if key == "num_cpu_blocks" and connector == OFFLOADING:
        return _old_blocks(path, extra, version)
    if spec == SPEC_NAME and key in UNSERVED:
        sentence = "%(key)s is not served by this connector: %(why)s."
        return error(path, sentence, fix("Remove it", drop(path)), key=key, why=UNSERVED[key])
    if late := next((one for one in table.keys if one.name == key), None):
        return _of_another_version(path, late, version)
    if other := [one for one in keys.specs_with(key) if one != spec] if connector == OFFLOADING else []:
        return _of_another_spec(path, key, spec, other[0])
    if key in TRANSFER_KEYS:
        to = f"{CONFIG}.{key}"
        return _did_you_mean(path, key, key, fix("Move it to %(near)s", rename(path, to), near=key))
    near = _nearest(key, keys.related(connector))
    if near is None:
        sentence = "%(who)s knows no key %(key)s and would pass over it in silence."
        who = spec if connector == OFFLOADING else connector
        return error(path, sentence, fix("Remove it", drop(path)), _allow(path), who=who, key=key)
    return _mistyped(path, key, near, f"{EXTRA}.{near}", near in extra)


def _old_blocks(path: str, extra: Mapping[str, Any], version: Version) -> Finding:
    sentence = (
        "num_cpu_blocks counts blocks of each worker, and the engine %(version)s does not understand it: it would be "
        "passed over. Write cpu_bytes_to_use instead, in bytes over all workers."
    )
    remedy = None if "cpu_bytes_to_use" not in extra else fix("Remove it", drop(path))
    return error(path, sentence, remedy, version=".".join(map(str, version)))


def _of_another_spec(path: str, key: str, spec: str, other: str) -> Finding:
    return error(
        path,
        "%(key)s belongs to %(other)s; %(spec)s passes over it in silence.",
        fix("Use %(other)s", put(f"{EXTRA}.spec_name", other), other=other),
        fix("Remove it", drop(path)),
        key=key,
        other=other,
        spec=spec,
    )


def _of_another_version(path: str, key: keys.Key, version: Version) -> Finding:
    is_old = key.until is not None and version >= key.until
    edge = (key.until if is_old else key.since) or (0, 0)
    sentence = (
        "The engine %(version)s does not know %(key)s any more; it is read up to %(edge)s."
        if is_old
        else "The engine %(version)s does not know %(key)s yet; it is read from %(edge)s on."
    )
    values = {"version": ".".join(map(str, version)), "key": key.name, "edge": ".".join(map(str, edge))}
    return error(path, sentence, fix("Remove it", drop(path)), _allow(path), **values)


def _mistyped(path: str, key: str, near: str, to: str, is_taken: bool) -> Finding:
    if is_taken:
        return _did_you_mean(path, key, near, fix("Remove it", drop(path)))
    return _did_you_mean(path, key, near, fix("Rename it to %(near)s", rename(path, to), near=near))


def _did_you_mean(path: str, key: str, near: str, remedy: Fix | None) -> Finding:
    sentence = "Nobody reads %(key)s; did you mean %(near)s?"
    return error(path, sentence, remedy, _allow(path), key=key, near=near)


def _allow(path: str) -> Fix:
    return fix("Allow this key", put("allow.-", path))


def _allowed(path: str, key: str) -> Finding:
    sentence = "%(key)s is allowed by this profile; the deck does not know it and does not check it."
    return note(path, sentence, key=key)


def _as_the_connector_reads(extra: Mapping[str, Any]) -> Iterable[Finding]:
    """The connector's own sentences, key by key: it stops at its first, the reader wants them all."""
    known = {key: value for key, value in extra.items() if key in keys.OUR_KEYS and not _is_told(key, value)}
    refused = [
        finding for key, value in known.items() if (finding := _refused({"cpu_bytes_to_use": _SOME_SIZE, key: value}))
    ]
    yield from refused
    if not refused and (whole := _refused(known)):
        yield whole


def _is_told(key: str, value: Any) -> bool:
    """A size that could not be read was told as such before; the connector would end on some of them."""
    return key in SIZE_KEYS and value is not None and read_size(value) is None


def _threshold(extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    """The one key that both specs of this name read, and that vLLM's own ends the start over."""
    path, threshold = f"{EXTRA}.store_threshold", extra.get("store_threshold")
    if not isinstance(threshold, int) or isinstance(threshold, bool) or threshold < 2:
        return
    if context.is_allowed(path):
        sentence = "store_threshold is allowed by this profile; only the deck's own connector takes it with %(spec)s."
        yield note(path, sentence, spec=SPEC_NAME)
        return
    sentence = (
        "vLLM's own %(spec)s refuses a store_threshold of 2 or more; only the deck's connector takes it. "
        "Allow it if every engine that gets this profile has the deck's plug-in."
    )
    yield error(path, sentence, fix("Remove it", drop(path)), _allow(path), spec=SPEC_NAME)


def _refused(extra: Mapping[str, Any]) -> Finding | None:
    try:
        parse_config(extra)
    except ConfigError as refusal:
        path = f"{EXTRA}.{refusal.key}" if refusal.key else EXTRA
        return Finding("error", path, str(refusal), fixes=_remedies(path, refusal.key, extra))
    return None


def _remedies(path: str, key: str | None, extra: Mapping[str, Any]) -> tuple[Fix, ...]:
    value = extra.get(key or "")
    if key == "eviction_policy":
        near = _nearest(str(value), EVICTION_POLICIES) or EVICTION_POLICIES[0]
        return (fix("Write %(near)s", put(path, near), near=near),)
    if key == "block_size" and "blocks_per_chunk" in extra:
        return (
            fix("Keep blocks_per_chunk alone", drop(path)),
            fix("Keep block_size alone", drop(f"{EXTRA}.blocks_per_chunk")),
        )
    if key == "cpu_bytes_to_use" and value is None:
        return (fix("Write %(near)s", put(path, _SOME_SIZE), near=f"{_SOME_SIZE} (1 GiB)"),)
    as_boolean = _as_boolean(path, value)
    return () if as_boolean is None else (as_boolean,)


def _stock(extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    """What vLLM's own spec refuses or does in silence."""
    path = f"{EXTRA}.eviction_policy"
    policy = extra.get("eviction_policy", "lru")
    if isinstance(policy, str) and policy not in _STOCK_POLICIES and "cache_policy_module_path" not in extra:
        near = _nearest(policy, _STOCK_POLICIES) or _STOCK_POLICIES[0]
        remedy = fix("Write %(near)s", put(path, near), near=near)
        yield error(
            path,
            "Write one of %(choices)s, not %(value)s.",
            remedy,
            choices=", ".join(_STOCK_POLICIES),
            value=shown(policy),
        )
    if "cpu_bytes_to_use" not in extra and "num_cpu_blocks" not in extra:
        size = f"{EXTRA}.cpu_bytes_to_use"
        remedy = fix("Write %(near)s", put(size, _SOME_SIZE), near=f"{_SOME_SIZE} (1 GiB)")
        yield error(size, "cpu_bytes_to_use is missing: write the size of the host tier in bytes.", remedy)
    if "block_size" in extra and "blocks_per_chunk" in extra:
        chunk = f"{EXTRA}.block_size"
        remedies = (
            fix("Keep blocks_per_chunk alone", drop(chunk)),
            fix("Keep block_size alone", drop(f"{EXTRA}.blocks_per_chunk")),
        )
        yield error(chunk, "block_size and blocks_per_chunk say the same thing: write only one of them.", *remedies)
    if context.platform == "cpu":
        remedy = fix("Use %(other)s", put(f"{EXTRA}.spec_name", SPEC_NAME), other=SPEC_NAME)
        yield warning(EXTRA, "%(spec)s does not run on the CPU platform.", remedy, spec=STOCK_SPEC)
    if context.model is not None and context.model.is_hybrid:
        remedy = fix("Use %(other)s", put(f"{EXTRA}.spec_name", SPEC_NAME), other=SPEC_NAME)
        sentence = (
            "%(spec)s charges each state of this hybrid model like whole blocks of tokens; "
            "%(other)s has a pool of its own for them."
        )
        yield warning(EXTRA, sentence, remedy, spec=STOCK_SPEC, other=SPEC_NAME)


def _as_boolean(path: str, value: Any) -> Fix | None:
    meant = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    return None if meant is None else fix("Write %(near)s", put(path, meant), near="true" if meant else "false")


def _nearest(word: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word.lower(), tuple(known), n=1, cutoff=0.6)
    return near[0] if near else None
