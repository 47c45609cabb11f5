"""What a trace's requests find in VRAM, whatever the host tier does; and what computing costs.

VRAM is one pool of pages with one order of use over blocks and states, as vLLM's own prefix cache is; a
state takes as many pages as there are linear layer groups. A request leaves all its blocks there, and
states where it began, where its known prefix ends (if computed past it) and at its last whole block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from benchmarks.trace import Ask, Chains, Trace

#: 500,000 tokens take 265 s to compute, half of it for attention, which grows with the square.
_TOKEN_SECONDS: Final = 132.5 / 500e3
_SQUARE_SECONDS: Final = 132.5 / 500e3**2
#: Restoring them takes 5.7 s.
RESTORE_SECONDS: Final = 5.7 / 500e3

#: A session that comes back after this long, to a prompt of at least that length, is an idle one.
IDLE_SECONDS: Final = 600.0
IDLE_TOKENS: Final = 8_000


def prefill_seconds(tokens: int) -> float:
    """How long computing a prompt takes."""
    return _TOKEN_SECONDS * tokens + _SQUARE_SECONDS * tokens * tokens


def saved_seconds(until: int, start: int) -> float:
    """What restoring tokens from `start` until `until` saves."""
    return prefill_seconds(until) - prefill_seconds(start) - RESTORE_SECONDS * (until - start)


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes per worker."""

    block_tokens: int = 784
    token_block_bytes: int = 3_200_000
    state_bytes: int = 52_000_000
    state_groups: int = 7
    world_size: int = 4
    vram_blocks: int = 1403
    vram_state_blocks: int = 7


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request before the host tier is asked. Depths are in blocks."""

    ask: Ask
    chain: list[bytes]
    usable: int  # whole blocks before the last token, which is always computed
    device: int  # what VRAM has, with a state at its end
    known: int  # how much of it was ever seen, at most `usable`
    restorable: int  # the deepest boundary any host tier could have
    idle_until: int  # of an idle session that comes back to a VRAM that lost it: where it was, else 0


class Vram:
    """The device's cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._order: OrderedDict[tuple[bytes, bool], None] = OrderedDict()
        self._used = 0

    def hit(self, chain: list[bytes], most: int) -> int:
        """Blocks from the beginning, up to the deepest state among them."""
        depth = 0
        while depth < most and (chain[depth], False) in self._order:
            depth += 1
        while depth and (chain[depth - 1], True) not in self._order:
            depth -= 1
        return depth

    def keep(self, chain: list[bytes], boundaries: Iterable[int]) -> None:
        """The end of the chain is the oldest of its blocks, so that it goes first."""
        for block_hash in reversed(chain):
            self._touch((block_hash, False), 1)
        for depth in boundaries:
            self._touch((chain[depth - 1], True), self._layout.vram_state_blocks)
        while self._used > self._layout.vram_blocks:
            (_, is_state), _ = self._order.popitem(last=False)
            self._used -= self._layout.vram_state_blocks if is_state else 1

    def _touch(self, key: tuple[bytes, bool], pages: int) -> None:
        if key in self._order:
            self._order.move_to_end(key)
        else:
            self._order[key] = None
            self._used += pages


def prompts(trace: Trace, layout: Layout) -> list[Prompt]:
    """The requests of a trace and what VRAM has of each."""
    model = _Model(trace, layout)
    return [model.prompt(ask) for ask in trace.asks]


class _Model:
    def __init__(self, trace: Trace, layout: Layout) -> None:
        self._block_tokens = layout.block_tokens
        self._chains = Chains(trace)
        self._vram = Vram(layout)
        self._seen: set[bytes] = set()
        self._with_state: set[bytes] = set()
        self._last: dict[int, tuple[float, int]] = {}

    def prompt(self, ask: Ask) -> Prompt:
        chain = self._chains.chain(ask.session, ask.prompt_tokens // self._block_tokens)
        usable = min((ask.prompt_tokens - 1) // self._block_tokens, len(chain))
        device = self._vram.hit(chain, usable)
        known = 0
        while known < usable and chain[known] in self._seen:
            known += 1
        restorable = known
        while restorable > device and chain[restorable - 1] not in self._with_state:
            restorable -= 1
        prompt = Prompt(ask, chain, usable, device, known, restorable, 0)
        idle_until = self._idle_until(prompt)
        self._note(prompt)
        return prompt if not idle_until else Prompt(ask, chain, usable, device, known, restorable, idle_until)

    def _idle_until(self, prompt: Prompt) -> int:
        last = self._last.get(prompt.ask.session)
        if last is None:
            return 0
        at, depth = last[0], min(last[1], prompt.usable)
        idle = prompt.ask.at - at > IDLE_SECONDS and depth * self._block_tokens >= IDLE_TOKENS
        lost = prompt.device < 0.5 * depth and prompt.restorable >= 0.9 * depth
        return depth if idle and lost else 0

    def _note(self, prompt: Prompt) -> None:
        chain = prompt.chain
        self._last[prompt.ask.session] = prompt.ask.at, len(chain)
        self._seen.update(chain[prompt.known :])
        boundaries = [depth for depth in {prompt.device, prompt.known, len(chain)} if depth]
        self._with_state.update(chain[depth - 1] for depth in boundaries)
        self._vram.keep(chain, boundaries)
