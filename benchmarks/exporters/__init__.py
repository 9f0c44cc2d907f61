"""What an export with evidence costs over the framework's own: `python -m benchmarks.exporters [EXPORTER...]`.

For each exporter a file of its name holds

    ENVIRONMENT     the framework environment it runs in, or None for the core
    MODEL           what is exported, in one line
    build()         -> (model, keyword arguments of export_model)
    bare(model, options, path)   the framework's own export, as one would write it by hand

Every figure comes from a process of its own (`child.py`), by turns, so that neither side finds the other's caches.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments import SPECS, sync
from paritygate.converter.exporters import EXPORTERS

ROOT = Path(__file__).resolve().parents[2]
GRAPH_STAGES = ("open", "graph", "write")
"""What the framework's own exporter does too. Apart from it: probes, float64 runs, digests."""


@dataclass(frozen=True)
class Figures:
    """One exporter against its framework's own.

    Attributes:
        name: The exporter.
        model: What was exported.
        time_ratio: Graph and write over the bare export, median of the rounds.
        memory_ratio: Peak resident memory of the process over that of the bare one, median of the rounds.
        bare_s: Seconds of the bare export, median.
        stages_s: Seconds of each stage of ours, medians.
        bare_mib: Peak memory of the bare process, median.
    """

    name: str
    model: str
    time_ratio: float
    memory_ratio: float
    bare_s: float
    stages_s: dict[str, float]
    bare_mib: float

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(self.stages_s.items()))
        return (
            f"{self.name:<11} time {self.time_ratio:5.2f} x of {self.bare_s:6.2f} s   memory "
            f"{self.memory_ratio:5.2f} x of {self.bare_mib:6.0f} MiB   {self.model} ({stages})"
        )


def run(names: Sequence[str] = (), rounds: int = 3) -> Iterator[Figures]:
    """The figures of each exporter that has a benchmark."""
    for name in names or EXPORTERS:
        yield _compare(name, rounds)


def _compare(name: str, rounds: int) -> Figures:
    module = importlib.import_module(f"benchmarks.exporters.{name}")
    python = sys.executable if module.ENVIRONMENT is None else str(sync(module.ENVIRONMENT).python)
    variables = {} if module.ENVIRONMENT is None else dict(SPECS[module.ENVIRONMENT].variables)
    pairs = [
        (_measure(python, variables, name, "bare"), _measure(python, variables, name, "ours"))
        for _ in range(rounds)
    ]
    stages = {stage for _, ours in pairs for stage in ours["stages"]}
    return Figures(
        name=name,
        model=module.MODEL,
        time_ratio=statistics.median(
            sum(ours["stages"].get(stage, 0.0) for stage in GRAPH_STAGES) / bare["seconds"]
            for bare, ours in pairs
        ),
        memory_ratio=statistics.median(ours["peak_mib"] / bare["peak_mib"] for bare, ours in pairs),
        bare_s=statistics.median(bare["seconds"] for bare, _ in pairs),
        stages_s={s: statistics.median(ours["stages"].get(s, 0.0) for _, ours in pairs) for s in stages},
        bare_mib=statistics.median(bare["peak_mib"] for bare, _ in pairs),
    )


def _measure(python: str, variables: dict[str, str], name: str, side: str) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="paritygate-benchmark-") as scratch:
        folder = Path(scratch)
        (folder / "path").mkdir()
        for package in ("paritygate", "benchmarks"):
            (folder / "path" / package).symlink_to(ROOT / package)
        answer = folder / "answer.json"
        log = folder / "log"
        with log.open("wb") as output:
            done = subprocess.run(
                [python, "-m", "benchmarks.exporters.child", name, side, str(answer)],
                stdout=output, stderr=output, timeout=900, cwd=folder,
                env={**os.environ, **variables, "PYTHONPATH": str(folder / "path")},
            )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(
                f"{name} {side} ended with {done.returncode}: {log.read_text('utf-8', 'replace')[-3000:]}"
            )
        figures: dict[str, dict[str, float]] = json.loads(answer.read_text("utf-8"))
        return figures
