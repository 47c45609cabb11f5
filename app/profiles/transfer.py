"""The kv-transfer-config: types, and keys nobody reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.profiles import keys
from app.profiles.bounds import first_told
from app.profiles.context import Context, Version
from app.profiles.finding import (
    CONFIG,
    EXTRA,
    Finding,
    Fix,
    allow,
    as_boolean,
    drop,
    error,
    fix,
    has_errors,
    note,
    put,
    rename,
)
from app.profiles.keys import OFFLOADING, STOCK_SPEC, TRANSFER_KEYS, KeyTable
from app.profiles.nearest import nearest
from app.profiles.nested import MOST_DEEP, at_place, children_of, place_of, within
from app.profiles.sizes import MOST_GIB, read_number, read_size, shown
from app.profiles.specs import STOCK_POLICIES, own_spec, stock_spec, takes
from engine.config import SPEC_NAME, UNSERVED

_EXTRA_KEY: Final = "kv_connector_extra_config"
_KIND_WORDS: Final[Mapping[str, str]] = {
    "whole": "a whole number",
    "count": "a whole number of 1 or more",
    "yes": "true or false",
    "text": "text in quotes",
    "list": "a list in brackets",
    "object": "an object in braces",
    "bytes": "a size such as 64 GiB",
    "gib": "a number of GiB",
}


def check_transfer_config(config: Mapping[str, Any], context: Context, deep: int = 0) -> list[Finding]:
    """Findings on a kv-transfer-config; empty = no connector, nothing to say. `deep`: inside how many others."""
    if not config:
        return []
    found, path = [], f"{CONFIG}.kv_connector"
    if (meant := keys.as_meant(config)) is not config and not context.is_allowed(path):
        found.append(_misnamed(path, config["kv_connector"], meant["kv_connector"]))
        config = meant
    connector = config.get("kv_connector")
    extra = config.get("kv_connector_extra_config", {})
    found += [*_top_level(config, context), *_missing(config)]
    if isinstance(connector, str) and isinstance(extra, Mapping):
        found += _extra(connector, config, extra, context)
    if connector == keys.MULTI:
        found += _joined(config, context, deep)
    return found


def _misnamed(path: str, name: str, near: str) -> Finding:
    sentence = "vLLM has no connector %(name)s; the nearest is %(near)s, and its keys are judged here."
    return error(path, sentence, fix("Write %(near)s", put(path, near), near=near), allow(path), name=name, near=near)


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
        "count": isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "bytes": isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "gib": 0 < (read_number(value) or 0) <= MOST_GIB,
    }
    if good.get(kind, True):
        return None
    remedy = as_boolean(path, value) if kind == "yes" else None
    return error(path, "Write %(wanted)s, not %(value)s.", remedy, wanted=_KIND_WORDS[kind], value=shown(value))


def _joined(config: Mapping[str, Any], context: Context, deep: int) -> Iterable[Finding]:
    """A MultiConnector: each of its connectors is judged like one that stands alone."""
    children, path = children_of(config), f"{EXTRA}.connectors"
    if not children:
        yield error(path, "Write the connectors that are joined, as a list of objects like this one.")
    for number, child in enumerate(children):
        place = place_of(number)
        if not isinstance(child, Mapping) or not child:
            wanted = _KIND_WORDS["object"]
            yield error(place, "Write %(wanted)s, not %(value)s.", wanted=wanted, value=shown(child))
        elif deep >= MOST_DEEP:
            yield error(place, "Connectors are nested too deeply here.")
        else:
            found = check_transfer_config(child, within(context, place), deep + 1)
            yield from (at_place(one, place) for one in found)


def _top_level(config: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    strange = [key for key in config if key not in TRANSFER_KEYS and not context.is_allowed(f"{CONFIG}.{key}")]
    yield from first_told((), strange, CONFIG, context.told_keys)
    left_out = frozenset(strange[context.told_keys :])
    for key, value in config.items():
        path = f"{CONFIG}.{key}"
        if key in left_out:
            continue
        if key not in TRANSFER_KEYS:
            yield _unknown_at_top(key, path, config, context)
        elif value is not None:
            yield from _typed(path, key, value)
        elif key not in keys.NULL_KEYS:
            sentence = "The engine refuses null for %(key)s: write a value, or leave it out."
            yield error(path, sentence, fix("Remove it", drop(path)), key=key)


def _typed(path: str, key: str, value: Any) -> Iterable[Finding]:
    if found := kind_finding(path, keys.TRANSFER_KINDS[key], value):
        yield found
        return
    choices = keys.TRANSFER_CHOICES.get(key)
    if choices and value not in choices:
        near = nearest(str(value), choices) or choices[0]
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
            _move_inside(path, key, config),
            allow(path),
            key=key,
            near=f"kv_connector_extra_config.{key}",
        )
    if near := nearest(key, TRANSFER_KEYS):
        is_free = near not in config and not has_errors(_typed(path, near, config[key]))
        return _mistyped(path, key, near, f"{CONFIG}.{near}", is_free=is_free)
    if near := nearest(key, inside):
        remedy = _move_inside(path, near, config)
        shown_near = f"kv_connector_extra_config.{near}"
        return _did_you_mean(path, key, shown_near, remedy)
    sentence = 'The engine knows no key %(key)s; keys of the connector go inside "kv_connector_extra_config".'
    return error(path, sentence, allow(path), key=key)


def _move_inside(path: str, near: str, config: Mapping[str, Any]) -> Fix | None:
    """Nothing is offered where the value would be the next error, or would take another one's place."""
    written = config[path.removeprefix(f"{CONFIG}.")]
    values = {"near": f"kv_connector_extra_config.{near}"}
    if near in extra_of(config) or not _fits(near, written, config):
        return fix("Remove it", drop(path))
    move = rename(path, f"{EXTRA}.{near}")
    if "kv_connector_extra_config" not in config:
        return fix("Move it to %(near)s", put(EXTRA, {}), move, **values)
    return fix("Move it to %(near)s", move, **values) if isinstance(config[_EXTRA_KEY], Mapping) else None


