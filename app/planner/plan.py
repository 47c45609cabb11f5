"""A model and a wish -> the plan: geometry, VRAM budget, host budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.errors import InvalidInput
from app.planner.block_size import Sizes, block_findings, block_tokens, reserved_bytes
from app.planner.fields import Finding
from app.planner.geometry import Geometry, Part, read_geometry
from app.planner.host import (
    USUAL_LONGEST_TOKENS,
    ArenaPlan,
    SlotRow,
    SlotSizes,
    Split,
    plan_arena,
    reference_lengths,
    slot_rows,
)
from app.planner.recurrence import DTYPE_BYTES
from app.planner.size_text import size_text
from app.planner.vram import Card, Reserve, VramPlan, plan_vram
from app.planner.wish import HostWish, VramWish, Wish

GIB: Final = 1 << 30
OWN_KV_BYTES: Final = 2
FP8_KV_BYTES: Final = 1


@dataclass(frozen=True)
class HostPlan:
    """The host tier: its slots' sizes, and a row for each reference length."""

    host_bytes: int
    worker_bytes: int
    token_slot_bytes: float
    state_slot_bytes: float
    chunk_tokens: int
    retention_interval: int | None
    session_tokens: int | None
    layout_from: str
    """`model`, `engine` (a running one told) or `given`."""
    eviction_policy: str
    rows: tuple[SlotRow, ...]
    """A row for each reference length; none where there is no split."""
    arena: ArenaPlan | None


@dataclass(frozen=True)
class ModelPlan:
    """What the model keeps, for the whole model and for one worker."""

    geometry: Geometry
    sizes: Sizes
    block_tokens: int
    length: int
    longest_tokens: int
    step_tokens: int

    @property
    def sequence_bytes(self) -> int:
        """What one sequence of `length` holds: tokens, full windows, one state."""
        one, kv = self.geometry, self.sizes.kv_bytes
        window = min(1.0, self.length / one.window_tokens) if one.window_tokens else 1.0
        state = one.state_bytes(self.sizes.state_element_bytes)
        return one.bytes_per_token(kv) * self.length + int(one.window_bytes(kv) * window) + state

    @property
    def reserved_bytes(self) -> int:
        """What the engine sets aside for it, over all workers."""
        return self.sizes.workers * self.reserve(self.length)

    def reserve(self, length: int) -> int:
        """What each worker sets aside for a sequence."""
        return reserved_bytes(self.geometry, self.sizes, self.block_tokens, length, self.step_tokens)


@dataclass(frozen=True)
class Plan:
    """Everything that was asked."""

    wish: Wish
    model: ModelPlan | None
    """None when only the slots' sizes were given."""
    host: HostPlan | None
    vram: VramPlan | None
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """As the command and REST answer it."""
        told: dict[str, Any] = {} if self.model is None else _model_json(self.model, self.wish)
        told["findings"] = [asdict(finding) for finding in self.findings]
        if self.host is not None:
            told["host"] = {key: value for key, value in asdict(self.host).items() if key != "rows"}
            told["slots"] = [asdict(row) for row in self.host.rows]
        if self.vram is not None:
            told["vram"] = asdict(self.vram)
        return told


def make_plan(config: Mapping[str, Any], wish: Wish, running: SlotSizes | None = None) -> Plan:
    """Plan a model. `running` are the slots of an engine that runs it, where one does."""
    geometry = read_geometry(config, with_draft_layers=wish.engine.mtp)
    geometry.check_workers(wish.engine.world_size)
    longest, of_length = _longest(geometry, wish)
    model = _model(geometry, wish, longest)
    is_hybrid = geometry.recurrence is not None
    findings = [
        *_geometry_findings(geometry, wish),
        *of_length,
        *block_findings(model.block_tokens, wish.engine.block_tokens, wish.engine.platform, is_hybrid),
    ]
    host, of_host = _host(model, wish.host, running) if wish.host else (None, [])
    of_host += [*_reference_findings(geometry, wish.host), *_interval_findings(model, wish.host)]
    vram = _vram(model, wish, wish.vram) if wish.vram else None
    return Plan(wish, model, host, vram, (*findings, *of_host, *_vram_findings(wish.vram)))


