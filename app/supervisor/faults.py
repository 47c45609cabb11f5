"""What went wrong with an engine, as one sentence. A leaf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`fatal`: another try without a change would end the same way, so none is made."""

    code: str
    sentence: str
    fatal: bool


@dataclass(frozen=True)
class Exit:
    """How a process ended. Both None: it was not our child, so the kernel did not tell us."""

    code: int | None = None
    signal: int | None = None

    def describe(self) -> str:
        """The end as a clause, to be put behind the engine's name."""
        if self.signal is not None:
            return f"was killed by signal {self.signal}{_SIGNAL_HINTS.get(self.signal, '')}"
        if self.code is not None:
            return f"exited with code {self.code}"
        return "exited"


_SIGNAL_HINTS = {
    9: " (SIGKILL: by the kernel for lack of memory, or by somebody)",
    11: " (SIGSEGV: a fault in native code)",
    15: " (SIGTERM, not sent by the deck)",
}