def _fits(key: str, value: Any, config: Mapping[str, Any]) -> bool:
    """True when the key of the extra config would take this value, with the spec that reads it."""
    connector, spec = str(config.get("kv_connector")), spec_of(config)
    if key in keys.SIZE_KEYS:
        return (read_size(value) or 0) > 0
    if connector == OFFLOADING and (others := keys.specs_with(key)) and spec not in others:
        spec = others[0]
    if key == "spec_name":
        return isinstance(value, str) and keys.table(connector, value) is not None
    if spec == SPEC_NAME and connector == OFFLOADING:
        return takes(key, value)
    table = keys.table(connector, spec)
    kind = next((one.kind for one in table.keys if one.name == key), "any") if table else "any"
    is_policy = key != "eviction_policy" or value in STOCK_POLICIES or "cache_policy_module_path" in extra_of(config)
    return is_policy and kind_finding(f"{EXTRA}.{key}", kind, value) is None


def _extra(connector: str, config: Mapping[str, Any], extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    if connector in keys.UNLISTED:
        if extra:
            yield note(
                EXTRA, "The deck does not know the keys of %(connector)s and does not check them.", connector=connector
            )
        return
    spec = spec_of(config)
    table = keys.table(connector, spec)
    unknown = [key for key in extra if _is_unknown(_known(connector, table, key, context.engine_version), key, context)]
    left_out = frozenset(unknown[context.told_keys :])
    found = [one for key in extra if key not in left_out for one in _key(connector, spec, table, key, extra, context)]
    yield from first_told(found, unknown, EXTRA, context.told_keys)
    if is_ours(config):
        yield from own_spec(extra, context)
    elif connector == OFFLOADING and spec == STOCK_SPEC:
        yield from stock_spec(extra, context)


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


def _is_unknown(kind: str | None, key: str, context: Context) -> bool:
    return kind is None and not context.is_allowed(f"{EXTRA}.{key}")


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
            allow(path),
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
        return _of_another_spec(path, key, spec, other[0], extra)
    if key in TRANSFER_KEYS:
        move = fix("Move it to %(near)s", rename(path, f"{CONFIG}.{key}"), near=key)
        is_good = not has_errors(_typed(path, key, extra[key]))
        return _did_you_mean(path, key, key, move if is_good else fix("Remove it", drop(path)))
    near = nearest(key, keys.related(connector))
    if near is None:
        sentence = "%(who)s knows no key %(key)s and would pass over it in silence."
        who = spec if connector == OFFLOADING else connector
        return error(path, sentence, fix("Remove it", drop(path)), allow(path), who=who, key=key)
    config = {"kv_connector": connector, _EXTRA_KEY: {**extra, "spec_name": spec} if "spec_name" in extra else extra}
    is_free = near not in extra and _fits(near, extra[key], config)
    return _mistyped(path, key, near, f"{EXTRA}.{near}", is_free=is_free)


def _old_blocks(path: str, extra: Mapping[str, Any], version: Version) -> Finding:
    sentence = (
        "num_cpu_blocks counts blocks of each worker, and the engine %(version)s does not understand it: it would be "
        "passed over. Write cpu_bytes_to_use instead, in bytes over all workers."
    )
    remedy = None if "cpu_bytes_to_use" not in extra else fix("Remove it", drop(path))
    return error(path, sentence, remedy, version=".".join(map(str, version)))


def _of_another_spec(path: str, key: str, spec: str, other: str, extra: Mapping[str, Any]) -> Finding:
    there = {"kv_connector": OFFLOADING, _EXTRA_KEY: {**extra, "spec_name": other}}
    use = fix("Use %(other)s", put(f"{EXTRA}.spec_name", other), other=other)
    return error(
        path,
        "%(key)s belongs to %(other)s; %(spec)s passes over it in silence.",
        use if _fits(key, extra[key], there) else None,
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
    return error(path, sentence, fix("Remove it", drop(path)), allow(path), **values)


def _mistyped(path: str, key: str, near: str, to: str, *, is_free: bool) -> Finding:
    """`is_free`: nothing is there yet, and the value would be right there."""
    if not is_free:
        return _did_you_mean(path, key, near, fix("Remove it", drop(path)))
    return _did_you_mean(path, key, near, fix("Rename it to %(near)s", rename(path, to), near=near))


def _did_you_mean(path: str, key: str, near: str, remedy: Fix | None) -> Finding:
    sentence = "Nobody reads %(key)s; did you mean %(near)s?"
    return error(path, sentence, remedy, allow(path), key=key, near=near)


def _allowed(path: str, key: str) -> Finding:
    sentence = "%(key)s is allowed by this profile; the deck does not know it and does not check it."
    return note(path, sentence, key=key)
