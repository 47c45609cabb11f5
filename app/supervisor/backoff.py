"""How long to wait before the next try, and when to stop trying. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RetryPolicy:
    """Waits double from `first_seconds` up to `cap_seconds`; `equal_limit` equal failures are the end."""

    first_seconds: float = 1.0
    cap_seconds: float = 60.0
    equal_limit: int = 3
    stable_seconds: float = 120.0
    """An engine that served this long starts with a clean record."""


@dataclass(frozen=True)
class Failures:
    """The failures since the last good run or the last start that was asked for."""

    count: int = 0
    equal: int = 0
    key: str = ""

    def add(self, key: str) -> Failures:
        """One more failure; `key` tells whether it equals the one before."""
        return replace(self, count=self.count + 1, equal=self.equal + 1 if key == self.key else 1, key=key)


def delay_seconds(policy: RetryPolicy, failures: Failures) -> float:
    """The wait after the last of `failures`."""
    doublings = min(failures.count - 1, 30)
    return float(min(policy.cap_seconds, policy.first_seconds * 2**doublings))


def gives_up(policy: RetryPolicy, failures: Failures) -> bool:
    """True when the same failure came so often that another try is pointless."""
    return failures.equal >= policy.equal_limit
