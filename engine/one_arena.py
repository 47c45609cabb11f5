"""One arena for blocks and states: what is stored, what belongs together, what goes. Standard library only.

Nothing here knows vLLM, requests or bytes of a device: a `Visit` is a request's chain of block hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from engine.arena_ledger import ArenaLedger
from engine.lineage import Lineage
from engine.page_arena import PageArena, Run
from engine.policies.states import Density, StatePolicy
from engine.prefix_tree import Block, PrefixTree, State
from engine.visits import ArenaPlan, Freed, Visit

SUPERSEDED: Final = "superseded"
#: Blocks behind which no state was kept, and states behind blocks that could not be stored.
ORPHANED: Final = "orphaned"


class OneArena:
    """Pages, tree, ghosts and policy together."""

    def __init__(
        self,
        plan: ArenaPlan,
        policy: Callable[[Density], StatePolicy],
        demote: bool,
        clock: Callable[[], float],
        ledger: ArenaLedger | None = None,
    ) -> None:
        self.plan = plan
        self.ledger = ledger  # None: contents go with the engine
        self.pages = PageArena(plan.pages)
        self.tree = PrefixTree(plan.chunk_tokens, self._on_free)
        self.policy = policy(self.density)
        self.states: dict[State, None] = {}
        self.leaves: set[State] = set()  # the ends of sessions that could go on
        self.freed: list[Freed] = []
        self.stored_blocks = 0
        self.demotes = demote
        self.clock = clock
        self.lineage = Lineage(self.policy, clock)
        #: A plain dict takes long to find its first one when many before it have gone.
        self.superseded: OrderedDict[State, None] = OrderedDict()
        self._reason = ORPHANED  # of the blocks that go now, and how long they had not been used
        self._idle_seconds = 0.0
        self._failures = 0
        #: Without linear layers any block can be resumed at. Marks take the states' place then: they weigh
        #: nothing, sit on the last block of each chain, and step up as it is eaten from its end.
        self.marks = not plan.state_parts

    # --- arriving ---

    def arrive(self, visit: Visit, device: int) -> None:
        """A request begins, of which the device has `device` blocks: remember it and learn from it."""
        visit.arrived = True
        known = self.lineage.see(visit.chain)
        visit.device = device
        visit.resumed = max(device, self.restorable(visit.chain, known, device))
        self.lineage.learn(visit, known)
        if visit.resumed:
            self.hold_state(visit, visit.chain[visit.resumed - 1])

    def restorable(self, chain: Sequence[bytes], depth: int, above: int) -> int:
        """The deepest boundary in `chain[above:depth]` from which a session could go on; 0 for none."""
        deepest = self.tree.deepest(chain, depth)
        if self.marks:
            return deepest if deepest > above else 0
        block = self.tree.blocks[chain[deepest - 1]] if deepest else None
        parts = self.plan.state_parts
        while block is not None and deepest > above:
            if block.state is not None and block.state.ready & parts == parts:
                return deepest
            block = block.parent
            deepest -= 1
        return 0

    # --- storing ---

    def missing_blocks(self, hashes: Sequence[bytes], first: int, last: int, part: int, everywhere: bool) -> list[int]:
        """Which of the neighbouring blocks `hashes[first:last]` lack the part, as places, in order.

        A part that is needed `everywhere` is in all blocks before one that has it.
        """
        blocks = self.tree.blocks
        missing: list[int] = []
        for at in range(last - 1, first - 1, -1):
            block = blocks.get(hashes[at])
            if block is None or not (block.ready | block.writing) & part:
                missing.append(at)
            elif everywhere and not self._failures and self.tree.unstored <= len(missing):
                break  # all above are there as well
        missing.reverse()
        return missing

    def reach(self, visit: Visit, block_hash: bytes, end: int) -> Block:
        """The block, made where missing, and held from now on with all before it while the request runs."""
        block = self.tree.extend_to(visit.chain, block_hash, end)
        tip = visit.tip
        if tip is block:
            return block
        if tip is None or block.end > tip.end:
            self.settle(self.tree.hold(block))
            visit.tip = block
            if tip is not None:
                self.settle(self.tree.release(tip))
        elif not block.live:  # a boundary inside a block, on no other block's way
            self.settle(self.tree.hold(block))
            visit.asides.append(block)
        return block

    def store_blocks(self, blocks: Iterable[Block], part: int) -> list[tuple[Run, ...] | None]:
        """A place of each for one part of blocks that are held; None where everything is in use."""
        wanted, take, found = self.plan.token_pages, self.pages.take, []
        for block in blocks:
            pages = block.pages if block.stored else take(wanted) or self._room(wanted)
            if pages is not None:
                block.writing |= part
                if not block.stored:
                    block.pages, block.stored = pages, True
                    self.tree.unstored -= 1
                    self.stored_blocks += 1
            found.append(pages)
        return found

    def wants_state(self, visit: Visit, block_hash: bytes, end: int) -> bool:
        """Only the newest boundary of a prompt and places where prefixes part are worth a state."""
        chunk = self.plan.chunk_tokens
        whole, resumed = len(visit.chain) * chunk, end == visit.resumed * chunk
        newest = end >= whole or (end > whole - 2 * chunk and not resumed)
        return newest or self.lineage.parts_at(block_hash)

    def store_state(self, visit: Visit, block_hash: bytes, end: int, part: int) -> State | None:
        """A place for a state that is not there, one part of which is about to be written; None if everything is
        in use.
        """
        pages = self._room(self.plan.state_pages)
        if pages is None:
            return None
        state = self._new_state(visit, self.reach(visit, block_hash, end), pages)
        state.writing = part
        return state

    def _new_state(self, visit: Visit, block: Block, pages: tuple[Run, ...]) -> State:
        state = block.state = State(block, self.clock(), pages)
        state.junction = self.lineage.parts_at(block.block_hash)
        self.states[state] = None
        self.settle(self.tree.hold(block))
        self._hold(visit, state)
        visit.made.append(state)
        above = block.parent
        while above is not None and above.state is None:
            above = above.parent
        if above is not None and above.state is not None:
            self._supersede_if_passed(above.state)
            self._let_go(visit, above.state)
        return state

    def _let_go(self, visit: Visit, state: State) -> None:
        """The request has gone on from it: superseded, it may go at once."""
        if state.superseded and state in visit.held:
            visit.held.remove(state)
            state.holds -= 1

    def end_write(self, slot: Block | State, part: int, success: bool) -> bool:
        """The part is readable from now on, or gone; True if this made it readable."""
        if not slot.writing & part:
            return False
        slot.writing &= ~part
        if not success:
            self._failures += 1
            return False
        slot.ready |= part
        if self.ledger is not None:
            self.ledger.readable(slot)
        return True

    def spoil(self, slot: Block | State, part: int) -> None:
        """It is not what was stored: not readable from now on."""
        slot.ready &= ~part
        self._failures += 1
        if self.ledger is not None:
            self.ledger.readable(slot)

    def _room(self, pages: int) -> tuple[Run, ...] | None:
        while self.pages.free < pages:
            if not self.evict_one():
                return None
        return self.pages.take(pages)

    def evict_one(self) -> bool:
        """Give up what is worth least; False if everything is in use."""
        for passed in self.superseded:
            if not passed.pinned:
                self._drop(passed, SUPERSEDED)
                return True
        victim = self.policy.victim(self.clock())
        while victim is not None and self._reweigh(victim):
            victim = self.policy.victim(self.clock())
        if victim is None:
            return False
        if self.marks:
            self._step_up(victim)
        else:
            self._drop(victim, self.policy.name)
        return True

    def _reweigh(self, state: State) -> bool:
        """What it saves changes when states above it go, and is looked at again only when its turn comes; True if
        that made a difference.
        """
        if self.marks:
            return False
        anchor = state.found_anchor()
        if anchor == state.anchor:
            return False
        self.anchor(state, anchor)
        return True

    # --- going ---

    def _drop(self, state: State, reason: str) -> None:
        """Give up a state and the blocks that only it needs."""
        self.policy.remove(state)
        self.superseded.pop(state, None)
        self.leaves.discard(state)
        del self.states[state]
        self._give(state.pages)
        block = state.block
        block.state = None
        self._reason, self._idle_seconds = reason, self.clock() - state.last_used
        if self.marks:
            state.turns = 0  # what is noted with the block is that no mark is there
            self._note_use(state)
        else:
            self.freed.append(Freed("state", [(block.block_hash, state.ready)], reason, self._idle_seconds))
        self.settle(self.tree.release(block))

    def _step_up(self, mark: State) -> None:
        """Give up the last block of a chain; the mark goes to the one before unless others need that anyway."""
        block, above = mark.block, mark.block.parent
        if block.live > 1 or above is None or above.live > 1 or above.state is not None:
            self._drop(mark, self.policy.name)
            return
        self._reason, self._idle_seconds = self.policy.name, self.clock() - mark.last_used
        block.state, above.state, mark.block = None, mark, above
        self.tree.hold(above)
        self.tree.release(block)
        mark.set_anchor(above.end - self.plan.chunk_tokens)
        self.policy.changed(mark)
        self._note_use(mark)

    def _on_free(self, blocks: list[Block]) -> None:
        stored = [block for block in blocks if block.stored]
        if not stored:
            return
        self.stored_blocks -= len(stored)
        if self.ledger is not None:
            for block in stored:
                self.ledger.drop(block.pages)
        self.pages.give_slots([block.pages for block in stored], self.plan.token_pages)
        slots = [(block.block_hash, block.ready) for block in stored]
        self.freed.append(Freed("token", slots, self._reason, self._idle_seconds))

    def _give(self, pages: tuple[Run, ...]) -> None:
        if self.ledger is not None and pages:
            self.ledger.drop(pages)
        self.pages.give(pages)

    def settle(self, stays: Block | None) -> None:
        """Something below this block has come or gone, so its state may have become a leaf or no leaf."""
        if stays is None or stays.state is None:
            return
        if stays.live == 1:
            self.leaves.add(stays.state)
        else:
            self.leaves.discard(stays.state)
        self.policy.changed(stays.state)

    def density(self, state: State) -> float:
        """What a state saves per page that its eviction frees."""
        pages = self.plan.state_pages
        if state.block.live == 1:
            pages += self.plan.token_pages * state.own_blocks
        return state.gain / max(pages, 1)

    # --- pins ---

    def hold_state(self, visit: Visit, block_hash: bytes) -> None:
        """The request goes on from there: the state stays until it has gone further or has ended."""
        block = self.tree.blocks.get(block_hash)
        if block is not None and block.state is not None and not self.marks:
            self._hold(visit, block.state)

    def _hold(self, visit: Visit, state: State) -> None:
        if state not in visit.held:
            state.holds += 1
            visit.held.append(state)

    # --- leaving ---

    def leave(self, visit: Visit) -> None:
        """The request has ended and so have its transfers: it no longer keeps anything."""
        self._reason, self._idle_seconds = ORPHANED, 0.0
        for state in visit.held:
            state.holds -= 1
        for aside in visit.asides:
            self.settle(self.tree.release(aside))
        tip, visit.tip = visit.tip, None
        if tip is not None:
            states, whole = self._states_above(tip)
            if self.marks and whole is not None:
                states = self._marked(visit, whole, states)
            self.settle(self.tree.release(tip))
            states = [state for state in states if state.block.state is state]
            if states:
                self._rank(visit, states)
        for state in visit.held:
            if not state.gain and state.block.state is state:
                self._states_above(state.block)  # whoever made it had to leave it, because this request held it
        visit.forget()

    def _states_above(self, tip: Block) -> tuple[list[State], Block | None]:
        """States on the way to the root, the deepest one first, and the last block that is whole with all
        before it. States behind a block that could not be stored are of no use, and go.
        """
        states: list[State] = []
        parts = self.plan.token_parts
        at: Block | None = tip
        whole: Block | None = tip
        behind_gap = 0
        if self._gapless:
            while at is not None:
                if at.state is not None:
                    states.append(at.state)
                at = at.parent
            return states, whole
        while at is not None:
            if at.state is not None:
                states.append(at.state)
            if at.ready & parts != parts and (at.ready | at.writing) & parts != parts:
                behind_gap, whole = len(states), at.parent
            at = at.parent
        for state in states[:behind_gap]:
            if not state.pinned:
                self._drop(state, ORPHANED)
        return states[behind_gap:], whole

    @property
    def _gapless(self) -> bool:
        """All blocks are whole for certain: each has its place, the one part there is was given it, and none failed."""
        parts = self.plan.token_parts
        return not (self._failures or self.tree.unstored or parts & (parts - 1))

    def _marked(self, visit: Visit, block: Block, states: list[State]) -> list[State]:
        """With a mark on the last whole block of the chain."""
        if block.state is not None:
            return states
        mark = block.state = State(block, self.clock())
        self.states[mark] = None
        self.settle(self.tree.hold(block))
        visit.made.append(mark)
        return [mark, *states]

    def _rank(self, visit: Visit, states: list[State]) -> None:
        """Freshly used ones to the young end, passed ones to the first victims, and what each one saves."""
        newest = states[0]
        used = [state for state in states if state is newest or self._was_used(visit, state)]
        for state in used:
            self._used(visit, state, newest)
        anchor = 0
        for state in reversed(states):
            if state is not newest:
                self._supersede_if_passed(state)
            if state.block.state is not state or state.superseded:
                continue
            self.anchor(state, state.block.end - self.plan.chunk_tokens if self.marks else anchor)
            anchor = state.block.end
        for state in used:
            if state.block.state is state and not state.superseded:
                self.lineage.enter(visit, state)
                self._note_use(state)

    def _note_use(self, state: State) -> None:
        if self.ledger is not None:
            self.ledger.used(state, self.clock() - state.last_used)

    def _was_used(self, visit: Visit, state: State) -> bool:
        return state in visit.made or state.block.end == visit.resumed * self.plan.chunk_tokens

    def _used(self, visit: Visit, state: State, newest: State) -> None:
        state.last_used = self.clock()
        state.junction = self.lineage.parts_at(state.block.block_hash)
        state.turns += state not in visit.made
        if state is newest:
            state.turns = max(state.turns, visit.turns + 1)
        if state.superseded and (state.junction or state is newest):
            state.superseded = False
            del self.superseded[state]

    def anchor(self, state: State, anchor: int) -> None:
        """It saves the way from there on."""
        if state.anchor != anchor or not state.gain:
            state.set_anchor(anchor)
            state.own_blocks = -(-(state.block.end - anchor) // self.plan.chunk_tokens)
            self.policy.changed(state)

    def _supersede_if_passed(self, state: State) -> None:
        """No junction, and only one way leads on from it: its session has a newer one, or soon will."""
        if self.marks and state.block.live > 1:
            self._drop(state, SUPERSEDED)  # a mark weighs nothing and serves no one inside a chain
        elif self.demotes and not state.superseded and not state.junction and state.block.live == 2:
            state.superseded = True
            self.superseded[state] = None
            self.lineage.passed(state)
            self._note_use(state)

    def pinned(self, visits: Iterable[Visit]) -> tuple[int, int]:
        """Blocks and states that cannot go now."""
        blocks: set[Block] = set()
        for visit in visits:
            at = visit.tip
            while at is not None and at not in blocks:
                blocks.add(at)
                at = at.parent
        return len(blocks), sum(state.pinned for state in self.states)

    def clear(self) -> None:
        """Forget what is stored, transfers in flight included; what was learned stays."""
        self.tree.clear()
        self.pages.clear()
        self.policy.clear()
        self.states.clear()
        self.leaves.clear()
        self.freed.clear()
        self.superseded.clear()
        self.stored_blocks = 0
        self._failures = 0
        if self.ledger is not None:
            self.ledger.clear()
