"""Settings that are right one by one and wrong together, or wrong for this model and platform. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Context, ModelFacts, Version
from app.profiles.finding import EXTRA, Finding, drop, error, fix, note, put, warning
from app.profiles.flags import EVERY_KV_DTYPE, KV_DTYPES, MOST_RANKS, PLUGINS_VARIABLE
from app.profiles.memory import HostMemory, ranks_of
from app.profiles.nearest import nearest
from app.profiles.nested import at_place, connectors_of
from app.profiles.sizes import GIB, MEANT_GIB_BELOW, exact_size, read_whole, shown
from app.profiles.transfer import extra_of, is_ours
from engine.config import ARENA_POLICIES

#: Tokens that a block is a multiple of.
BLOCK_UNITS: Final = {"cuda": 16, "cpu": 128}
#: The smallest block of a platform where attention alone decides.
PLAIN_UNITS: Final = {"cuda": 16, "cpu": 32}
#: The engine that first takes prefix-cache-retention-interval.
RETENTION_SINCE: Final[Version] = (0, 32)
#: The name of the entry point in the group `vllm.general_plugins`.
OUR_PLUGIN: Final = "tierdeck"
_PLAIN_DTYPES: Final = ("auto", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """A profile that was read, its numbers as numbers."""

    config: Mapping[str, Any]
    flags: Mapping[str, Any]
    demand: tuple[HostMemory, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The fleet's variables with the profile's over them."""

    @property
    def has_connector(self) -> bool:
        """True when the engine gets a connector, from the config or by flag."""
        return bool(self.config.get("kv_connector")) or "kv-offloading-size" in self.flags


def needed_switches(one: Settings, context: Context) -> dict[str, bool]:
    """What switches must say under a connector; anything else is an error of `check_conflicts`."""
    if not one.has_connector:
        return {}
    is_hybrid = context.model is not None and context.model.is_hybrid
    return {"enable-prefix-caching": True, **({"enable-chunked-prefill": True} if is_hybrid else {})}


def check_conflicts(one: Settings, context: Context) -> list[Finding]:
    """All of them."""
    return [
        *_two_sizes(one),
        *_prefix_caching(one, context),
        *_hybrid(one, context),
        *_interval(one, context.model),
        *_block(one, context),
        *_host_and_vram(one),
        *_dtype(one, context),
        *_lengths(one, context),
        *_devices(one, context),
        *_small_vram(one),
        *_batch(one),
        *_ranks(one, context),
        *_unread_model(context),
        *_plugins(one),
        *_of_each_connector(one, context),
    ]


def _of_each_connector(one: Settings, context: Context) -> Iterable[Finding]:
    """What a connector's own settings do not go together with, also of those inside a MultiConnector."""
    for place, config in connectors_of(one.config):
        alone = replace(one, config=config)
        found = (*_windows(alone, context), *_chunk(alone, context), *_reference(alone), *_unused_reference(alone))
        yield from (at_place(finding, place) for finding in found)


def _plugins(one: Settings) -> Iterable[Finding]:
    """vLLM loads only the plug-ins that VLLM_PLUGINS names, and ours puts the connector behind its spec's name."""
    named = one.environment.get(PLUGINS_VARIABLE)
    if named is None or OUR_PLUGIN in str(named).split(","):
        return
    if any(is_ours(config) for _, config in connectors_of(one.config)):
        path = f"environment.{PLUGINS_VARIABLE}"
        wanted = ",".join(filter(None, (*str(named).split(","), OUR_PLUGIN)))
        yield error(
            path,
            "%(variable)s leaves out %(plugin)s: vLLM's own connector would serve in place of the deck's.",
            fix("Write %(near)s", put(path, wanted), near=wanted),
            variable=PLUGINS_VARIABLE,
            plugin=OUR_PLUGIN,
        )


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
    yield from _retention(one, context)
    if one.flags.get("enable-chunked-prefill") is False:
        chunked = "flags.enable-chunked-prefill"
        sentence = "The engine does not start: mamba-cache-mode align needs chunked prefill."
        yield error(chunked, sentence, fix("Remove it", drop(chunked)))
    if one.flags.get("disable-hybrid-kv-cache-manager") is True:
        manager = "flags.disable-hybrid-kv-cache-manager"
        sentence = "Without the hybrid KV cache manager the layers of this model cannot keep states and tokens apart."
        yield error(manager, sentence, fix("Remove it", drop(manager)))


def _retention(one: Settings, context: Context) -> Iterable[Finding]:
    path = "flags.prefix-cache-retention-interval"
    if one.flags.get("prefix-cache-retention-interval") is None and context.engine_version >= RETENTION_SINCE:
        sentence = (
            "Without prefix-cache-retention-interval the engine keeps a state at every block, and few tokens find room "
            "in the host tier; 0 keeps the newest only."
        )
        yield warning(path, sentence, fix("Write %(near)s", put(path, 0), near="0"))


