"""Tells the deck now and then which sessions are in host memory, beside the engine's own work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from vllm.logger import init_logger

from engine.served import ServedBook
from engine.snapshot import MOST_SESSIONS, ResidentSession, Snapshot, write_snapshot

log = init_logger("vllm.tierdeck.snapshot")

#: Telling may take this share of one core.
SHARE: Final = 0.01
LEAST_SECONDS: Final = 2.0


class Teller(Protocol):
    """A manager. `changed` is set by it and cleared by whoever tells."""

    changed: bool
    served: ServedBook

    def sessions(self) -> Sequence[ResidentSession]:
        """What is there now, in any order. Called from another thread than everything else."""


class SnapshotWriter:
    """A thread of its own, because an engine that has nothing to do calls nobody. Its pauses are so long that it
    takes no more than its share, and when nothing changed it only looks. Each of `beside` is called as often, with
    whether it is for the last time.
    """

    def __init__(
        self,
        path: Path,
        teller: Teller,
        least_seconds: float = LEAST_SECONDS,
        beside: Sequence[Callable[[bool], None]] = (),
    ) -> None:
        self._path = path
        self._teller = teller
        self._beside = beside
        self._least_seconds = least_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierdeck-snapshot", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell a last time, then end."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        changed, pause = True, 0.0
        while not self._ending.wait(pause):
            pause = self._least_seconds
            if changed or self._teller.changed:
                began = time.thread_time()
                changed = not self._tell()
                self._do_beside(last=False)
                pause = max(pause, (time.thread_time() - began) / SHARE)
        self._tell()
        self._do_beside(last=True)

    def _do_beside(self, last: bool) -> None:
        for write in self._beside:
            try:
                write(last)
            except OSError as error:
                log.warning("Host tier: nothing can be kept beside %s: %s.", self._path, error)

    def _tell(self) -> bool:
        """False if it has to be tried again."""
        self._teller.changed = False
        try:
            sessions = list(self._teller.sessions())
            count, told = len(sessions), sorted(sessions, key=_last_first)[:MOST_SESSIONS]
            write_snapshot(self._path, Snapshot(time.time(), count, tuple(told)))
        except RuntimeError as error:  # something came or went while it was looked at
            log.debug("Host tier: sessions are told later: %s", error)
            return False
        except OSError as error:
            log.warning("Host tier: sessions cannot be told in %s: %s.", self._path, error)
        return True


def _last_first(session: ResidentSession) -> tuple[bool, int]:
    """Those in use, then those that stay longest."""
    return session.victim_rank is not None, -(session.victim_rank or 0)