def plan_slots_alone(wish: Wish) -> Plan:
    """The host budget of slots whose sizes are given, without a model."""
    host, block = wish.host, wish.engine.block_tokens
    if host is None:
        raise InvalidInput("Write the host tier's size, such as 64GiB.", path="host_bytes")
    if host.token_slot_bytes is None or host.state_slot_bytes is None or block is None:
        raise InvalidInput(
            "Without a model, the plan needs token_slot_bytes, state_slot_bytes and block_tokens.", path="model"
        )
    chunk = _chunk_tokens(block, host)
    sizes = SlotSizes(host.token_slot_bytes, host.state_slot_bytes, chunk, wish.engine.world_size)
    longest = wish.engine.max_model_len or USUAL_LONGEST_TOKENS
    return Plan(wish, None, _host_plan(sizes, host, longest, "given"), None, tuple(_size_findings(host)))


def _model(geometry: Geometry, wish: Wish, longest: int) -> ModelPlan:
    engine = wish.engine
    sizes = Sizes(engine.kv_bytes, DTYPE_BYTES[state_dtype(geometry, wish)], engine.world_size)
    block = block_tokens(geometry, engine.platform, sizes, engine.block_tokens)
    return ModelPlan(geometry, sizes, block, engine.length or longest, longest, engine.max_num_batched_tokens)


def state_dtype(geometry: Geometry, wish: Wish) -> str:
    """As asked; else float32 on the CPU, where fast kernels keep nothing else; else the model's own."""
    if wish.engine.state_dtype != "auto":
        return wish.engine.state_dtype
    return "float32" if wish.engine.platform == "cpu" else geometry.state_dtype or "float32"


def _geometry_findings(geometry: Geometry, wish: Wish) -> list[Finding]:
    """What the model's own fields leave open, without what the wish settles."""
    if wish.engine.state_dtype == "auto" and wish.engine.platform == "cuda":
        return list(geometry.findings)
    found = [finding for finding in geometry.findings if finding.code != "state_dtype_assumed"]
    has_state = geometry.recurrence is not None and bool(geometry.recurrence.per_head)
    if wish.engine.state_dtype == "auto" and has_state:
        message = (
            "On a CPU with AVX-512 bf16 the engine keeps recurrent states in float32, whatever the model declares."
        )
        found.append(Finding("note", "cpu_state_dtype", "state_dtype", message))
    return found


def _longest(geometry: Geometry, wish: Wish) -> tuple[int, list[Finding]]:
    asked, told = wish.engine.max_model_len, geometry.longest_tokens
    if asked is not None and told is not None and asked > told:
        message = f"max_model_len is {asked}, the model was made for {told}."
        return asked, [Finding("warning", "beyond_the_model", "max_model_len", message, {"asked": asked, "told": told})]
    if asked is None and told is None:
        message = f"Neither the model nor max_model_len tells the longest sequence; {USUAL_LONGEST_TOKENS} is used."
        values = {"tokens": USUAL_LONGEST_TOKENS}
        return USUAL_LONGEST_TOKENS, [Finding("note", "longest_assumed", "max_model_len", message, values)]
    return asked or told or USUAL_LONGEST_TOKENS, []


def _host(model: ModelPlan, host: HostWish, running: SlotSizes | None) -> tuple[HostPlan | None, list[Finding]]:
    findings = _size_findings(host)
    if model.geometry.has_chunks:
        message = "The host tier's connector does not serve chunked attention; there are no slots to plan."
        return None, [*findings, Finding("warning", "chunks_not_served", "host_bytes", message)]
    if model.geometry.window_layers:
        findings = [*findings, _windows(host)]
    sizes, source = (running, "engine") if running else (_slots(model, host), "model")
    return _host_plan(sizes, host, model.longest_tokens, source), findings


