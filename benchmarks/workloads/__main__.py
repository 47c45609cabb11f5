"""Write a workload as a trace file: `python -m benchmarks.workloads FAMILY SEED > FILE`."""

from __future__ import annotations

import argparse
import sys

from benchmarks.workloads import ALL


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__)
    parser.add_argument("family", choices=ALL)
    parser.add_argument("seed", type=int)
    arguments = parser.parse_args()
    for line in ALL[arguments.family](arguments.seed).lines():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
