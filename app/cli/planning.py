"""`tierdeck plan`: what a model keeps, and what a host tier or a card holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from app.planner.geometry import Part
    from app.planner.plan import Plan
    from app.planner.vram import VramPlan

SLOT_COLUMNS = ("reference_tokens", "token_slots", "state_slots", "tokens_held", "restorable_sessions", "")
ARENA_COLUMNS = ("session_tokens", "session_bytes", "restorable_sessions", "tokens_held")
VRAM_COLUMNS = ("length", "bytes", "sequences", "fp8_bytes", "fp8_sequences")


def _size(text: str) -> Any:
    return typer.Option(help=f"{text} Bytes, or a size such as 64GiB or 64GB.")


def plan(
    model: Annotated[
        str | None, typer.Option(help="The model's config.json, or the directory it lies in; - reads standard input.")
    ] = None,
    host_bytes: Annotated[str | None, _size("Memory of the host tier over all workers.")] = None,
    world_size: Annotated[int, typer.Option(min=1, help="Tensor parallel workers.")] = 1,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence; default the longest.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest sequence; default the model's.")] = None,
    platform: Annotated[str, typer.Option(help="cuda or cpu: what the engine's block is a multiple of.")] = "cuda",
    kv_dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16, fp8, ...: the engine's --kv-cache-dtype.")] = (
        "auto"
    ),
    state_dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16: --mamba-ssm-cache-dtype.")] = (
        "auto"
    ),
    block_tokens: Annotated[int | None, typer.Option(min=1, help="The engine's --block-size.")] = None,
    mtp: Annotated[bool, typer.Option("--mtp", help="Count the layers that predict further tokens too.")] = False,
    eviction_policy: Annotated[str, typer.Option(help="lru or arc: a split; value or hyper: one arena.")] = "lru",
    reference_tokens: Annotated[
        int | None, typer.Option(min=1, help="The current mamba_state_slots_reference_tokens, to be marked.")
    ] = None,
    retention_interval: Annotated[
        str, typer.Option(help="--prefix-cache-retention-interval; every_block where it is not set.")
    ] = "0",
    session_tokens: Annotated[
        int | None, typer.Option(min=1, help="A typical session; default as long as each row's reference.")
    ] = None,
    blocks_per_chunk: Annotated[int, typer.Option(min=1, help="Blocks of one token slot.")] = 1,
    token_slot_bytes: Annotated[str | None, _size("Instead of a model: a token slot on each worker.")] = None,
    state_slot_bytes: Annotated[str | None, _size("Instead of a model: a state slot on each worker.")] = None,
    gpu_bytes: Annotated[str | None, _size("Memory of one card.")] = None,
    utilization: Annotated[float | None, typer.Option(help="--gpu-memory-utilization; default 0.92.")] = None,
    kv_cache_memory_bytes: Annotated[str | None, _size("Instead of utilization.")] = None,
    weights_bytes: Annotated[str | None, _size("All weights; a model directory tells them itself.")] = None,
    overhead_bytes: Annotated[str | None, _size("Temporary tensors and runtime; default 2GiB.")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of that length at the same time.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")] = False,
) -> None:
    """Plan a model: bytes per token and state, what a card holds, what each reference length buys. Asks no deck."""
    asked = {name: value for name, value in locals().items() if name not in {"model", "json_output"}}
    from app.cli.output import as_json, told

    with told(json_output):
        found = _planned(model, asked)
    if json_output:
        as_json(found.as_json())
    else:
        typer.echo("\n\n".join(_paragraphs(found)))


def _planned(model: str | None, asked: dict[str, Any]) -> Plan:
    from app.cli.files import read_text
    from app.planner.fields import read_config
    from app.planner.model_files import read_model
    from app.planner.plan import make_plan, plan_slots_alone
    from app.planner.wish import read_wish

    if model is None:
        return plan_slots_alone(read_wish(asked))
    if model == "-":
        return make_plan(read_config(read_text(model, "model")), read_wish(asked))
    files = read_model(model)
    weights = asked["weights_bytes"] or files.weights_bytes
    return make_plan(files.config, read_wish({**asked, "weights_bytes": weights}))


def _paragraphs(plan: Plan) -> list[str]:
    parts = [_model(plan)] if plan.model else []
    if plan.vram:
        parts.append(_vram(plan.vram))
    if plan.host:
        parts.append(_slots(plan))
    findings = "\n".join(f"{finding.severity}: {finding.message}" for finding in plan.findings)
    return [*parts, findings] if findings else parts


def _model(plan: Plan) -> str:
    from app.cli.output import table
    from app.planner.plan import parts_of

    if plan.model is None:
        return ""
    told = plan.as_json()
    facts = (
        ("per token", f"{told['bytes_per_token']:,} bytes"),
        ("window per sequence", f"{told['window_bytes_per_sequence']:,} bytes"),
        ("state per sequence", f"{told['state_bytes_per_sequence']:,} bytes ({told['state_dtype'] or 'none'})"),
        ("block", f"{told['block_tokens']:,} tokens"),
        (f"one sequence of {told['length_tokens']:,}", f"{told['sequence_bytes']:,} bytes"),
        ("reserved for it", f"{told['reserved_bytes']:,} bytes"),
    )
    width = max(len(name) for name, _ in facts)
    layers = table([_layer_row(part) for part in parts_of(plan.model)], ("layers", "kind", "keep", "per", "why"))
    return layers + "\n\n" + "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts)


def _layer_row(part: Part) -> Mapping[str, Any]:
    return {
        "layers": part.layers,
        "kind": part.detail or part.kind,
        "keep": f"{part.bytes:,} bytes" if part.layer_bytes else None,
        "per": part.per if part.layer_bytes else None,
        "why": why(part),
    }


def why(part: Part) -> str:
    """`8 x (2 k_and_v x 4 kv_heads x 256 head_size x 2 bytes)`."""
    products = [
        " x ".join(f"{factor.value} {factor.name.replace('_', ' ')}" for factor in product) for product in part.why
    ]
    return f"{part.layers} x ({' + '.join(products)})" if products else "no KV of their own"


def _slots(plan: Plan) -> str:
    from dataclasses import asdict

    from app.cli.output import table

    if plan.host is None:
        return ""
    rows = [asdict(row) | {"": "<- now" if row.is_current else " "} for row in plan.host.rows]
    head = (
        f"Host tier of {plan.host.host_bytes:,} bytes, {plan.host.worker_bytes:,} per worker; on each worker "
        f"a token slot has {plan.host.token_slot_bytes:,} bytes, a state slot {plan.host.state_slot_bytes:,}."
    )
    if plan.host.arena is not None:
        arena = [asdict(row) for row in plan.host.arena.rows]
        return f"{head} One arena of {plan.host.arena.pages:,} pages each.\n" + table(arena, ARENA_COLUMNS)
    return head + "\n" + table(rows, SLOT_COLUMNS)


def _vram(vram: VramPlan) -> str:
    from app.cli.output import table

    words = {"fits": "fits", "tight": "is tight", "does_not_fit": "does not fit"}[vram.verdict]
    rows = [
        {
            "length": row.length,
            "bytes": row.own_bytes,
            "sequences": row.own_sequences,
            "fp8_bytes": row.fp8_bytes,
            "fp8_sequences": row.fp8_sequences,
        }
        for row in vram.rows
    ]
    head = (
        f"Card of {vram.gpu_bytes:,} bytes: {vram.usable_bytes:,} usable, {vram.weights_bytes:,} weights, "
        f"{vram.overhead_bytes:,} runtime, {vram.kv_bytes:,} left for KV. "
        f"{vram.sequences} x {vram.length:,} tokens needs {vram.needed_bytes:,}: it {words}."
    )
    return head + "\n" + table(rows, VRAM_COLUMNS)