def _windows(host: HostWish) -> Finding:
    check_chunk(host.blocks_per_chunk, host.chunk_tokens)
    message = "A token slot holds the blocks of the sliding layers too, although a session needs the last ones only."
    return Finding("note", "windows_in_slots", "host_bytes", message)


def check_chunk(blocks: int, tokens: int | None) -> None:
    """Raise InvalidInput for chunks, of `blocks` or of `tokens`, that no model with sliding windows is served in."""
    if blocks > 1 or tokens is not None:
        raise InvalidInput(
            "blocks_per_chunk cannot be set for a model with sliding windows: the connector serves them in single "
            "blocks alone.",
            path="blocks_per_chunk",
        )


def _slots(model: ModelPlan, host: HostWish) -> SlotSizes:
    sizes, chunk = model.sizes, _chunk_tokens(model.block_tokens, host)
    layers = model.geometry.growing_layers + model.geometry.window_layers
    return SlotSizes(
        token_bytes=chunk * layers * model.geometry.attention.bytes_per_token(sizes.kv_bytes, sizes.workers),
        state_bytes=model.geometry.state_bytes(sizes.state_element_bytes, sizes.workers),
        chunk_tokens=chunk,
        workers=sizes.workers,
    )


def _chunk_tokens(block: int, host: HostWish) -> int:
    if host.chunk_tokens is None:
        return block * host.blocks_per_chunk
    if host.chunk_tokens % block:
        sentence = "chunk_tokens is %(asked)s: write a multiple of the block, %(block)s tokens."
        raise InvalidInput(sentence, path="chunk_tokens", values={"asked": host.chunk_tokens, "block": block})
    return host.chunk_tokens


def _host_plan(sizes: SlotSizes, host: HostWish, longest: int, source: str) -> HostPlan:
    split = Split(host.host_bytes, host.retention_interval, host.reference_tokens, host.session_tokens)
    rows = slot_rows(sizes, split, reference_lengths(longest, host.reference_tokens)) if host.is_split else []
    arena = None if host.is_split else plan_arena(sizes, split, reference_lengths(longest, host.session_tokens))
    return HostPlan(
        host_bytes=host.host_bytes,
        worker_bytes=host.host_bytes // sizes.workers,
        token_slot_bytes=sizes.token_bytes,
        state_slot_bytes=sizes.state_bytes,
        chunk_tokens=sizes.chunk_tokens,
        retention_interval=host.retention_interval,
        session_tokens=host.session_tokens,
        layout_from=source,
        eviction_policy=host.eviction_policy,
        rows=tuple(rows),
        arena=arena,
    )


def _size_findings(host: HostWish) -> list[Finding]:
    if host.host_bytes >= GIB:
        return []
    message = f"host_bytes is {host.host_bytes} bytes, less than 1 GiB; was {host.host_bytes} GiB meant?"
    return [Finding("warning", "small_host", "host_bytes", message, {"bytes": host.host_bytes})]


def _reference_findings(geometry: Geometry, host: HostWish | None) -> list[Finding]:
    """Without a retention interval every block gets a state, and memory is gone long before tokens are."""
    if host is None or host.retention_interval is not None or not geometry.recurrent_layers:
        return []
    if not host.is_split:
        message = (
            "The engine keeps a state at every block, which leaves little room for tokens; "
            "set --prefix-cache-retention-interval 0 to keep the newest only."
        )
        return [Finding("warning", "states_fill_the_arena", "retention_interval", message)]
    message = (
        "The engine keeps a state at every block, so the reference length changes nothing and few tokens are held; "
        "set --prefix-cache-retention-interval 0 to keep the newest only."
    )
    return [Finding("warning", "state_at_every_block", "retention_interval", message)]


