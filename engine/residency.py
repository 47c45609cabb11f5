"""Host memory that outlives its engine: what a new start of the same engine finds, and who decides it.

The bytes lie with the workers (`residency_region`), what they mean with the scheduler: `residency_index` for the
pools of a static split, `residency_pages` for one arena. `residency_tenancy` says when the two belong together,
`residency_takeover` makes one of these layouts of the other one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from vllm.logger import init_logger

from engine.config import ConfigError, TierConfig
from engine.layout import HostLayout, PoolName
from engine.residency_arena import ResidentArena
from engine.residency_identity import NotResidentError, identity_of
from engine.residency_index import Entry, Fit, IndexFile, NoLedger, PoolLedger, fit
from engine.residency_place import ID_VARIABLE, MOUNT, InUseError, NotPrivateError, directory_of
from engine.residency_plan import ARENA, Plan, PoolShape
from engine.residency_region import PATIENCE_SECONDS, WorkerShare, copy_slot
from engine.residency_tenancy import Tenancy
from engine.snapshot_writer import Teller

log = init_logger("vllm.tierdeck.residency")

_UNUSABLE: Final = (InUseError, NotPrivateError, OSError)
Opened = TypeVar("Opened", ResidentArena, "ResidentMemory")


class Memory(Protocol):
    """The scheduler's side of the host memory, as a manager sees it."""

    def ledger(self, pool: str) -> PoolLedger:
        """Where to tell what happens to a pool's slots."""

    def entries(self, pool: str) -> list[Entry]:
        """What was found in a pool, least valuable first."""

    def tell(self, teller: Teller) -> None:
        """From now on the deck is told what is there."""

    def close(self) -> None:
        """Let go of it."""


class PassingMemory:
    """Goes with the engine."""

    def ledger(self, pool: str) -> PoolLedger:
        """Nothing is written down."""
        return NoLedger()

    def entries(self, pool: str) -> list[Entry]:
        """Nothing was there before."""
        return []

    def tell(self, teller: Teller) -> None:
        """There is no place for it."""

    def close(self) -> None:
        """Nothing to let go of."""


