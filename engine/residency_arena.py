"""The scheduler's side of one arena that outlives its engine."""

from __future__ import annotations

from typing import Protocol

from vllm.logger import init_logger

from engine.arena_ledger import ArenaRow
from engine.policies.reuse import Learned
from engine.residency_learned import LEARNED_NAME, Keeper, NotLearnedError, read_learned
from engine.residency_pages import PageIndex
from engine.residency_plan import ARENA, Plan
from engine.residency_region import PATIENCE_SECONDS, copy_slot
from engine.residency_tenancy import Tenancy
from engine.snapshot_writer import Teller

log = init_logger("vllm.tierdeck.residency")


class LearningTeller(Teller, Protocol):
    """A manager whose policy learns."""

    def learned(self) -> Learned | None:
        """What there is to be kept. Called from another thread than everything else."""


class ResidentArena:
    """Opened when all workers have their files."""

    def __init__(self, plan: Plan, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan = plan
        self._shape = plan.shapes[ARENA]
        self._index: PageIndex | None = None
        self._tenancy = Tenancy(plan, patience_seconds)
        with self._tenancy.opening(self.close):
            self._index = PageIndex(plan.index_file(ARENA), self._shape.slots)

    @property
    def ledger(self) -> PageIndex:
        """The index."""
        if self._index is None:
            raise RuntimeError("the index of the arena is closed")
        return self._index

    def rows(self) -> list[ArenaRow]:
        """What an earlier run left."""
        return self.ledger.rows()

    def copy_page(self, source: int, target: int) -> None:
        """Copy the bytes of one page, on every worker."""
        for rank in range(self._plan.world_size):
            copy_slot(self._plan.pool_file(rank, ARENA), source, target, self._shape.slot_bytes)

    def settle(self) -> None:
        """Give back what lies behind the last page."""
        if self.ledger.count > self._shape.slots:
            self.ledger.shrink(self._shape.slots)
            self._plan.give_back(ARENA)

    def learned(self) -> Learned | None:
        """What an earlier run had learned of reuse; None if nothing was kept, or, which is said, nothing of use."""
        try:
            return read_learned(self._plan.directory / LEARNED_NAME)
        except NotLearnedError as error:
            log.warning("Host tier: reuse is learned anew: %s.", error)
            return None

    def tell(self, teller: LearningTeller) -> None:
        """From now on the deck is told what is there, and what was learned is kept."""
        self._tenancy.tell(teller, Keeper(self._plan.directory / LEARNED_NAME, teller.learned))

    def close(self) -> None:
        """Let go of the files, which stay."""
        if self._index is not None:
            self._index.close()
            self._index = None
        self._tenancy.end()
