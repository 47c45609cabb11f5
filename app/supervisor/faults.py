"""What went wrong with an engine, as one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from app.supervisor.causes import Cause


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
            return _KNOWN_SIGNALS.get(self.signal) or Cause.KILLED_BY % {"signal": self.signal}
        if self.code is not None:
            return Cause.EXITED_WITH % {"code": self.code}
        return Cause.EXITED.value


_KNOWN_SIGNALS = {9: Cause.KILLED_BY_9.value, 11: Cause.KILLED_BY_11.value, 15: Cause.KILLED_BY_15.value}
