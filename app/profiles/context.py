"""What a profile is checked against: engine version, platform, model, and the memory of the box. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Version = tuple[int, int]
Platform = Literal["cpu", "cuda"]

#: What is assumed of an engine that nobody has asked yet.
USUAL_VERSION: Final[Version] = (0, 32)


def _unknown_block(_flags: Mapping[str, Any]) -> int | None:
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
    box: Box | None = None
    engines: int = 1
    """How many engines of the fleet would each take what the profile asks for."""
    allow: tuple[str, ...] = field(default=())

    @property
    def version_text(self) -> str:
        """Such as 0.32."""
        return ".".join(map(str, self.engine_version))

    def is_allowed(self, path: str) -> bool:
        """True when the profile says that this path is right although the deck does not know it."""
        return any(path == one or (one.endswith("*") and path.startswith(one[:-1])) for one in self.allow)
