"""Copies on a CPU: threads that let go of the interpreter lock while they copy.

Pieces at equal distances on both sides, as blocks of one prompt usually are, go in one numpy copy:
every return to Python costs a wait for the interpreter lock that the engine step holds.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from vllm.logger import init_logger

from engine.transfer.base import Copier, CopyBatch, Finished, memory_at

log = init_logger("vllm.tierdeck.transfer")

#: One task of a thread. Small enough for a load to overtake a long store, large enough to be worth it.
TASK_BYTES = 8 << 20
#: For fewer, two arrays take longer to make than the pieces to copy.
FEW_PIECES = 4
LOAD, STORE, END = 0, 1, 2


class Run(NamedTuple):
    """Pieces of one size whose addresses rise (or fall) by fixed steps."""

    device: int
    host: int
    device_step: int
    host_step: int
    pieces: int
    size: int


def runs(batch: CopyBatch, most_bytes: int = TASK_BYTES) -> Iterator[Run]:
    """The pieces as few runs, none (but a single piece) longer than `most_bytes`."""
    # Lists: looking at one number of an array takes ten times as long.
    device, host, sizes = batch.device.tolist(), batch.host.tolist(), batch.sizes.tolist()
    total, at = len(sizes), 0
    while at < total:
        size, end = sizes[at], at + 1
        limit = min(total, at + max(1, most_bytes // size))
        device_step, host_step = size, size
        if end < limit and sizes[end] == size:
            device_step, host_step = device[end] - device[at], host[end] - host[at]
            end += 1
            while (
                end < limit
                and sizes[end] == size
                and device[end] - device[end - 1] == device_step
                and host[end] - host[end - 1] == host_step
            ):
                end += 1
        yield Run(device[at], host[at], device_step, host_step, end - at, size)
        at = end


def copy_run(run: Run, to_host: bool) -> None:
    """Copy one run; the interpreter lock is free meanwhile."""
    if run.pieces < FEW_PIECES:
        _copy_singly(run, to_host)
        return
    device = memory_at(run.device, run.device_step, run.pieces, run.size)
    host = memory_at(run.host, run.host_step, run.pieces, run.size)
    np.copyto(*((host, device) if to_host else (device, host)))


def _copy_singly(run: Run, to_host: bool) -> None:
    for number in range(run.pieces):
        device, host = run.device + number * run.device_step, run.host + number * run.host_step
        ctypes.memmove(*((host, device) if to_host else (device, host)), run.size)


class _Job:
    """One batch under way."""

    def __init__(self, job_id: int, total_bytes: int, tasks: int, is_load: bool) -> None:
        self.job_id = job_id
        self.total_bytes = total_bytes
        self.tasks_left = tasks
        self.is_load = is_load
        self.success = True
        self.began = time.perf_counter()


class CpuCopier(Copier):
    """A few threads and one queue; loads go before stores, since a request waits for them."""

    def __init__(self, threads: int, patience_seconds: float = 0.001) -> None:
        self._patience_seconds = patience_seconds
        self._queue: queue.PriorityQueue[tuple[int, int, _Job | None, list[Run], bool]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._loads = 0
        self._finished: list[Finished] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"tier-copy-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job_id: int, batch: CopyBatch, to_host: bool) -> None:
        """Cut the batch into tasks and queue them."""
        tasks = list(_tasks(batch))
        job = _Job(job_id, batch.total_bytes, len(tasks), not to_host)
        with self._changed:
            self._jobs[job_id] = job
            self._loads += job.is_load
            if not tasks:
                self._end(job)
        for task in tasks:
            self._queue.put((STORE if to_host else LOAD, next(self._order), job, task, to_host))

    def finished(self) -> list[Finished]:
        """What ended since the last call. With a load under way, wait for it for a moment: the engine
        asks without pause then, and would keep the threads from the interpreter lock.
        """
        with self._changed:
            if self._loads and not self._finished:
                self._changed.wait(self._patience_seconds)
            finished, self._finished = self._finished, []
            return finished

    def wait(self, job_ids: set[int]) -> None:
        """Block until none of these jobs is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs.keys().isdisjoint(job_ids))

    def close(self) -> None:
        """Finish everything queued, then end the threads."""
        for _ in self._threads:
            self._queue.put((END, next(self._order), None, [], False))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            _, _, job, task, to_host = self._queue.get()
            if job is None:
                return
            self._copy(job, task, to_host)

    def _copy(self, job: _Job, task: list[Run], to_host: bool) -> None:
        success = True
        try:
            for run in task:
                copy_run(run, to_host)
        except Exception:
            log.exception("Host tier: the %s of job %d failed.", "store" if to_host else "load", job.job_id)
            success = False
        with self._changed:
            job.success &= success
            job.tasks_left -= 1
            if job.tasks_left == 0:
                self._end(job)

    def _end(self, job: _Job) -> None:
        seconds = time.perf_counter() - job.began
        self._finished.append(Finished(job.job_id, job.success, job.total_bytes, seconds))
        del self._jobs[job.job_id]
        self._loads -= job.is_load
        self._changed.notify_all()


def _tasks(batch: CopyBatch) -> Iterator[list[Run]]:
    task: list[Run] = []
    task_bytes = 0
    for run in runs(batch):
        if task and task_bytes + run.pieces * run.size > TASK_BYTES:
            yield task
            task, task_bytes = [], 0
        task.append(run)
        task_bytes += run.pieces * run.size
    if task:
        yield task