class ResidentMemory:
    """Outlives the engine. Opened when all workers have theirs."""

    def __init__(self, plan: Plan, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan = plan
        self._indices: dict[str, IndexFile] = {}
        self._entries: dict[str, list[Entry]] = {}
        self._tenancy = Tenancy(plan, patience_seconds)
        with self._tenancy.opening(self.close):
            self._open_pools()

    def ledger(self, pool: str) -> PoolLedger:
        """The index of the pool."""
        return self._indices[pool]

    def entries(self, pool: str) -> list[Entry]:
        """What the last run left there and still fits, least valuable first."""
        return self._entries[pool]

    def tell(self, teller: Teller) -> None:
        """From now on the deck is told what is there."""
        self._tenancy.tell(teller)

    def close(self) -> None:
        """Let go of the files, which stay."""
        for index in self._indices.values():
            index.close()
        self._tenancy.end()

    def _open_pools(self) -> None:
        for pool, shape in self._plan.shapes.items():
            self._indices[pool] = IndexFile(self._plan.index_file(pool), shape.slots)
            self._entries[pool] = self._adopted(pool, shape)

    def _adopted(self, pool: str, shape: PoolShape) -> list[Entry]:
        index = self._indices[pool]
        fitted = fit(index.entries(shape.all_parts), shape.slots)
        for entry in fitted.dropped:
            index.drop(entry.slot)
        moved = self._moved(pool, shape, index, fitted)
        if index.count > shape.slots:
            index.shrink(shape.slots)
            self._plan.give_back(pool)
        if fitted.dropped:
            log.info("Host tier: %d %s slots of the last run do not fit any more.", len(fitted.dropped), pool)
        return sorted([*fitted.kept, *moved], key=_rank)

    def _moved(self, pool: str, shape: PoolShape, index: IndexFile, fitted: Fit) -> list[Entry]:
        """Copy first, then vouch for the new place, then forget the old one."""
        moved = []
        for entry, target in fitted.moves:
            for rank in range(self._plan.world_size):
                copy_slot(self._plan.pool_file(rank, pool), entry.slot, target, shape.slot_bytes)
            moved.append(entry._replace(slot=target))
            index.place(moved[-1])
            index.drop(entry.slot)
        return moved


def _rank(entry: Entry) -> int:
    return entry.rank


class Residency:
    """Whether and where the contents of this engine are kept; both kinds of process make one."""

    def __init__(self, plan: Plan | None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan = plan
        self._patience_seconds = patience_seconds

    def scheduler_memory(self) -> Memory:
        """What the manager of a static split works with."""
        memory = self._opened(ResidentMemory)
        if memory is None or self._plan is None:
            return PassingMemory()
        found = {pool: len(memory.entries(pool)) for pool in self._plan.shapes}
        log.info("Host tier: contents outlive the engine in %s; found there: %s.", self._plan.directory, _words(found))
        return memory

    def arena_memory(self) -> ResidentArena | None:
        """What the manager of one arena works with; None if contents go with the engine."""
        memory = self._opened(ResidentArena)
        if memory is not None and self._plan is not None:
            log.info("Host tier: contents outlive the engine in %s.", self._plan.directory)
        return memory

    def _opened(self, kind: type[Opened]) -> Opened | None:
        if self._plan is None:
            return None
        try:
            return kind(self._plan, self._patience_seconds)
        except _UNUSABLE as error:
            log.warning("Host tier: contents will not outlive this engine: %s.", error)
            return None

    def worker_share(self, rank: int) -> WorkerShare | None:
        """The files of a worker; None if its memory is to be its own."""
        if self._plan is None:
            return None
        try:
            return WorkerShare(self._plan, rank, self._patience_seconds)
        except _UNUSABLE as error:
            log.warning("Host tier: the memory of worker %d goes with the engine: %s.", rank, error)
            return None


def _words(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {pool} slots" for pool, count in found.items())


def residency_of(
    config: Any, tier_config: TierConfig, surroundings: Any, specs: list[Any], layout: HostLayout, mount: Path = MOUNT
) -> Residency:
    """As configured. What makes keeping unsafe is said, and the memory then goes with the engine."""
    given = os.environ.get(ID_VARIABLE)
    if tier_config.residency == "off" or (tier_config.residency == "auto" and not given):
        return Residency(None)
    seed = os.environ.get("PYTHONHASHSEED")
    try:
        identity = identity_of(config, surroundings.vllm_config, specs, layout, None if seed == "random" else seed)
        root = directory_of(given or _identifier(config.model.name), mount)
    except NotResidentError as reason:
        log.warning("Host tier: contents will not outlive this engine: %s.", reason)
        return Residency(None)
    except ValueError as error:
        raise ConfigError(f"{ID_VARIABLE}: {error}.") from error
    return Residency(
        Plan(
            directory=root / f"engine-{config.parallel.data_parallel_index}",
            run=f"{config.engine_id}/{surroundings.vllm_config.instance_id}",
            identity=identity,
            shapes=pool_shapes(layout),
            world_size=config.parallel.world_size,
            foreign="refuse" if tier_config.residency_foreign == "refuse" else "replace",
            layout=layout,
        )
    )


def pool_shapes(layout: HostLayout) -> dict[str, PoolShape]:
    """The pools of a static split, or the pages of one arena."""
    if layout.pages:
        return {ARENA: PoolShape(layout.pages, layout.page_bytes)}
    names: tuple[PoolName, ...] = ("token", "state")
    return {name: PoolShape(layout.slots(name), layout.slot_bytes(name), layout.known_parts(name)) for name in names}


def _identifier(model: str) -> str:
    """Without a deck, an engine is known by its model: a second one of it keeps its memory to itself."""
    return "model-" + hashlib.sha256(model.encode()).hexdigest()[:16]
