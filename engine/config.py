"""`kv_connector_extra_config`, parsed once into a frozen dataclass; standard library only.

A mistake ends the start of the engine with one sentence that names the key and what to write.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, get_args, get_type_hints

SPEC_NAME: Final = "TieringOffloadingSpec"
DEFAULT_REFERENCE_TOKENS: Final = 65_536
#: A fixed split into token slots and state slots, and one arena for both.
SPLIT_POLICIES: Final = ("lru", "arc")
ARENA_POLICIES: Final = ("value", "hyper")
EVICTION_POLICIES: Final = (*SPLIT_POLICIES, *ARENA_POLICIES)
_CHOICES: Final = "%(key)s cannot be %(value)s: write %(choices)s."
MAX_TRANSFER_THREADS: Final = 64

_UNITS: Final = {
    "": 1,
    **{unit: 1000 ** (power + 1) for power, unit in enumerate(("kb", "mb", "gb", "tb"))},
    **{unit: 1024 ** (power + 1) for power, unit in enumerate(("kib", "mib", "gib", "tib"))},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class ConfigError(ValueError):
    """The configuration cannot be served; one sentence, and the key it is about.

    `sentence` is the template that the message is made of, with `values` in it, for those who tell it in another
    language.
    """

    def __init__(
        self, message: str, key: str | None = None, sentence: str = "", values: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.sentence = sentence
        self.values = values or {}


def _documented(default: Any, text: str) -> Any:
    return field(default=default, metadata={"doc": text})


@dataclass(frozen=True)
class TierConfig:
    """What the operator asked of the host tier. Sizes are bytes over all workers."""

    cpu_bytes_to_use: int = field(
        metadata={"doc": "Host memory of the tier over all workers: bytes, or a text such as `64GiB`. Required."}
    )
    spec_name: str = _documented(SPEC_NAME, "Must be `TieringOffloadingSpec`, which the plug-in resolves to this.")
    spec_module_path: str | None = _documented(
        None, "`engine.spec`, or left out; only looked at when the name is not registered."
    )
    eviction_policy: str = _documented(
        "value",
        "Who goes first when the memory is full. `value` and `hyper`: one arena, no split; `lru` and `arc`: a fixed "
        "split into token slots and state slots. Default `value`; `lru` where a key is given that only a split serves.",
    )
    demote_superseded_states: bool = _documented(
        True,
        "With `lru` and `arc`: of a finished request, all states but the newest three boundaries become the first "
        "victims. With `value` and `hyper`: every state that its session has passed.",
    )
    mamba_state_slots_reference_tokens: int | None = _documented(
        None,
        f"Length of a typical session; decides the split into token slots and state slots. "
        f"Default {DEFAULT_REFERENCE_TOKENS}; not used where the engine keeps a state at every block, nor by `value` "
        "and `hyper`.",
    )
    store_threshold: int = _documented(
        1,
        "A block or state is stored when it is offered for the n-th time. 1 stores everything; more only with `lru` "
        "and `arc`.",
    )
    blocks_per_chunk: int | None = _documented(
        None, "Device blocks per unit of offload, default 1. Not together with `block_size`."
    )
    block_size: int | None = _documented(
        None, "The same in tokens: a multiple of the device block. Not together with `blocks_per_chunk`."
    )
    offload_prompt_only: bool = _documented(True, "Keep only the prompt's blocks, not those of the answer.")
    transfer_threads: int | None = _documented(
        None, f"Copy threads per worker on a CPU, 1 to {MAX_TRANSFER_THREADS}; default half the cores, at most 4."
    )
    verify: bool = _documented(
        False, "Take a checksum of each slot when it is stored and check it when it is loaded; for finding faults."
    )
    self_describing_kv_events: bool = _documented(
        False, "Complete `BlockStored` events, where the engine publishes KV events at all."
    )
    residency: str = _documented(
        "auto",
        "Whether contents outlive the engine: `auto` under a deck that gives the memory back, `keep` always, "
        "`off` never.",
    )
    residency_foreign: str = _documented(
        "replace",
        "Contents of another engine or model in this one's place: `replace` them, or `refuse` to start.",
    )
    sync_load_budget_bytes: int | None = _documented(
        None, "vLLM 0.33 and later: bytes per step that may be loaded within the step. No effect on 0.32."
    )


#: Keys of vLLM's own specs that this connector does not serve, with what to do about each.
UNSERVED: Final[Mapping[str, str]] = {
    "backpressure": "there are no secondary tiers; remove it",
    "cache_policy_module_path": "foreign eviction policies are not loaded; remove it",
    "canonical_layout": "each worker keeps its own bytes; remove it",
    "max_tracker_size": "there is no reuse tracker; remove it",
    "secondary_tiers": "there is only the host tier; remove it",
}


def parse_config(extra_config: Mapping[str, Any]) -> TierConfig:
    """The configuration, or `ConfigError`."""
    for key in extra_config:
        _check_known(key)
    if "cpu_bytes_to_use" not in extra_config:
        raise _fault("cpu_bytes_to_use", '%(key)s is missing: write the size of the host tier, such as "64GiB".')
    values = {key: _READERS[key](key, value) for key, value in extra_config.items()}
    if values.get("block_size") is not None and values.get("blocks_per_chunk") is not None:
        raise _fault("block_size", "%(key)s and blocks_per_chunk say the same thing: write only one of them.")
    values.setdefault("eviction_policy", _default_policy(values))
    if values["eviction_policy"] in ARENA_POLICIES:
        _check_arena(values)
    return TierConfig(**values)


def _default_policy(values: Mapping[str, Any]) -> str:
    needs_split = values.get("mamba_state_slots_reference_tokens") or values.get("store_threshold", 1) > 1
    return "lru" if needs_split else "value"


def _check_arena(values: Mapping[str, Any]) -> None:
    policy = values["eviction_policy"]
    if values.get("store_threshold", 1) > 1:
        sentence = '%(key)s is not served with eviction_policy "%(policy)s": write 1 or remove it.'
        raise _fault("store_threshold", sentence, policy=policy)


def parse_bytes(text: str) -> int | None:
    """`64GiB`, `64 GB`, `1.5 TiB` or a plain number as bytes; None when it is none of these."""
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    return int(float(match[1]) * factor) if match and factor else None


def _fault(key: str, sentence: str, **values: Any) -> ConfigError:
    values["key"] = key
    return ConfigError(f"kv_connector_extra_config: {sentence % values}", key, sentence, values)


def _check_known(key: str) -> None:
    if key in _READERS:
        return
    if key in UNSERVED:
        raise _fault(key, "%(key)s is not served by this connector: %(why)s.", why=UNSERVED[key])
    if near := difflib.get_close_matches(str(key), _READERS, n=1):
        raise _fault(str(key), "%(key)s is not a known key; did you mean %(near)s?", near=near[0])
    raise _fault(str(key), "%(key)s is not a known key; known keys are %(known)s.", known=", ".join(sorted(_READERS)))


def _size(key: str, value: Any) -> int:
    size = parse_bytes(value) if isinstance(value, str) else value
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if not isinstance(size, int) or isinstance(size, bool):
        sentence = '%(key)s cannot be %(value)s: write a number of bytes or a size such as "64GiB".'
        raise _fault(key, sentence, value=repr(value))
    if size <= 0:
        sentence = '%(key)s must be more than 0, not %(value)s: write a size such as "64GiB".'
        raise _fault(key, sentence, value=repr(value))
    return size


def _positive(example: int, most: int | None = None) -> Callable[[str, Any], int | None]:
    def read(key: str, value: Any) -> int | None:
        if value is None:
            return None
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value <= 0 or (most is not None and value > most):
            raise _fault(key, _limits(most), value=repr(value), most=most, example=example)
        return int(value)

    return read


def _limits(most: int | None) -> str:
    if most is None:
        return "%(key)s cannot be %(value)s: write a whole number of 1 or more, such as %(example)s."
    return "%(key)s cannot be %(value)s: write a whole number from 1 to %(most)s, such as %(example)s."


def _one_of(*words: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in words:
            raise _fault(key, _CHOICES, value=repr(value), choices=" or ".join(f'"{word}"' for word in words))
        return str(value)

    return read


def _at_least_one(example: int) -> Callable[[str, Any], int]:
    read = _positive(example)

    def checked(key: str, value: Any) -> int:
        number = read(key, value)
        if number is None:
            raise _fault(key, _limits(None), value="null", example=example)
        return number

    return checked


def _yes_or_no(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fault(key, "%(key)s cannot be %(value)s: write true or false.", value=repr(value))
    return value


def _module_path(key: str, value: Any) -> str | None:
    if value not in (None, "engine.spec"):
        raise _fault(key, '%(key)s cannot be %(value)s: write "engine.spec" or remove it.', value=repr(value))
    return None if value is None else str(value)


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "cpu_bytes_to_use": _size,
    "spec_name": _one_of(SPEC_NAME),
    "spec_module_path": _module_path,
    "eviction_policy": _one_of(*EVICTION_POLICIES),
    "demote_superseded_states": _yes_or_no,
    "mamba_state_slots_reference_tokens": _positive(DEFAULT_REFERENCE_TOKENS),
    "store_threshold": _at_least_one(2),
    "blocks_per_chunk": _positive(1),
    "block_size": _positive(784),
    "offload_prompt_only": _yes_or_no,
    "transfer_threads": _positive(2, MAX_TRANSFER_THREADS),
    "residency": _one_of("auto", "keep", "off"),
    "residency_foreign": _one_of("replace", "refuse"),
    "verify": _yes_or_no,
    "self_describing_kv_events": _yes_or_no,
    "sync_load_budget_bytes": _positive(1 << 20),
}


def reference() -> str:
    """The keys as a Markdown table, for the documentation."""
    hints = get_type_hints(TierConfig)
    rows = [
        f"| `{item.name}` | {_type_text(hints[item.name])} | {item.metadata['doc']} |" for item in fields(TierConfig)
    ]
    return "\n".join(["| key | type | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def _type_text(hint: Any) -> str:
    words = {int: "number", str: "text", bool: "true or false"}
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    return " or ".join(words[kind] for kind in kinds)
