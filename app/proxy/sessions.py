"""Where sessions are at home: the engine whose cache holds them.

Remembered, not computed, so that few large sessions spread evenly; a restarted deck reads the homes out
of the records of requests. Bounded: the session that was away longest is forgotten first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

#: Some hundred bytes each.
MAX_SESSIONS = 20_000
MAX_ANSWERS = 20_000


class Homes:
    """Session -> engine, and how many sessions each engine is home to."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._engines: OrderedDict[str, str] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def of(self, session: str) -> str | None:
        """The engine where `session` is at home; None for a new one."""
        return self._engines.get(session)

    def count(self, engine: str) -> int:
        """How many sessions are at home on `engine`."""
        return self._counts[engine]

    def settle(self, session: str, engine: str) -> bool:
        """`session` is sent to `engine`: that is its home, unless it has one. True for a new home."""
        if session in self._engines:
            self._engines.move_to_end(session)
            return False
        self._engines[session] = engine
        self._counts[engine] += 1
        if len(self._engines) > self._limit:
            self._counts[self._engines.popitem(last=False)[1]] -= 1
        return True

    def leave(self, session: str) -> None:
        """`session` never came to its home."""
        if engine := self._engines.pop(session, None):
            self._counts[engine] -= 1

    def restore(self, newest_first: Iterable[tuple[str, str]]) -> None:
        """Take up homes that an earlier deck knew; the newest counts."""
        newest: dict[str, str] = {}
        for session, engine in newest_first:
            newest.setdefault(session, engine)
        for session, engine in reversed(newest.items()):
            self.settle(session, engine)


class Answers:
    """Which session a response of /v1/responses belongs to: the next turn names only that response."""

    def __init__(self, limit: int = MAX_ANSWERS) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def session_of(self, response: str) -> str | None:
        """The session whose turn had this response; None when it is not known."""
        return self._sessions.get(response)

    def remember(self, response: str, session: str) -> None:
        """`response` was the answer to a turn of `session`."""
        self._sessions[response] = session
        if len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
