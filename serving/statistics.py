"""Counters of one version: what the statistics call and `/metrics` show. Touched on the event loop only.

Source: triton-inference-server/server, docs/protocol/extension_statistics.md.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field

from paritygate.serving.types import Timings

BUCKETS_US = (
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
)  # fmt: skip
"""Upper bounds of the request duration histogram, in microseconds."""

_MAX_BATCH_SIZES = 256


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchDurations:
    """Durations of the runs of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class VersionStatistics:
    """Everything counted about one version since it was loaded."""

    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, BatchDurations] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_US) + 1))
    routes: dict[str, int] = field(default_factory=dict)

    def succeeded(self, batch_size: int, timings: Timings, run_items: int | None = None) -> None:
        """Count a request that was answered.

        Args:
            batch_size: Its items.
            timings: How long its parts took.
            run_items: Items of the run that it stands for; 0 if another request of the same run does, None if it
                ran by itself.
        """
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.inference_count += batch_size
        total = timings.total
        # Written out: eight calls a request are a twentieth of what a small model costs.
        self.success.count += 1
        self.success.ns += total
        self.queue.count += 1
        self.queue.ns += timings.queue
        self.buckets[bisect.bisect_left(BUCKETS_US, total / 1000)] += 1
        _count_parts(self, timings)
        ran = batch_size if run_items is None else run_items
        if not ran:
            return
        self.execution_count += 1
        batch = self.batches.get(ran)
        if batch is None and len(self.batches) < _MAX_BATCH_SIZES:
            batch = self.batches[ran] = BatchDurations()
        if batch is not None:
            _count_parts(batch, timings)

    def failed(self, reason: str, duration_ns: int) -> None:
        """Count a request that reached the version and was not answered.

        Args:
            reason: `REJECTED`, `CANCELED`, `BACKEND` or `OTHER`, as Triton's metric labels them.
            duration_ns: How long it was here.
        """
        self.fail.add(duration_ns)
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def routed(self, rule: str) -> None:
        """Count the rule that gave a request to this version."""
        self.routes[rule] = self.routes.get(rule, 0) + 1


def _count_parts(counted: VersionStatistics | BatchDurations, timings: Timings) -> None:
    counted.compute_input.count += 1
    counted.compute_input.ns += timings.compute_input
    counted.compute_infer.count += 1
    counted.compute_infer.ns += timings.compute_infer
    counted.compute_output.count += 1
    counted.compute_output.ns += timings.compute_output
