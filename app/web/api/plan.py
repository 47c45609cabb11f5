"""REST: the planner."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1/plan", tags=["plan"])

LONGEST_TEXT = 2_000_000
Size = int | float | str | None
Number = int | float | str | None


class PlanBody(BaseModel):
    """A model and what to plan for it. Sizes are bytes or texts such as "64GiB"; only the model is needed."""

    model_config = ConfigDict(extra="forbid")

    config: str | dict[str, Any] | None = Field(
        None, max_length=LONGEST_TEXT, description="The model's config.json, as text or as object."
    )
    model: str | None = Field(
        None, max_length=4096, description="Instead: the model's directory or config.json on the deck's machine."
    )
    platform: str | None = Field(None, description="cuda (default) or cpu.")
    world_size: Number = Field(None, description="Tensor parallel workers.")
    kv_dtype: str | None = Field(None, description="As --kv-cache-dtype: auto, bfloat16, fp8, ...")
    state_dtype: str | None = Field(None, description="As --mamba-ssm-cache-dtype: auto, float32, bfloat16, float16.")
    length: Number = Field(None, description="Tokens of a sequence; default the longest.")
    max_model_len: Number = Field(None, description="The longest sequence; default the model's.")
    block_tokens: Number = Field(None, description="As --block-size.")
    max_num_batched_tokens: Number = Field(None, description="Tokens of a step; counts for sliding windows.")
    mtp: bool | str | None = Field(None, description="Count the layers that predict further tokens.")
    host_bytes: Size = Field(None, description="Memory of the host tier over all workers.")
    eviction_policy: str | None = Field(None, description="lru (default) or arc: a split; value or hyper: one arena.")
    reference_tokens: Number = Field(None, description="The current mamba_state_slots_reference_tokens.")
    retention_interval: Number = Field(
        None, description='As --prefix-cache-retention-interval; "every_block" where it is not set. Default 0.'
    )
    session_tokens: Number = Field(None, description="A typical session; default as long as each row's reference.")
    blocks_per_chunk: Number = Field(None, description="Blocks of one token slot.")
    chunk_tokens: Number = Field(None, description="Instead: tokens of one token slot.")
    token_slot_bytes: Size = Field(None, description="Without a model: a token slot on each worker.")
    state_slot_bytes: Size = Field(None, description="Without a model: a state slot on each worker.")
    gpu_bytes: Size = Field(None, description="Memory of one card.")
    utilization: Number = Field(None, description="As --gpu-memory-utilization; default 0.92.")
    kv_cache_memory_bytes: Size = Field(None, description="Instead of utilization.")
    weights_bytes: Size = Field(None, description="All weights.")
    overhead_bytes: Size = Field(None, description="Temporary tensors and runtime; default 2 GiB.")
    sequences: Number = Field(None, description="Sequences of that length at the same time.")


@router.post("")
async def plan(body: PlanBody, deck: DeckDep) -> dict[str, Any]:
    """Bytes per token and state, the VRAM budget, and what each reference length buys of a host tier."""
    asked = body.model_dump(exclude={"config", "model"})
    return (await deck.planning.plan(asked, body.config, body.model)).as_json()


@router.get("")
async def plan_of_fleet(deck: DeckDep, fleet: str | None = None) -> dict[str, Any]:
    """The same for a fleet's own model and settings; slots as its running engine has them."""
    return (await deck.planning.of_fleet(fleet, time.time())).as_json()
