"""vLLM's own scheduler and both halves of the connector, around a model that only writes down what it has read.

A token's place in a block holds a number made of all tokens up to it, a state the number of the token it ends with.
So whoever reads a block that is not what a cold run would have put there is caught at once.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from engine.served import ServedRequest
from engine.transfer import Copier, CopyBatch, Finished
from engine.transfer.cpu import copy_run, runs

BLOCK, WINDOW, BLOCKS = 16, 40, 36
SHAPE: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
PAGE = 2 * BLOCK * 64 * 2
STATE_NUMBERS, LONGEST = 8, 240
FULL = FullAttentionSpec(**SHAPE)
SLIDING = SlidingWindowSpec(**SHAPE, sliding_window=WINDOW)
LINEAR = MambaSpec(
    block_size=BLOCK,
    shapes=((2 * STATE_NUMBERS,),),
    dtypes=(torch.float32,),
    page_size_padded=PAGE,
    mamba_cache_mode="align",
)
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

Tokens = tuple[int, ...]


class LateCopier(Copier):
    """Copies a job when it is waited for, or by chance when asked what has ended: as late as it may."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._jobs: dict[int, tuple[CopyBatch, bool]] = {}
        self._finished: list[Finished] = []

    def submit(self, job_id: int, batch: CopyBatch, to_host: bool) -> None:
        self._jobs[job_id] = batch, to_host

    def finished(self) -> list[Finished]:
        self.wait({job_id for job_id in self._jobs if self._rng.random() < 0.4})
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        some = [job_id for job_id in self._jobs if job_id in job_ids]
        self._rng.shuffle(some)
        for job_id in some:
            batch, to_host = self._jobs.pop(job_id)
            for run in runs(batch):
                copy_run(run, to_host)
            self._finished.append(Finished(job_id, True, batch.total_bytes, 0.0))

    def close(self) -> None:
        self.wait(set(self._jobs))


def numbers(tokens: Tokens) -> list[int]:
    """What a cold run writes at each token: it depends on all tokens up to there."""
    return list(itertools.accumulate(tokens, lambda before, token: hash((before, token)) >> 1, initial=1))[1:]


