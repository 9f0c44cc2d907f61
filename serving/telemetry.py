"""What Prometheus gets: Triton's names and meanings, and our own counters beside them.

Source: triton-inference-server/server, docs/user_guide/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.models import Version
from paritygate.serving.statistics import BUCKETS_US, VersionStatistics

_LABELS = ("model", "version")

Read = Callable[[VersionStatistics], float]

_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    ("nv_inference_request_success", "Requests that were answered.", lambda s: s.success.count),
    ("nv_inference_count", "Inferences: each element of a batch counts.", lambda s: s.inference_count),
    ("nv_inference_exec_count", "Runs of the model.", lambda s: s.execution_count),
    ("nv_inference_request_duration_us", "All of answered requests, in us.", lambda s: s.success.ns / 1e3),
    ("nv_inference_queue_duration_us", "Waiting for a thread, in us.", lambda s: s.queue.ns / 1e3),
    ("nv_inference_compute_input_duration_us", "Checking inputs, in us.", lambda s: s.compute_input.ns / 1e3),
    ("nv_inference_compute_infer_duration_us", "Running the model, in us.", lambda s: s.compute_infer.ns / 1e3),
    ("nv_inference_compute_output_duration_us", "Making outputs, in us.", lambda s: s.compute_output.ns / 1e3),
)  # fmt: skip


class GatewayCollector(Collector):
    """Reads the counters when Prometheus asks, so that a request pays nothing for it."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane

    def describe(self) -> list[Any]:
        """Nothing beforehand: which models there are changes."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every metric at this moment."""
        versions = self._versions()
        for name, text, read in _COUNTERS:
            yield _counter(name, text, versions, read)
        yield self._failures(versions)
        yield self._routes(versions)
        yield self._durations(versions)
        yield self._in_flight(versions)
        yield from self._process()

    def _versions(self) -> list[tuple[tuple[str, str], Version]]:
        found = self._dataplane.statistics()
        return [((model.name, str(version.number)), version) for model, version in found]

    def _failures(self, versions: list[tuple[tuple[str, str], Version]]) -> CounterMetricFamily:
        metric = _Untyped(
            "nv_inference_request_failure", "Requests that failed.", labels=(*_LABELS, "reason")
        )
        for labels, version in versions:
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
                metric.add_metric((*labels, reason), version.statistics.failures.get(reason, 0))
        return metric

    def _routes(self, versions: list[tuple[tuple[str, str], Version]]) -> CounterMetricFamily:
        metric = CounterMetricFamily(
            "paritygate_routed_requests",
            "Requests by the rule that chose the version; `named` were addressed to it by the client.",
            labels=(*_LABELS, "rule"),
        )
        for labels, version in versions:
            for rule, count in sorted(version.statistics.routes.items()):
                metric.add_metric((*labels, rule), count)
        return metric

    def _durations(self, versions: list[tuple[tuple[str, str], Version]]) -> HistogramMetricFamily:
        metric = HistogramMetricFamily(
            "nv_inference_request_duration_histogram_us",
            "Microseconds of an answered request.",
            labels=_LABELS,
        )
        bounds = [*map(str, map(float, BUCKETS_US)), "+Inf"]
        for labels, version in versions:
            counts = accumulate(version.statistics.buckets)
            buckets = list(zip(bounds, map(float, counts), strict=True))
            metric.add_metric(labels, buckets, sum_value=version.statistics.success.ns / 1e3)
        return metric

    def _in_flight(self, versions: list[tuple[tuple[str, str], Version]]) -> GaugeMetricFamily:
        metric = GaugeMetricFamily(
            "nv_inference_pending_request_count", "Requests that are not answered yet.", labels=_LABELS
        )
        for labels, version in versions:
            metric.add_metric(labels, version.inflight)
        return metric

    def _process(self) -> Iterator[Any]:
        proofs = GaugeMetricFamily(
            "paritygate_version_proven", "1 where a version is proven, else 0.", labels=_LABELS
        )
        for labels, version in self._versions():
            proofs.add_metric(labels, float(version.provenance.proof == "proven"))
        yield proofs
        batches = GaugeMetricFamily(
            "paritygate_version_batches", "1 where waiting requests are run together, else 0.", labels=_LABELS
        )
        for labels, version in self._versions():
            batches.add_metric(labels, float(version.execution.puts_together))
        yield batches
        yield from self._upstreams()
        rejected = CounterMetricFamily(
            "paritygate_unroutable_requests",
            "Requests that reached no version, by kind of error.",
            labels=("kind",),
        )
        for kind, count in sorted(self._dataplane.unroutable.items()):
            rejected.add_metric((kind,), count)
        yield rejected
        yield GaugeMetricFamily(
            "paritygate_rollout_generation",
            "Newest rollout generation in force here.",
            self._dataplane.rollouts.generation,
        )
        yield GaugeMetricFamily(
            "paritygate_pending_runs",
            "Runs that wait for a thread or are on one.",
            self._dataplane.runner.pending,
        )

    def _upstreams(self) -> Iterator[Any]:
        """What is known about servers elsewhere."""
        labels = (*_LABELS, "upstream")
        serving = GaugeMetricFamily(
            "paritygate_upstream_in_service", "1 where an upstream gets requests of a version.", labels=labels
        )
        waiting = GaugeMetricFamily(
            "paritygate_upstream_inflight", "Requests on their way to an upstream.", labels=labels
        )
        outcomes = CounterMetricFamily(
            "paritygate_upstream_requests",
            "Requests sent upstream by outcome: ok, refused (it blames the request), cancelled, or the fault.",
            labels=(*labels, "outcome"),
        )
        for key, version in self._versions():
            for endpoint in version.execution.upstreams():
                serving.add_metric((*key, endpoint.name), float(not endpoint.fault))
                waiting.add_metric((*key, endpoint.name), endpoint.inflight)
                for outcome, count in sorted(endpoint.outcomes.items()):
                    outcomes.add_metric((*key, endpoint.name, outcome), count)
        yield from (serving, waiting, outcomes)


class _Untyped(CounterMetricFamily):
    """A counter under exactly the name given: Triton's have no `_total`."""

    def add_metric(self, labels: Any, value: float, *_: Any, **__: Any) -> None:
        """Add one value."""
        self.add_sample(self.name, dict(zip(self._labelnames, labels, strict=True)), value)


def _counter(
    name: str, text: str, versions: list[tuple[tuple[str, str], Version]], read: Read
) -> CounterMetricFamily:
    metric = _Untyped(name, text, labels=_LABELS)
    for labels, version in versions:
        metric.add_metric(labels, read(version.statistics))
    return metric
