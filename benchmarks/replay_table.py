"""How much of what could be saved each policy saves, over generated workloads.

`python -m benchmarks.replay_table` prints it. Gap closed is (seconds saved - those of the static split at
reference length 262144 with demotion) / (upper bound of any host tier - the same).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Final

from benchmarks.arena_lru import arena_lru_seconds
from benchmarks.bound import upper_bound
from benchmarks.replay import Setup, replay
from benchmarks.vram_model import Layout, Prompt, prompts
from benchmarks.workloads import ALL, HELD_OUT, TUNING, Family

GIB: Final = 1 << 30
SETS: Final[Mapping[str, Mapping[str, Family]]] = {"heldout": HELD_OUT, "tuning": TUNING, "all": ALL}
BASE_REFERENCE: Final = 262_144
STATIC_REFERENCE: Final = 65_536


@dataclass(frozen=True)
class Row:
    """One workload at one size of the host tier; gaps in per cent."""

    family: str
    seed: int
    host_gib: int
    requests: int
    static_gap: float
    arena_lru_gap: float
    hyper_gap: float
    value_gap: float
    idle_sessions: int
    idle_restored: float | None
    value_seconds: float
    static_seconds: float
    avoidable_share: float
    us_mean: float
    us_p99: float

    @property
    def times_static(self) -> float | None:
        """How many times as much as the static split `value` saves; None if that saves nothing."""
        return self.value_seconds / self.static_seconds if self.static_seconds > 1.0 else None

    @property
    def behind(self) -> float:
        """How many points `value` is below the best of the others."""
        return max(self.static_gap, self.arena_lru_gap, self.hyper_gap) - self.value_gap


def measure(family: str, seed: int, host_gib: int, requests: Sequence[Prompt], layout: Layout) -> Row:
    """All policies on one workload."""
    size = host_gib * GIB
    base = replay(requests, layout, Setup("lru", size, BASE_REFERENCE)).seconds_saved
    static = replay(requests, layout, Setup("lru", size, STATIC_REFERENCE)).seconds_saved
    hyper = replay(requests, layout, Setup("hyper", size)).seconds_saved
    value = replay(requests, layout, Setup("value", size))
    whole = upper_bound(requests, layout, size) - base

    def gap(seconds: float) -> float:
        return 100.0 * (seconds - base) / whole if whole > 0 else 100.0

    return Row(
        family=family,
        seed=seed,
        host_gib=host_gib,
        requests=len(requests),
        static_gap=gap(static),
        arena_lru_gap=gap(arena_lru_seconds(requests, layout, size)),
        hyper_gap=gap(hyper),
        value_gap=gap(value.seconds_saved),
        idle_sessions=value.idle_sessions,
        idle_restored=value.idle_sessions_restored_share,
        value_seconds=value.seconds_saved,
        static_seconds=static,
        avoidable_share=value.avoidable_recompute_share,
        us_mean=value.us_per_request_mean,
        us_p99=value.us_per_request_p99,
    )


def rows(families: Mapping[str, Family], seeds: Iterable[int], sizes: Sequence[int]) -> Iterable[Row]:
    """One by one, as each takes some seconds."""
    layout = Layout()
    for seed in seeds:
        for family, generate in families.items():
            requests = prompts(generate(seed), layout)
            for host_gib in sizes:
                yield measure(family, seed, host_gib, requests, layout)


HEAD: Final = (
    f"{'workload':<18} {'GiB':>4} {'requests':>8}   {'static':>6} {'arena':>6} {'hyper':>6} {'value':>6}   "
    f"{'idle back':>9} {'x static':>8} {'us/req':>6} {'p99':>6}"
)


def line(row: Row) -> str:
    """For people."""
    idle = "-" if row.idle_restored is None else f"{100 * row.idle_restored:.0f}%"
    times = "-" if row.times_static is None else f"{min(row.times_static, 9999):.2f}"
    return (
        f"{row.family:<18} {row.host_gib:>4} {row.requests:>8}   {row.static_gap:>6.1f} {row.arena_lru_gap:>6.1f} "
        f"{row.hyper_gap:>6.1f} {row.value_gap:>6.1f}   {idle:>9} {times:>8} {row.us_mean:>6.0f} {row.us_p99:>6.0f}"
    )


def summary(found: Sequence[Row], host_gib: int) -> str:
    """Means and worst of one size."""
    here = [row for row in found if row.host_gib == host_gib]
    idle = sum(row.idle_sessions for row in here)
    back = sum(row.idle_sessions * (row.idle_restored or 0.0) for row in here)
    static_seconds = sum(row.static_seconds for row in here)
    value_seconds = sum(row.value_seconds for row in here)
    times = f"{value_seconds / static_seconds:.2f} times" if static_seconds > 1.0 else "not comparable to"
    return (
        f"{host_gib} GiB: value {mean(row.value_gap for row in here):.1f} "
        f"(lowest {min(row.value_gap for row in here):.1f}, at most {max(row.behind for row in here):.1f} below the "
        f"best other), hyper {mean(row.hyper_gap for row in here):.1f}, "
        f"arena LRU {mean(row.arena_lru_gap for row in here):.1f}, "
        f"static {mean(row.static_gap for row in here):.1f}; "
        f"{100 * back / idle if idle else 100:.0f}% of {idle} idle sessions came back; all together "
        f"{times} the seconds that static saves"
    )


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_table", description=__doc__)
    parser.add_argument("--workloads", default="heldout", help="heldout, tuning, all, or names with commas")
    parser.add_argument("--seeds", default="1", help="with commas")
    parser.add_argument("--host-gib", default="64,32,16", help="with commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    families = SETS.get(arguments.workloads) or {name: ALL[name] for name in arguments.workloads.split(",")}
    sizes = [int(size) for size in arguments.host_gib.split(",")]
    found = []
    if not arguments.json:
        print(HEAD)
    for row in rows(families, [int(seed) for seed in arguments.seeds.split(",")], sizes):
        found.append(row)
        if not arguments.json:
            print(line(row), flush=True)
    print(
        json.dumps([{**asdict(row), "times_static": row.times_static} for row in found])
        if arguments.json
        else "\n".join(_summaries(found, sizes))
    )
    return 0


def _summaries(found: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    return ["", *(summary(found, size) for size in sizes)]


if __name__ == "__main__":
    sys.exit(main())
