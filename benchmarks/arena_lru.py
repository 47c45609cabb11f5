"""To compare with: one arena without a tree, whatever was used longest ago goes first, block or state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from benchmarks.vram_model import Layout, Prompt, saved_seconds
from engine.page_arena import page_bytes, pages_of

_Key = tuple[bytes, bool]


class ArenaLru:
    """One order over blocks and states. Of a session only the newest state stays in it (demotion)."""

    def __init__(self, layout: Layout, host_bytes: int) -> None:
        page = page_bytes(layout.token_block_bytes, layout.state_bytes)
        self._pages = (pages_of(layout.token_block_bytes, page), pages_of(layout.state_bytes, page))
        self._free = host_bytes // layout.world_size // page
        self._order: OrderedDict[_Key, None] = OrderedDict()
        self._owner: dict[bytes, int] = {}

    def run(self, prompt: Prompt) -> int:
        """Serve and store one request; how deep the host had it."""
        chain = prompt.chain
        found = prompt.device
        while found < prompt.usable and (chain[found], False) in self._order:
            found += 1
        while found > prompt.device and (chain[found - 1], True) not in self._order:
            found -= 1
        found = found if found > prompt.device else 0
        self._store(prompt, found)
        return found

    def _store(self, prompt: Prompt, found: int) -> None:
        chain, began = prompt.chain, max(found, prompt.device)
        depths = {began, prompt.known if prompt.known > began else 0, len(chain)} - {0}
        keys: list[_Key] = [(chain[depth - 1], True) for depth in sorted(depths)]
        keys += [(block_hash, False) for block_hash in reversed(chain)]
        missing = [key for key in keys if key not in self._order]
        self._touch(keys)
        for key in missing:
            self._add(key)
        self._touch(keys)
        for block_hash, is_state in keys:
            if is_state:
                self._owner.setdefault(block_hash, prompt.ask.session)
        self._demote(prompt)

    def _touch(self, keys: Sequence[_Key]) -> None:
        for key in keys:
            if key in self._order:
                self._order.move_to_end(key)

    def _add(self, key: _Key) -> None:
        self._free -= self._pages[key[1]]
        while self._free < 0:
            (_, is_state), _ = self._order.popitem(last=False)
            self._free += self._pages[is_state]
        self._order[key] = None

    def _demote(self, prompt: Prompt) -> None:
        own = [
            block_hash
            for block_hash in reversed(prompt.chain)
            if (block_hash, True) in self._order and self._owner.get(block_hash) == prompt.ask.session
        ]
        for block_hash in own[1:]:
            self._order.move_to_end((block_hash, True), last=False)


def arena_lru_seconds(requests: Sequence[Prompt], layout: Layout, host_bytes: int) -> float:
    """Seconds saved over a trace."""
    tier, saved = ArenaLru(layout, host_bytes), 0.0
    for prompt in requests:
        until = max(tier.run(prompt), prompt.device)
        saved += saved_seconds(until * layout.block_tokens, prompt.device * layout.block_tokens)
    return saved
