"""`python -m benchmarks`: every benchmark, one table after the other. Each runs alone too."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "benchmarks.door",
    "benchmarks.bookkeeping",
    "benchmarks.transfer",
    "benchmarks.step_time",
    "benchmarks.restore",
    "benchmarks.restart",
    "benchmarks.replay_table",
    "benchmarks.series",
)


def main() -> int:
    """Command line entry; non-zero when a benchmark failed."""
    failed = 0
    for name in BENCHMARKS:
        print(f"\n{name}\n", flush=True)
        failed += subprocess.run([sys.executable, "-m", name], check=False).returncode != 0  # noqa: S603 - our own
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