class Rig:
    """One engine in small. `group_specs` are its layer groups, which share the same blocks."""

    def __init__(self, directory: Path, tier: dict[str, Any], group_specs: tuple[Any, ...]) -> None:
        (directory / "config.json").write_text(json.dumps(MODEL))
        self.vllm_config = _vllm_config(directory, tier, LINEAR in group_specs)
        groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(group_specs)]
        self.kv_cache_config = KVCacheConfig(BLOCKS, [], groups)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler = Scheduler(
            vllm_config=self.vllm_config,
            kv_cache_config=self.kv_cache_config,
            structured_output_manager=StructuredOutputManager(self.vllm_config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        self._specs = group_specs
        self._memory = torch.zeros((BLOCKS, 2, BLOCK, 1, 64), dtype=torch.bfloat16)
        self.device: NDArray[np.int64] = self._memory.view(torch.int64).numpy().reshape(BLOCKS, PAGE // 8)
        self._worker = KVConnectorFactory.create_connector(
            self.vllm_config, KVConnectorRole.WORKER, self.kv_cache_config
        )
        self._worker.register_kv_caches({f"layer.{number}": self._memory for number in range(len(group_specs))})
        self._tables: dict[str, list[list[int]]] = {}
        self._state_at: dict[str, int] = {}
        self.loads = self.preempted = self.failed_loads = 0

    def add(self, name: str, tokens: Tokens, answer_tokens: int) -> None:
        """A request that answers with tokens made of what it has read."""
        sampling = SamplingParams(max_tokens=answer_tokens, temperature=0, ignore_eos=True)
        self.scheduler.add_request(Request(name, list(tokens), sampling, None, block_hasher=self._hasher))

    def abort(self, name: str) -> None:
        """Its client has gone."""
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def run(self, name: str, tokens: Tokens) -> None:
        """One request, and the steps it takes until its last blocks are stored."""
        self.add(name, tokens, 1)
        for _ in range(200):
            self.step()
        if self.running:
            raise AssertionError(f"still running: {self.running}")

    def empty(self) -> None:
        """Blocks come from the host or not at all."""
        self.scheduler.reset_prefix_cache()

    @property
    def slots(self) -> NDArray[np.uint8]:
        """The worker's host memory."""
        return self._worker.connector_worker.worker._arena.spans[0]

    def served(self) -> list[ServedRequest]:
        """What the requests came to that ended since the last call."""
        return self.scheduler.connector.scheduler.manager.served.take()

    @property
    def running(self) -> list[str]:
        """Requests that have not ended."""
        return list(self.scheduler.requests)

    def step(self) -> None:
        """As the engine's core and vLLM's model runner do one."""
        output = self.scheduler.schedule()
        self.loads += len(output.kv_connector_metadata.load_jobs)
        self.preempted += len(output.preempted_req_ids or ())
        self._worker.handle_preemptions(output.kv_connector_metadata)
        self._take_over(output)
        for copy in output.kv_cache_block_copies or ():
            self.device[copy.dst_block_id] = self.device[copy.src_block_id]
        names = list(output.num_scheduled_tokens)
        sampled = [self._forward(name, output.num_scheduled_tokens[name]) for name in names]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: number for number, name in enumerate(names)},
                sampled_token_ids=sampled,
                kv_connector_output=self._transfers(output),
            ),
        )

    def close(self) -> None:
        """Let transfers end."""
        self._worker.shutdown()
        self.scheduler.shutdown()

    def _transfers(self, output: SchedulerOutput) -> KVConnectorOutput:
        worker = self._worker
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        self.failed_loads += len(results.failed_recving)
        found = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return found

    def _take_over(self, output: SchedulerOutput) -> None:
        """The worker's own block tables."""
        for name in output.finished_req_ids | (output.preempted_req_ids or set()):
            self._state_at.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self._state_at.pop(new.req_id, None)
        cached = output.scheduled_cached_reqs
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self._tables[name] = [[] for _ in self._specs]
                self._state_at.pop(name, None)
            for table, more in zip(self._tables[name], ids or ([],) * len(self._specs), strict=True):
                table.extend(more)

    def _forward(self, name: str, count: int) -> list[int]:
        request = self.scheduler.requests[name]
        tokens = tuple(request.all_token_ids)
        start = request.num_computed_tokens - count
        end, found = start + count, numbers(tokens)
        for table, spec, salt in zip(self._tables[name], self._specs, range(len(self._specs)), strict=True):
            layer = (self._linear if spec is LINEAR else self._attention)(name, spec, salt)
            layer(table, found, start, end)
        if end < len(tokens):
            return []
        return [3 + found[-1] % 400]

    def _attention(self, name: str, spec: Any, salt: int) -> Callable[..., None]:
        def layer(table: list[int], found: list[int], start: int, end: int) -> None:
            first = max(0, start - WINDOW + 1) if spec is SLIDING else 0
            for at in range(first, start):
                there = int(self.device[table[at // BLOCK], at % BLOCK])
                if there != found[at] ^ salt:
                    raise AssertionError(f"{name}: token {at} of group {salt} before {start} is not what was computed")
            for at in range(start, end):
                if table[at // BLOCK]:
                    self.device[table[at // BLOCK], at % BLOCK] = found[at] ^ salt

        return layer

    def _linear(self, name: str, spec: Any, salt: int) -> Callable[..., None]:
        def layer(table: list[int], found: list[int], start: int, end: int) -> None:
            before, now = self._state_at.get(name, (start - 1) // BLOCK), (end - 1) // BLOCK
            self._state_at[name] = now
            if start and (self.device[table[before], :STATE_NUMBERS] != found[start - 1] ^ salt).any():
                raise AssertionError(f"{name}: the state of group {salt} at {start} is not what was computed")
            self.device[table[now], :STATE_NUMBERS] = found[end - 1] ^ salt

        return layer


def _vllm_config(directory: Path, tier: dict[str, Any], hybrid: bool) -> Any:
    config = EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=2048,
        max_num_seqs=6,
        max_num_batched_tokens=96,
        enable_prefix_caching=True,
        async_scheduling=False,
        kv_transfer_config=tier,
    ).create_engine_config()
    if hybrid:
        config.cache_config.mamba_cache_mode = "align"
        config.cache_config.prefix_cache_retention_interval = 0
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


class Chances:
    """Prompts that grow and fork, and what else happens to an engine, by chance but the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._sessions: list[Tokens] = [self.fresh(50)]

    def prompt(self) -> Tokens:
        """New, grown, forked, or the same again; often at the end of a block or beside it."""
        trunk = self.rng.choice(self._sessions)
        at = self.rng.choice((0, len(trunk), len(trunk), self.rng.randint(0, len(trunk))))
        length = max(1, self.rng.choice((self.rng.randint(1, 60), self.rng.randint(1, 6) * BLOCK)))
        tokens = (trunk[:at] + self.fresh(length + self.rng.choice((-1, 0, 0, 1))))[:LONGEST]
        tokens = self.rng.choice((tokens, tokens, trunk))
        self._sessions = [*self._sessions, tokens][-8:]
        return tokens

    def fresh(self, length: int) -> Tokens:
        """Tokens that nobody has asked for."""
        return tuple(self.rng.randrange(3, 500) for _ in range(max(length, 1)))


def names() -> Iterator[str]:
    """Of requests."""
    return (f"request-{number}" for number in itertools.count())
