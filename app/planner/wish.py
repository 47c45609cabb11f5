"""What is asked of the planner, read from options, JSON or a form alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import InvalidInput
from app.planner.block_size import BLOCK_UNITS, Platform
from app.planner.vram import USUAL_OVERHEAD_BYTES
from engine.config import ARENA_POLICIES, EVICTION_POLICIES, parse_bytes

KV_DTYPES: Final = {
    "auto": 2,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
STATE_DTYPES: Final = {
    "auto": "auto",
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
EVERY_BLOCK: Final = "every_block"
POLICIES: Final = dict.fromkeys(EVICTION_POLICIES)
MOST_TOKENS: Final = 1 << 27
MOST_BYTES: Final = 1 << 60
USUAL_UTILIZATION: Final = 0.92


@dataclass(frozen=True)
class EngineWish:
    """How the engine would run the model."""

    platform: Platform
    world_size: int
    kv_dtype: str
    state_dtype: str
    length: int | None
    max_model_len: int | None
    block_tokens: int | None
    max_num_batched_tokens: int
    mtp: bool

    @property
    def kv_bytes(self) -> int:
        """Of a KV element."""
        return KV_DTYPES[self.kv_dtype]


@dataclass(frozen=True)
class HostWish:
    """The host tier."""

    host_bytes: int
    eviction_policy: str
    reference_tokens: int | None
    retention_interval: int | None
    session_tokens: int | None
    blocks_per_chunk: int
    chunk_tokens: int | None
    """Of a token slot, where it is told in tokens instead of blocks."""
    token_slot_bytes: int | None
    state_slot_bytes: int | None

    @property
    def is_split(self) -> bool:
        """True when blocks and states have slots of their own, whose numbers a reference length decides."""
        return self.eviction_policy not in ARENA_POLICIES


@dataclass(frozen=True)
class VramWish:
    """The card, each worker's own."""

    gpu_bytes: int
    utilization: float
    kv_cache_memory_bytes: int | None
    weights_bytes: int | None
    overhead_bytes: int
    sequences: int


@dataclass(frozen=True)
class Wish:
    """Everything; without a host or VRAM budget only the geometry is told."""

    engine: EngineWish
    host: HostWish | None
    vram: VramWish | None


NAMES: Final = frozenset(
    {
        "platform",
        "world_size",
        "kv_dtype",
        "state_dtype",
        "length",
        "max_model_len",
        "block_tokens",
        "max_num_batched_tokens",
        "mtp",
        "host_bytes",
        "eviction_policy",
        "reference_tokens",
        "retention_interval",
        "session_tokens",
        "blocks_per_chunk",
        "chunk_tokens",
        "token_slot_bytes",
        "state_slot_bytes",
        "gpu_bytes",
        "utilization",
        "kv_cache_memory_bytes",
        "weights_bytes",
        "overhead_bytes",
        "sequences",
    }
)


def read_wish(raw: Mapping[str, Any]) -> Wish:
    """The wish, or InvalidInput that names the field, also where its budget is not asked for.

    Absent, null and empty text are the same.
    """
    given = {name: value for name, value in raw.items() if value is not None and value != ""}
    return Wish(_engine(given), _host(given), _vram(given))


def _engine(given: Mapping[str, Any]) -> EngineWish:
    kv_dtype = _choice(given, "kv_dtype", KV_DTYPES, "auto")
    return EngineWish(
        platform="cpu" if _choice(given, "platform", BLOCK_UNITS, "cuda") == "cpu" else "cuda",
        world_size=_tokens(given, "world_size", most=4096) or 1,
        kv_dtype=kv_dtype,
        state_dtype=STATE_DTYPES[_choice(given, "state_dtype", STATE_DTYPES, "auto")],
        length=_tokens(given, "length"),
        max_model_len=_tokens(given, "max_model_len"),
        block_tokens=_tokens(given, "block_tokens", most=1 << 20),
        max_num_batched_tokens=_tokens(given, "max_num_batched_tokens") or 8192,
        mtp=_yes(given, "mtp"),
    )


