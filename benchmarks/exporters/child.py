"""One measurement in a process of its own: `python -m benchmarks.exporters.child EXPORTER ours|bare ANSWER`."""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path

from paritygate.converter._stages import measured_stages
from paritygate.converter.config import ExportConfig
from paritygate.converter.exporters import get_exporter


def main(name: str, side: str, answer: Path) -> None:
    benchmark = importlib.import_module(f"benchmarks.exporters.{name}")
    model, options = benchmark.build()
    started = time.perf_counter()
    stages: dict[str, float] = {}
    if side == "ours":
        # The double-precision copy is an extra that the bare exporter has no counterpart of.
        config = ExportConfig(name="benchmark", float64=False, **options)
        with measured_stages() as stages:
            get_exporter(name).export(model, answer.parent / "bundle", config)
    else:
        benchmark.bare(model, options, answer.parent / "bare.onnx")
    seconds = time.perf_counter() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.write_text(json.dumps({"seconds": seconds, "stages": stages, "peak_mib": peak_mib}), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
