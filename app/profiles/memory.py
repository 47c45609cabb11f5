"""Host memory that a profile asks for: of each rank, of the whole machine, and whether it is there. Pure.

The same word means different things: the offloading connector counts all ranks of a replica together,
LMCache each rank for itself, and every data-parallel replica has a tier of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Box, Claim, Context
from app.profiles.finding import EXTRA, Finding, fix, put, warning
from app.profiles.nested import connectors_of
from app.profiles.sizes import GIB, MEANT_GIB_BELOW, MOST_GIB, exact_size, read_number, read_size, read_whole, size_text
from app.profiles.transfer import extra_of, is_ours, spec_of
from engine.config import SPEC_NAME

_LMCACHE_VARIABLE: Final = "LMCACHE_MAX_LOCAL_CPU_SIZE"
_LMCACHE_KEYS: Final = ("lmcache.max_local_cpu_size", "max_local_cpu_size")
_SIMPLE_DEFAULT: Final = 8 * GIB


@dataclass(frozen=True)
class Ranks:
    """How many processes hold a part: of one replica, and how many replicas this machine runs."""

    tensor: int
    pipeline: int
    replicas: int

    @property
    def of_replica(self) -> int:
        """Ranks of one replica."""
        return self.tensor * self.pipeline

    @property
    def every(self) -> int:
        """Ranks of all replicas on this machine."""
        return self.of_replica * self.replicas


@dataclass(frozen=True)
class HostMemory:
    """What one connector takes. `path` is the field that says so."""

    connector: str
    path: str
    per_rank_bytes: float
    ranks: Ranks

    @property
    def total_bytes(self) -> int:
        """Of all ranks on this machine."""
        return round(self.per_rank_bytes * self.ranks.every)

    @property
    def sum_text(self) -> str:
        """25 GiB x 2 = 50 GiB."""
        return f"{size_text(self.per_rank_bytes)} x {self.ranks.every} = {size_text(self.total_bytes)}"

    def as_json(self) -> dict[str, Any]:
        """As REST tells it."""
        return {
            "connector": self.connector,
            "path": self.path,
            "per_rank_bytes": int(self.per_rank_bytes),
            "host_total_bytes": self.total_bytes,
            "tensor_parallel_size": self.ranks.tensor,
            "pipeline_parallel_size": self.ranks.pipeline,
            "data_parallel_size": self.ranks.replicas,
            "ranks": self.ranks.every,
            "sum": self.sum_text,
        }


def ranks_of(flags: Mapping[str, Any]) -> Ranks:
    """The ranks that the flags ask for."""
    replicas = flags.get("data-parallel-size-local")
    return Ranks(
        tensor=_count(flags.get("tensor-parallel-size")),
        pipeline=_count(flags.get("pipeline-parallel-size")),
        replicas=_count(flags.get("data-parallel-size") if replicas is None else replicas),
    )


def host_memory(
    config: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[HostMemory, ...]:
    """What each connector of a profile takes; empty where there is none or its size is not known."""
    ranks = ranks_of(flags)
    by_flag = _gib(flags.get("kv-offloading-size"))
    if by_flag and flags.get("kv-offloading-backend", "native") == "native":
        per_rank = by_flag * GIB / ranks.of_replica
        return (HostMemory(keys.OFFLOADING, "flags.kv-offloading-size", per_rank, ranks),)
    return tuple(_of_connectors(config, environment, ranks))


def total_bytes(config: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, Any]) -> int:
    """Host memory of all ranks on this machine."""
    return sum(one.total_bytes for one in host_memory(config, flags, environment))


def _of_connectors(config: Mapping[str, Any], environment: Mapping[str, Any], ranks: Ranks) -> Iterable[HostMemory]:
    for place, one in connectors_of(config):
        connector, extra = one.get("kv_connector"), extra_of(one)
        inner = f"{place}.kv_connector_extra_config"
        if connector == keys.OFFLOADING and (size := _size(extra.get("cpu_bytes_to_use"))):
            yield HostMemory(connector, f"{inner}.cpu_bytes_to_use", size / ranks.of_replica, ranks)
        elif connector == keys.SIMPLE:
            yield _simple(connector, extra, ranks, inner)
        elif connector == keys.LMCACHE:
            yield from _lmcache(connector, extra, environment, ranks, inner)


def _simple(connector: str, extra: Mapping[str, Any], ranks: Ranks, place: str) -> HostMemory:
    if own := _size(extra.get("cpu_bytes_to_use_per_rank")):
        return HostMemory(connector, f"{place}.cpu_bytes_to_use_per_rank", own, ranks)
    size = _size(extra.get("cpu_bytes_to_use")) or _SIMPLE_DEFAULT
    return HostMemory(connector, f"{place}.cpu_bytes_to_use", size / ranks.of_replica, ranks)


def _lmcache(
    connector: str, extra: Mapping[str, Any], environment: Mapping[str, Any], ranks: Ranks, place: str
) -> Iterable[HostMemory]:
    """Each rank takes the whole of what is written, in GiB."""
    for key in _LMCACHE_KEYS:
        if (size := _gib(extra.get(key))) is not None:
            yield HostMemory(connector, f"{place}.{key}", size * GIB, ranks)
            return
    if (size := _gib(environment.get(_LMCACHE_VARIABLE))) is not None:
        yield HostMemory(connector, f"environment.{_LMCACHE_VARIABLE}", size * GIB, ranks)


def check_memory(demand: tuple[HostMemory, ...], config: Mapping[str, Any], context: Context) -> list[Finding]:
    """Sizes that are hardly meant, and sizes that the machine does not have."""
    found = [finding for one in demand if (finding := _small(one))]
    if context.box is not None and demand:
        found += _against(context.box, demand, config, context)
    return found


def _small(one: HostMemory) -> Finding | None:
    whole = round(one.per_rank_bytes * one.ranks.of_replica)
    if whole >= GIB or one.connector == keys.LMCACHE:
        return None
    if whole >= MEANT_GIB_BELOW:
        return warning(one.path, "The host tier is %(size)s, less than 1 GiB.", size=exact_size(whole))
    near = f"{whole} GiB"
    is_plain = one.path == f"{EXTRA}.cpu_bytes_to_use"
    remedy = fix("Write %(near)s", put(one.path, whole * GIB), near=f"{whole * GIB} ({near})") if is_plain else None
    sentence = "The host tier is %(size)s; was %(near)s meant?"
    return warning(one.path, sentence, remedy, size=exact_size(whole), near=near)


def _against(
    box: Box, demand: tuple[HostMemory, ...], config: Mapping[str, Any], context: Context
) -> Iterable[Finding]:
    each, path = sum(one.total_bytes for one in demand), demand[0].path
    total, asked = each * context.engines, exact_size(each)
    if context.engines > 1:
        asked = f"{asked} x {context.engines} = {size_text(total)}"
    if total > box.memory_bytes:
        sentence = "The host tier asks for %(asked)s on this machine, which has %(there)s of memory."
        yield warning(path, sentence, asked=asked, there=exact_size(box.memory_bytes))
    elif total > box.usable_bytes:
        sentence = "The host tier asks for %(asked)s; the control group that the deck runs in allows %(there)s."
        yield warning(path, sentence, asked=asked, there=exact_size(box.usable_bytes))
    else:
        yield from _beside_others(box, total, path, asked)
    if box.shared_bytes is not None and _uses_shared_memory(config, context) and total > box.shared_bytes:
        sentence = (
            "The host tier asks for %(asked)s of shared memory; /dev/shm holds %(there)s. "
            "In a container, raise its shm size."
        )
        yield warning(path, sentence, asked=asked, there=exact_size(box.shared_bytes))


def told_claims(claims: Iterable[Claim]) -> str:
    """Which fleets take how much, for a sentence."""
    return ", ".join(f"{claim.fleet} ({claim.profile}) {size_text(claim.bytes)}" for claim in claims)


def _beside_others(box: Box, total: int, path: str, asked: str) -> Iterable[Finding]:
    taken = sum(claim.bytes for claim in box.claims)
    if not taken or total + taken <= box.usable_bytes:
        return
    others = told_claims(box.claims)
    sentence = "The host tier asks for %(asked)s beside %(others)s; together more than the %(there)s of this machine."
    yield warning(path, sentence, asked=asked, others=others, there=size_text(box.usable_bytes))


def _uses_shared_memory(config: Mapping[str, Any], context: Context) -> bool:
    return any(_is_in_shared_memory(one, context) for _, one in connectors_of(config))


def _is_in_shared_memory(config: Mapping[str, Any], context: Context) -> bool:
    if config.get("kv_connector") != keys.OFFLOADING:
        return False
    if is_ours(config):
        return "residency" in keys.OUR_KEYS and extra_of(config).get("residency", "auto") != "off"
    return spec_of(config) != SPEC_NAME and context.platform == "cuda"


def _count(value: Any) -> int:
    number = read_whole(value)
    return number if number is not None and number > 0 else 1


def _size(value: Any) -> int | None:
    size = read_size(value)
    return size if size is not None and size > 0 else None


def _gib(value: Any) -> float | None:
    number = read_number(value)
    return number if number is not None and 0 < number <= MOST_GIB else None