def _host(given: Mapping[str, Any]) -> HostWish | None:
    host_bytes = _bytes(given, "host_bytes")
    wish = HostWish(
        host_bytes=host_bytes or 0,
        eviction_policy=_choice(given, "eviction_policy", POLICIES, "lru"),
        reference_tokens=_tokens(given, "reference_tokens"),
        retention_interval=_retention(given),
        session_tokens=_tokens(given, "session_tokens"),
        blocks_per_chunk=_tokens(given, "blocks_per_chunk", most=1 << 16) or 1,
        chunk_tokens=_tokens(given, "chunk_tokens", most=1 << 24),
        token_slot_bytes=_bytes(given, "token_slot_bytes"),
        state_slot_bytes=_bytes(given, "state_slot_bytes", least=0),
    )
    return wish if host_bytes is not None else None


def _vram(given: Mapping[str, Any]) -> VramWish | None:
    gpu_bytes = _bytes(given, "gpu_bytes")
    fixed = _bytes(given, "kv_cache_memory_bytes")
    if fixed is not None and "utilization" in given:
        raise InvalidInput(
            "utilization and kv_cache_memory_bytes are alternatives: write only one of them.",
            path="kv_cache_memory_bytes",
        )
    overhead = _bytes(given, "overhead_bytes", least=0)
    wish = VramWish(
        gpu_bytes=gpu_bytes or 0,
        utilization=_ratio(given, "utilization"),
        kv_cache_memory_bytes=fixed,
        weights_bytes=_bytes(given, "weights_bytes"),
        overhead_bytes=USUAL_OVERHEAD_BYTES if overhead is None else overhead,
        sequences=_tokens(given, "sequences", most=1 << 20) or 1,
    )
    return wish if gpu_bytes is not None else None


def _retention(given: Mapping[str, Any]) -> int | None:
    if given.get("retention_interval", 0) == EVERY_BLOCK:
        return None
    return _tokens(given, "retention_interval", least=0) or 0


def _tokens(given: Mapping[str, Any], name: str, least: int = 1, most: int = MOST_TOKENS) -> int | None:
    """A whole number; as text too, because forms have nothing else."""
    if name not in given:
        return None
    value = given[name]
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    found = _whole(value)
    if found is None or not least <= found <= most:
        sentence = "%(name)s cannot be %(value)s: write a whole number from %(least)s to %(most)s."
        raise _refused(name, value, sentence, least=least, most=most)
    return found


def _bytes(given: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    if name not in given:
        return None
    value = given[name]
    size = parse_bytes(value) if isinstance(value, str) and len(value) < 40 else _whole(value)
    if size is None or not least <= size <= MOST_BYTES:
        sentence = "%(name)s cannot be %(value)s: write a number of bytes, or a size such as 64GiB or 64 GB."
        raise _refused(name, value, sentence)
    return size


def _ratio(given: Mapping[str, Any], name: str) -> float:
    value = given.get(name, USUAL_UTILIZATION)
    try:
        ratio = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        ratio = math.nan
    if not 0 < ratio <= 1:
        sentence = "%(name)s cannot be %(value)s: write a share above 0 and up to 1, such as 0.92."
        raise _refused(name, value, sentence)
    return ratio


def _yes(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in {"true", "on", "1", "false", "off", "0"}:
        return value in {"true", "on", "1"}
    sentence = "%(name)s cannot be %(value)s: write true or false."
    raise _refused(name, value, sentence)


def _choice(given: Mapping[str, Any], name: str, known: Mapping[str, Any], usual: str) -> str:
    value = given.get(name, usual)
    if not isinstance(value, str) or value not in known:
        sentence = "%(name)s cannot be %(value)s: write one of %(choices)s."
        raise _refused(name, value, sentence, choices=", ".join(known))
    return value


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _refused(name: str, value: Any, sentence: str, **values: Any) -> InvalidInput:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**24 else "a number of more than 24 digits"
    return InvalidInput(sentence, path=name, values={"name": name, "value": shown[:60], **values})
