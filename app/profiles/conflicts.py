"""Settings that are right one by one and wrong together, or wrong for this model and platform. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Context, ModelFacts
from app.profiles.finding import EXTRA, Finding, drop, error, fix, note, put, warning
from app.profiles.flags import KV_DTYPES
from app.profiles.memory import HostMemory, ranks_of
from app.profiles.sizes import exact_size, read_whole, shown
from app.profiles.transfer import extra_of, is_ours
from engine.config import ARENA_POLICIES

#: Tokens that a block is a multiple of.
BLOCK_UNITS: Final = {"cuda": 16, "cpu": 128}
#: The smallest block of a platform where attention alone decides.
PLAIN_UNITS: Final = {"cuda": 16, "cpu": 32}
_PLAIN_DTYPES: Final = ("auto", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """A profile that was read, its numbers as numbers."""

    config: Mapping[str, Any]
    flags: Mapping[str, Any]
    demand: tuple[HostMemory, ...]

    @property
    def has_connector(self) -> bool:
        """True when the engine gets a connector, from the config or by flag."""
        return bool(self.config.get("kv_connector")) or "kv-offloading-size" in self.flags


def check_conflicts(one: Settings, context: Context) -> list[Finding]:
    """All of them."""
    return [
        *_two_sizes(one),
        *_prefix_caching(one, context),
        *_hybrid(one, context),
        *_block(one, context),
        *_chunk(one, context),
        *_host_and_vram(one),
        *_dtype(one, context),
        *_lengths(one, context),
        *_unused_reference(one),
    ]


def _two_sizes(one: Settings) -> Iterable[Finding]:
    if "kv-cache-memory-bytes" in one.flags and "gpu-memory-utilization" in one.flags:
        path = "flags.gpu-memory-utilization"
        yield warning(
            path,
            "The KV memory has two sizes: with kv-cache-memory-bytes the engine passes over gpu-memory-utilization.",
            fix("Remove gpu-memory-utilization", drop(path)),
            fix("Remove kv-cache-memory-bytes", drop("flags.kv-cache-memory-bytes")),
        )
    if "kv-offloading-size" in one.flags and one.config.get("kv_connector"):
        path = "flags.kv-offloading-size"
        sentence = (
            "kv-offloading-size replaces the connector and size of the kv-transfer-config: write only one of them."
        )
        yield error(path, sentence, fix("Remove it", drop(path)))


def _prefix_caching(one: Settings, context: Context) -> Iterable[Finding]:
    path = "flags.enable-prefix-caching"
    if not one.has_connector:
        return
    if one.flags.get("enable-prefix-caching") is False or one.flags.get("no-enable-prefix-caching") is True:
        remedies = [put(path, True)]
        if "no-enable-prefix-caching" in one.flags:
            remedies.append(drop("flags.no-enable-prefix-caching"))
        sentence = "Prefix caching is off: the connector would store blocks that no request can find again."
        yield error(path, sentence, fix("Turn prefix caching on", *remedies))
    elif "enable-prefix-caching" not in one.flags and context.model is not None and context.model.is_hybrid:
        sentence = "Say enable-prefix-caching for this hybrid model; not every engine version turns it on by itself."
        yield warning(path, sentence, fix("Turn prefix caching on", put(path, True)))


def _hybrid(one: Settings, context: Context) -> Iterable[Finding]:
    if context.model is None or not context.model.is_hybrid or not one.has_connector:
        return
    path = "flags.mamba-cache-mode"
    mode = one.flags.get("mamba-cache-mode")
    remedy = fix("Write %(near)s", put(path, "align"), near="align")
    if mode is None:
        sentence = (
            "mamba-cache-mode align is missing: not every engine version takes it by itself, and without it no state "
            "of a hybrid model is kept where a prefix ends."
        )
        yield warning(path, sentence, remedy)
    elif mode != "align":
        sentence = "With mamba-cache-mode %(mode)s states of this hybrid model are not kept where the connector looks."
        yield warning(path, sentence, remedy, mode=shown(mode))
    if one.flags.get("enable-chunked-prefill") is False:
        chunked = "flags.enable-chunked-prefill"
        sentence = "The engine does not start: mamba-cache-mode align needs chunked prefill."
        yield error(chunked, sentence, fix("Remove it", drop(chunked)))
    if one.flags.get("disable-hybrid-kv-cache-manager") is True:
        manager = "flags.disable-hybrid-kv-cache-manager"
        sentence = "Without the hybrid KV cache manager the layers of this model cannot keep states and tokens apart."
        yield error(manager, sentence, fix("Remove it", drop(manager)))


def _block(one: Settings, context: Context) -> Iterable[Finding]:
    path, asked = "flags.block-size", read_whole(one.flags.get("block-size"))
    model, platform = context.model, context.platform
    if platform is None:
        return
    is_hybrid = model is not None and model.is_hybrid
    unit = (BLOCK_UNITS if is_hybrid else PLAIN_UNITS)[platform]
    if asked is not None and asked > 0 and asked % unit:
        needed = model.block_of(one.flags) if model is not None else None
        near = _multiple(max(asked, needed or 0), unit)
        remedy = fix("Write %(near)s", put(path, near), near=str(near))
        sentence = "%(asked)s is not a multiple of %(unit)s, which blocks are on this platform."
        say = error if is_hybrid or platform == "cuda" else warning
        yield say(path, sentence, remedy, asked=asked, unit=unit)
    elif model is not None and is_hybrid and (needed := model.block_of(one.flags)):
        yield from _hybrid_block(path, asked, needed, platform)


def _hybrid_block(path: str, asked: int | None, needed: int, platform: str) -> Iterable[Finding]:
    remedy = fix("Write %(near)s", put(path, needed), near=str(needed))
    if asked is None and platform == "cpu":
        sentence = (
            "Say block-size %(needed)s: on the CPU the scheduler does not learn that the block grows to fit a state, "
            "and prompts miss the second time they are asked."
        )
        yield warning(path, sentence, remedy, needed=needed)
    elif asked is not None and asked < needed:
        sentence = (
            "A block of %(asked)s tokens does not hold a state of this model; the engine enlarges it to %(needed)s."
        )
        yield warning(path, sentence, remedy, asked=asked, needed=needed)


def _chunk(one: Settings, context: Context) -> Iterable[Finding]:
    """`block_size` of the connector is in tokens, and a multiple of the device block."""
    if one.config.get("kv_connector") != keys.OFFLOADING:
        return
    path = f"{EXTRA}.block_size"
    chunk = read_whole(extra_of(one.config).get("block_size"))
    block = _device_block(one, context.model)
    if chunk and block and chunk % block:
        near = _multiple(chunk, block)
        remedy = fix("Write %(near)s", put(path, near), near=str(near))
        sentence = (
            "The connector's block_size %(asked)s is not a multiple of the device block of %(unit)s tokens; "
            "the engine refuses it."
        )
        yield error(path, sentence, remedy, asked=chunk, unit=block)


def _device_block(one: Settings, model: ModelFacts | None) -> int | None:
    asked = read_whole(one.flags.get("block-size"))
    if model is None or not model.is_hybrid:
        return asked
    return max(asked or 0, model.block_of(one.flags) or 0) or None


def _host_and_vram(one: Settings) -> Iterable[Finding]:
    vram = read_whole(one.flags.get("kv-cache-memory-bytes"))
    if not vram or not one.demand:
        return
    ranks = ranks_of(one.flags)
    whole, host = vram * ranks.every, sum(each.total_bytes for each in one.demand)
    if host < whole:
        sentence = (
            "The host tier of %(host)s is smaller than the KV cache in VRAM, %(vram)s over %(ranks)s ranks: "
            "it holds hardly anything that VRAM does not hold already."
        )
        yield warning(one.demand[0].path, sentence, host=exact_size(host), vram=exact_size(whole), ranks=ranks.every)


def _dtype(one: Settings, context: Context) -> Iterable[Finding]:
    path, dtype = "flags.kv-cache-dtype", one.flags.get("kv-cache-dtype")
    if not isinstance(dtype, str) or dtype in _PLAIN_DTYPES:
        return
    remedy = fix("Write %(near)s", put(path, "auto"), near="auto")
    if context.platform == "cpu" and dtype not in KV_DTYPES:
        yield error(path, "The CPU platform has no KV cache of type %(dtype)s.", remedy, dtype=dtype)
    elif context.platform == "cuda" and dtype == "fp8_inc":
        yield error(
            path, "fp8_inc is for Gaudi, not for this platform.", fix("Write %(near)s", put(path, "fp8"), near="fp8")
        )
    elif context.model is not None and dtype.endswith("_ds_mla") and not context.model.is_latent:
        yield error(
            path, "%(dtype)s is for models with latent attention (MLA), which this one is not.", remedy, dtype=dtype
        )
    elif context.model is not None and dtype.startswith("nvfp4") and "ds_mla" not in dtype and context.model.is_latent:
        yield error(path, "This model's latent attention (MLA) has no KV cache of type %(dtype)s.", remedy, dtype=dtype)
    else:
        yield note(
            path, "A KV cache of type %(dtype)s changes answers a little: compare them before it serves.", dtype=dtype
        )


def _lengths(one: Settings, context: Context) -> Iterable[Finding]:
    length = read_whole(one.flags.get("max-model-len"))
    if length is None:
        return
    longest = context.model.longest_tokens if context.model is not None else None
    if longest is not None and length > longest:
        path = "flags.max-model-len"
        remedy = fix("Write %(near)s", put(path, longest), near=str(longest))
        yield warning(
            path, "The model was made for %(longest)s tokens, not %(length)s.", remedy, longest=longest, length=length
        )
    reference = (
        read_whole(extra_of(one.config).get("mamba_state_slots_reference_tokens")) if is_ours(one.config) else None
    )
    if reference is not None and length > 0 and reference > length:
        path = f"{EXTRA}.mamba_state_slots_reference_tokens"
        remedy = fix("Write %(near)s", put(path, length), near=str(length))
        sentence = "No session can be %(reference)s tokens long: max-model-len is %(length)s."
        yield warning(path, sentence, remedy, reference=reference, length=length)


def _unused_reference(one: Settings) -> Iterable[Finding]:
    extra = extra_of(one.config)
    key, policy = "mamba_state_slots_reference_tokens", extra.get("eviction_policy")
    if is_ours(one.config) and policy in ARENA_POLICIES and extra.get(key) is not None:
        path = f"{EXTRA}.{key}"
        sentence = "With eviction_policy %(policy)s there is no split, so this length decides nothing."
        yield note(path, sentence, fix("Remove it", drop(path)), policy=policy)


def _multiple(value: int, unit: int) -> int:
    return -(-value // unit) * unit