def _interval(one: Settings, model: ModelFacts | None) -> Iterable[Finding]:
    """The engine's scheduler keeps states at ends of blocks alone, and ends a start that asks for others."""
    path = "flags.prefix-cache-retention-interval"
    interval, block = read_whole(one.flags.get("prefix-cache-retention-interval")), _device_block(one, model)
    if model is None or not model.is_hybrid or not interval or interval < 0 or not block or not interval % block:
        return
    near = _multiple(interval, block)
    sentence = "%(asked)s is not a multiple of the block of %(unit)s tokens; the engine does not start with it."
    yield error(path, sentence, fix("Write %(near)s", put(path, near), near=str(near)), asked=interval, unit=block)


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
    if chunk and chunk > 0 and block and chunk % block:
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
    if host < whole and ranks.every == 1:
        sentence = (
            "The host tier of %(host)s is smaller than the KV cache in VRAM, %(vram)s: "
            "it holds hardly anything that VRAM does not hold already."
        )
        yield warning(one.demand[0].path, sentence, host=exact_size(host), vram=exact_size(whole))
    elif host < whole:
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
    if dtype not in EVERY_KV_DTYPE:
        near = nearest(dtype[:64], EVERY_KV_DTYPE) or "auto"
        write = fix("Write %(near)s", put(path, near), near=near)
        sentence = "vLLM knows no KV cache of type %(dtype)s; the nearest is %(near)s."
        yield error(path, sentence, write, dtype=shown(dtype), near=near)
    elif context.platform == "cpu" and dtype not in KV_DTYPES:
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


def _devices(one: Settings, context: Context) -> Iterable[Finding]:
    """Every rank takes a device of its own."""
    ranks = ranks_of(one.flags).every
    if context.devices and ranks > len(context.devices):
        sentence = "The engine needs %(ranks)s devices; the fleet gives it %(count)s: %(devices)s."
        devices = ", ".join(context.devices)
        yield error("flags.tensor-parallel-size", sentence, ranks=ranks, count=len(context.devices), devices=devices)


def _small_vram(one: Settings) -> Iterable[Finding]:
    """A number of bytes that was probably meant as GiB, as for the host tier."""
    path, size = "flags.kv-cache-memory-bytes", read_whole(one.flags.get("kv-cache-memory-bytes"))
    if size is not None and 0 < size < MEANT_GIB_BELOW:
        near = f"{size} GiB"
        remedy = fix("Write %(near)s", put(path, size * GIB), near=f"{size * GIB} ({near})")
        yield warning(path, "The KV cache is %(size)s; was %(near)s meant?", remedy, size=exact_size(size), near=near)


def _batch(one: Settings) -> Iterable[Finding]:
    """The engine's scheduler gives every sequence a token of a step."""
    path = "flags.max-num-batched-tokens"
    tokens, sequences = read_whole(one.flags.get("max-num-batched-tokens")), read_whole(one.flags.get("max-num-seqs"))
    if tokens is not None and sequences is not None and 0 < tokens < sequences:
        remedy = fix("Write %(near)s", put(path, sequences), near=str(sequences))
        sentence = "The engine does not start with fewer tokens a step (%(tokens)s) than max-num-seqs, %(sequences)s."
        yield error(path, sentence, remedy, tokens=tokens, sequences=sequences)


def _ranks(one: Settings, context: Context) -> Iterable[Finding]:
    """Heads are shared evenly, by the planner's own rule."""
    path, ranks = "flags.tensor-parallel-size", ranks_of(one.flags).tensor
    if context.model is None or ranks > MOST_RANKS or context.model.takes_ranks(ranks):
        return
    near = next(count for count in range(ranks - 1, 0, -1) if count == 1 or context.model.takes_ranks(count))
    sentence = "The heads of this model cannot be shared evenly among %(ranks)s ranks; the engine does not start."
    yield error(path, sentence, fix("Write %(near)s", put(path, near), near=str(near)), ranks=ranks)


def _windows(one: Settings, context: Context) -> Iterable[Finding]:
    """What the planner refuses of chunks, at the field that says it."""
    if one.config.get("kv_connector") != keys.OFFLOADING or context.model is None:
        return
    extra = extra_of(one.config)
    key = "block_size" if extra.get("block_size") is not None else "blocks_per_chunk"
    blocks = read_whole(extra.get("blocks_per_chunk")) or 1
    if refusal := context.model.refused_chunk(blocks, read_whole(extra.get("block_size"))):
        path = f"{EXTRA}.{key}"
        yield Finding("error", path, refusal.sentence, values=refusal.values, fixes=(fix("Remove it", drop(path)),))


def _unread_model(context: Context) -> Iterable[Finding]:
    if context.unread_model:
        sentence = "The config.json of %(model)s cannot be read: nothing was checked against the model."
        yield note("model", sentence, model=context.unread_model)


def _reference(one: Settings) -> Iterable[Finding]:
    length = read_whole(one.flags.get("max-model-len"))
    reference = (
        read_whole(extra_of(one.config).get("mamba_state_slots_reference_tokens")) if is_ours(one.config) else None
    )
    if reference is not None and length is not None and length > 0 and reference > length:
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
