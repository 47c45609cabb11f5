"""What a profile is checked against: engine version, platform, model, and the memory of the box. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.errors import InvalidInput

Version = tuple[int, int]
Platform = Literal["cpu", "cuda"]

#: What is assumed of an engine that nobody has asked yet.
USUAL_VERSION: Final[Version] = (0, 32)


def _unknown_block(_flags: Mapping[str, Any]) -> int | None:
    return None


def _any_ranks(_ranks: int) -> bool:
    return True


def _any_chunk(_blocks: int, _tokens: int | None) -> InvalidInput | None:
    return None


@dataclass(frozen=True)
class ModelFacts:
    """The served model, as far as its config.json is at hand and tells it."""

    name: str
    is_hybrid: bool
    is_latent: bool = False
    """Its attention keeps one latent instead of keys and values (MLA)."""
    longest_tokens: int | None = None
    architectures: tuple[str, ...] = ()
    block_of: Callable[[Mapping[str, Any]], int | None] = _unknown_block
    """The block that the engine ends up with on this platform, by the flags."""
    takes_ranks: Callable[[int], bool] = _any_ranks
    """Whether so many ranks can share its heads."""
    refused_chunk: Callable[[int, int | None], InvalidInput | None] = _any_chunk
    """Why a connector's `blocks_per_chunk`, and `block_size`, cannot be served for it."""


@dataclass(frozen=True)
class Claim:
    """Host memory that another fleet's profile asks for."""

    fleet: str
    profile: str
    bytes: int


@dataclass(frozen=True)
class Box:
    """The memory of the machine that the engines run on."""

    memory_bytes: int
    limit_bytes: int | None = None
    """Of the control group that the deck and its engines live in."""
    shared_bytes: int | None = None
    """Size of the shared-memory mount."""
    claims: tuple[Claim, ...] = ()

    @property
    def usable_bytes(self) -> int:
        """What processes may take before the kernel ends one of them."""
        return min(self.memory_bytes, self.limit_bytes or self.memory_bytes)


@dataclass(frozen=True)
class Context:
    """Everything outside the profile that its meaning depends on. None = not known, so not judged."""

    engine_version: Version = USUAL_VERSION
    platform: Platform | None = None
    model: ModelFacts | None = None
    unread_model: str = ""
    """The model whose config.json should be on this machine and cannot be read."""
    box: Box | None = None
    engines: int = 1
    """How many engines of the fleet would each take what the profile asks for."""
    allow: tuple[str, ...] = field(default=())
    told_keys: int = 16
    """How many unknown keys of one config are told one by one: finding the nearest known key takes time."""
    base_flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags that the fleet gives every start; a profile's flag of the same name wins."""
    base_environment: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    """The devices that the fleet gives its first engine; empty = every engine sees all."""

    @property
    def version_text(self) -> str:
        """Such as 0.32."""
        return ".".join(map(str, self.engine_version))

    def is_allowed(self, path: str) -> bool:
        """True when the profile says that this path is right although the deck does not know it."""
        return any(path == one or (one.endswith("*") and path.startswith(one[:-1])) for one in self.allow)
