"""What an offloading spec refuses of its part of a config, the deck's own and vLLM's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Context
from app.profiles.finding import EXTRA, Finding, Fix, allow, as_boolean, drop, error, fix, note, put, warning
from app.profiles.keys import SIZE_KEYS, STOCK_SPEC
from app.profiles.nearest import nearest
from app.profiles.sizes import read_size, shown
from engine.config import EVICTION_POLICIES, SPEC_NAME, ConfigError, parse_config

STOCK_POLICIES: Final = ("lru", "arc")
#: For a check of one key at a time.
_SOME_SIZE: Final = 1 << 30


def own_spec(extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    """What the deck's own connector refuses."""
    yield from _as_the_connector_reads(extra)
    yield from _threshold(extra, context)


def takes(key: str, value: Any) -> bool:
    """True when the deck's own connector takes this value of one of its keys."""
    return _refused({"cpu_bytes_to_use": _SOME_SIZE, key: value}) is None


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
    yield error(path, sentence, fix("Remove it", drop(path)), allow(path), spec=SPEC_NAME)


def _refused(extra: Mapping[str, Any]) -> Finding | None:
    try:
        parse_config(extra)
    except ConfigError as refusal:
        path = f"{EXTRA}.{refusal.key}" if refusal.key else EXTRA
        values = dict(refusal.values)
        if "value" in values and refusal.key is not None and refusal.key in extra:
            values["value"] = shown(extra[refusal.key])
        return Finding("error", path, refusal.sentence, values=values, fixes=_remedies(path, refusal.key, extra))
    return None


def _remedies(path: str, key: str | None, extra: Mapping[str, Any]) -> tuple[Fix, ...]:
    value = extra.get(key or "")
    if key == "eviction_policy":
        near = nearest(str(value), EVICTION_POLICIES) or EVICTION_POLICIES[0]
        return (fix("Write %(near)s", put(path, near), near=near),)
    if key == "block_size" and "blocks_per_chunk" in extra:
        return (
            fix("Keep blocks_per_chunk alone", drop(path)),
            fix("Keep block_size alone", drop(f"{EXTRA}.blocks_per_chunk")),
        )
    if key == "cpu_bytes_to_use":
        return (fix("Write %(near)s", put(path, _SOME_SIZE), near=f"{_SOME_SIZE} (1 GiB)"),)
    switch = as_boolean(path, value) if key in keys.OUR_SWITCHES else None
    left_out = None if key is None or key in keys.NEEDED else fix("Remove it", drop(path))
    return tuple(one for one in (switch, left_out) if one is not None)


def stock_spec(extra: Mapping[str, Any], context: Context) -> Iterable[Finding]:
    """What vLLM's own spec refuses or does in silence."""
    path = f"{EXTRA}.eviction_policy"
    policy = extra.get("eviction_policy", "lru")
    if isinstance(policy, str) and policy not in STOCK_POLICIES and "cache_policy_module_path" not in extra:
        near = nearest(policy, STOCK_POLICIES) or STOCK_POLICIES[0]
        remedy = fix("Write %(near)s", put(path, near), near=near)
        yield error(
            path,
            "Write one of %(choices)s, not %(value)s.",
            remedy,
            choices=", ".join(STOCK_POLICIES),
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
