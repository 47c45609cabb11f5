"""The engine's block, as it becomes for a hybrid, and what one sequence reserves in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from app.errors import InvalidInput
from app.planner.fields import Finding
from app.planner.geometry import Geometry

Platform = Literal["cuda", "cpu"]
#: Tokens that a block is a multiple of; also the block of a model without states.
BLOCK_UNITS: Final[dict[str, int]] = {"cuda": 16, "cpu": 128}
#: In `align` mode a running sequence holds the state it continues from and the one it writes.
STATES_OF_A_SEQUENCE: Final = 2
#: Below this ratio of layer counts the engine pads the smaller group up instead of splitting the larger.
PAD_UP_RATIO: Final = 1.5


@dataclass(frozen=True)
class Sizes:
    """The sizes of one worker that blocks are made from."""

    kv_bytes: int
    """Of a KV element."""
    state_element_bytes: int
    workers: int = 1


def block_tokens(geometry: Geometry, platform: Platform, sizes: Sizes, asked: int | None = None) -> int:
    """The block the engine ends up with: a page of attention must hold at least one page of state.

    `asked` is --block-size: the engine enlarges to a multiple of it.
    """
    unit = asked or BLOCK_UNITS[platform]
    if unit % BLOCK_UNITS[platform]:
        sentence = "block_tokens is %(asked)s; on %(platform)s a multiple of %(unit)s is meant."
        values = {"asked": unit, "platform": platform, "unit": BLOCK_UNITS[platform]}
        raise InvalidInput(sentence, path="block_tokens", values=values)
    token_bytes = geometry.attention.bytes_per_token(sizes.kv_bytes, sizes.workers)
    state_bytes = geometry.state_bytes_per_layer(sizes.state_element_bytes, sizes.workers)
    return unit * max(1, _ceil(state_bytes, unit * token_bytes))


def block_findings(tokens: int, asked: int | None, platform: Platform, is_hybrid: bool) -> list[Finding]:
    """What the block means for those who use it."""
    message = f"A prompt shorter than a block ({tokens} tokens) can never hit."
    found = [Finding("note", "shorter_than_block", "block_tokens", message, {"tokens": tokens})]
    if asked is not None and asked != tokens:
        message = f"A block of {asked} tokens is too small for a state; the engine enlarges it to {tokens}."
        found.append(Finding("warning", "block_enlarged", "block_tokens", message, {"asked": asked, "tokens": tokens}))
    if is_hybrid and platform == "cpu" and asked is None:
        message = f"On the CPU pass --block-size {tokens}: there the scheduler does not learn of the enlarged block."
        found.append(Finding("warning", "pass_block_size", "block_tokens", message, {"tokens": tokens}))
    return found


def reserved_bytes(geometry: Geometry, sizes: Sizes, block: int, length: int, step_tokens: int) -> int:
    """What the engine sets aside on each worker for one sequence, prefix caching on, mode `align`.

    Layers are put into groups of equal size and padded to fill them; each group keeps whole blocks:
    growing ones as many as the sequence has, states two, windows what slides through in a step.
    """
    page = block * geometry.attention.bytes_per_token(sizes.kv_bytes, sizes.workers)
    kinds = (
        (geometry.growing_layers, _ceil(length, block)),
        (geometry.recurrent_layers, STATES_OF_A_SEQUENCE),
        (geometry.window_layers, _ceil(min(geometry.window_tokens - 1 + step_tokens, length), block) + 1),
    )
    group = _group_size([layers for layers, _ in kinds if layers])
    return sum(_ceil(layers, group) * group * blocks * page for layers, blocks in kinds)


def _group_size(layers: list[int]) -> int:
    least, most = min(layers), max(layers)
    return most if most < least * PAD_UP_RATIO else least


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
