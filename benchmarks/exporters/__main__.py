"""Prints one line for each exporter: `python -m benchmarks.exporters [EXPORTER...]`."""

from __future__ import annotations

import sys

from benchmarks.exporters import run

if __name__ == "__main__":
    for figures in run(sys.argv[1:]):
        print(figures, flush=True)