def _interval_findings(model: ModelPlan, host: HostWish | None) -> list[Finding]:
    """The engine's scheduler keeps states at ends of blocks alone, and ends a start that asks for others."""
    interval = host.retention_interval if host is not None else None
    if not interval or not model.geometry.recurrent_layers or not interval % model.block_tokens:
        return []
    values = {"asked": interval, "block": model.block_tokens}
    message = (
        f"retention_interval is {interval}, not a multiple of the block of {model.block_tokens} tokens; "
        "the engine does not start with it."
    )
    return [Finding("warning", "interval_off_the_block", "retention_interval", message, values)]


def _vram(model: ModelPlan, wish: Wish, vram: VramWish) -> VramPlan:
    if vram.weights_bytes is None:
        raise InvalidInput(
            "weights_bytes is missing: write the size of the weights, such as 18GB; a model directory tells it itself.",
            path="weights_bytes",
        )
    card = Card(
        gpu_bytes=vram.gpu_bytes,
        utilization=vram.utilization,
        weights_bytes=-(-vram.weights_bytes // wish.engine.world_size),
        overhead_bytes=vram.overhead_bytes,
        kv_cache_bytes=vram.kv_cache_memory_bytes,
        sequences=vram.sequences,
        length=model.length,
    )
    lengths = reference_lengths(model.longest_tokens, model.length)
    own, fp8 = _reserve(model, wish, OWN_KV_BYTES), _reserve(model, wish, FP8_KV_BYTES)
    return plan_vram(card, model.reserve, own, fp8, lengths)


def _reserve(model: ModelPlan, wish: Wish, kv_bytes: int) -> Reserve:
    """Reserving with another KV type: the block changes with it."""
    sizes = Sizes(kv_bytes, model.sizes.state_element_bytes, model.sizes.workers)
    block = block_tokens(model.geometry, wish.engine.platform, sizes, wish.engine.block_tokens)
    return lambda length: reserved_bytes(model.geometry, sizes, block, length, model.step_tokens)


def _vram_findings(vram: VramWish | None) -> list[Finding]:
    if vram is None or vram.kv_cache_memory_bytes is not None:
        return []
    size = size_text(vram.overhead_bytes)
    message = (
        f"{size} are set aside on each card for temporary tensors and the runtime; "
        "the engine measures its own at start. Change overhead_bytes when you know better."
    )
    values = {"size": size}
    return [Finding("note", "overhead_assumed", "overhead_bytes", message, values)]


def _model_json(model: ModelPlan, wish: Wish) -> dict[str, Any]:
    one, sizes = model.geometry, model.sizes
    kv, state, workers = sizes.kv_bytes, sizes.state_element_bytes, sizes.workers
    return {
        "platform": wish.engine.platform,
        "world_size": workers,
        "kv_dtype": wish.engine.kv_dtype,
        "state_dtype": state_dtype(one, wish) if one.recurrence else None,
        "bytes_per_token": one.bytes_per_token(kv),
        "window_bytes_per_sequence": one.window_bytes(kv),
        "state_bytes_per_sequence": one.state_bytes(state),
        "growing_layers": one.growing_layers,
        "window_layers": one.window_layers,
        "recurrent_layers": one.recurrent_layers,
        "idle_layers": one.idle_layers,
        "block_tokens": model.block_tokens,
        "length_tokens": model.length,
        "longest_tokens": model.longest_tokens,
        "sequence_bytes": model.sequence_bytes,
        "reserved_bytes": model.reserved_bytes,
        "worker": {
            "bytes_per_token": one.bytes_per_token(kv, workers),
            "window_bytes_per_sequence": one.window_bytes(kv, workers),
            "state_bytes_per_sequence": one.state_bytes(state, workers),
        },
        "layers": [{**asdict(part), "bytes": part.bytes} for part in parts_of(model)],
    }


def parts_of(model: ModelPlan) -> tuple[Part, ...]:
    """The explanation of a plan, layer kind by layer kind."""
    return model.geometry.parts(model.sizes.kv_bytes, model.sizes.state_element_bytes)
