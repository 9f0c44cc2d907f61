"""Runs every benchmark and prints one table: `make bench`."""

from __future__ import annotations

import os
import platform

from benchmarks import export, gateway, routing

BENCHMARKS = (routing, gateway, export)


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for benchmark in BENCHMARKS:
        for row in benchmark.run():
            print(row)


if __name__ == "__main__":
    main()
