"""Settings of the gateway: read once at start, checked at once, frozen."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Everything that `paritygate serve` can be told.

    Raises:
        ValueError: If a value is out of range; one sentence that names the field.
    """

    repository: Path
    """Folder in Triton's layout: `<model>/config.pbtxt`, `<model>/<version>/model.onnx`."""

    rollouts_dir: Path | None = None
    """Folder of the rollout state (`paritygate rollout apply --state DIR`); None: default versions only."""

    upstreams_file: Path | None = None
    """File that says which versions other servers compute (docs/upstreams.md); None computes all of them here."""

    host: str = "127.0.0.1"
    """Address of the HTTP, gRPC and metrics ports. Loopback by default: there is no authentication."""

    http_port: int = 8000
    """Port of the HTTP protocol; 0 takes a free one, which the ready line and the ready file name."""

    grpc_port: int = 8001
    """Port of the gRPC protocol; 0 takes a free one."""

    metrics_port: int = 8002
    """Port of `/metrics`; 0 takes a free one."""

    admin_port: int = 8003
    """Port of load and unload, always on loopback; 0 takes a free one."""

    ready_file: Path | None = None
    """Where to write the real ports and the process id as JSON once requests are answered; None writes nothing."""

    allow_unproven: bool = False
    """Serve versions without a certificate for their bytes; each of their answers says `x-pg-proof: unproven`."""

    default_version: Literal["routed", "latest"] = "routed"
    """Who answers where no rollout decides: `routed` the lowest listed version (a new one gets nothing until a
    rollout names it), `latest` the highest served one, as Triton does."""

    model_control_mode: Literal["none", "explicit"] = "none"
    """`none`: everything in the repository is served and new versions appear by themselves; `explicit`: only what
    load calls ask for, and load and unload are open on the HTTP and gRPC ports too."""

    load_models: tuple[str, ...] = ()
    """In mode explicit: the models to load at start; `*` loads all."""

    poll_interval_s: float = 1.0
    """Seconds between two looks at the version lists in mode none."""

    rollout_poll_interval_s: float = 0.2
    """Seconds between two looks at the rollout state; a change is live within this time."""

    rollout_lease_s: float = 10.0
    """Seconds for which this worker counts as live after it last acknowledged a rollout generation."""

    drain_delay_s: float = 0.0
    """Seconds after SIGTERM in which requests are still answered while readiness already says no, so that load
    balancers can look elsewhere."""

    drain_timeout_s: float = 30.0
    """Seconds that requests in flight get to finish after SIGTERM, and in a version that left the list."""

    error_style: Literal["triton", "kserve"] = "triton"
    """Whose codes are given where the two differ: what is not ready is 400 for Triton and 503 for KServe, whose
    readiness of an unknown model is 404; a model that fails while it computes is INTERNAL for Triton over gRPC and
    INVALID_ARGUMENT for KServe."""

    shared_memory: tuple[str, ...] = ()
    """Prefixes of the keys of shared memory objects that clients may name; empty turns shared memory off."""

    trace_file: Path | None = None
    """Where traces are written once trace settings ask for them; None turns tracing off."""

    server_timing: bool = False
    """Have each answer tell in `Server-Timing` how long it waited and computed."""

    inference_threads: int = field(default_factory=lambda: max(1, os.cpu_count() or 1))
    """Threads that run models; more requests than that wait in the queue."""

    intra_op_threads: int = 1
    """Threads inside one run; 1 because requests run side by side already. 0 leaves it to onnxruntime."""

    inline_below_us: float = 200.0
    """Runs that are known to be shorter than this (microseconds) are made on the event loop itself, which saves
    the hop to a thread; 0 always takes a thread."""

    max_queue: int = 512
    """Requests that may wait for a thread; one more is refused as unavailable."""

    max_body_bytes: int = 64 * MIB
    """Largest request, before and after decompression, over HTTP and gRPC."""

    max_inflight_bytes: int = 1024 * MIB
    """Largest sum of all HTTP bodies held at one moment; more is refused as unavailable."""

    max_response_bytes: int = 1024 * MIB
    """Largest sum of output bytes of one answer."""

    max_memory_bytes: int = 0
    """Most memory that this process may write to; 0 is nine tenths of the machine's, or of the container's. A
    model that lets clients choose the size of its outputs then fails one request, and the machine ends nobody."""

    body_timeout_s: float = 30.0
    """Seconds in which a request's head, and then its body, must have arrived."""

    keep_alive_timeout_s: float = 75.0
    """Seconds an idle HTTP connection stays open."""

    max_header_bytes: int = 64 * 1024
    """Largest sum of a request's header lines."""

    reserved_headers: Literal["refuse", "strip"] = "refuse"
    """What happens to `x-pg-*` headers that a client sends with inference: a bad request, or dropped."""

    log_level: str = "warning"
    """Level of the log on standard error: debug, info, warning or error."""

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "metrics_port", "admin_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise ValueError(f"{name} is {port}; give a port from 1 to 65535, or 0 for a free one.")
        self._check_distinct_ports()
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise ValueError(f"{name} is {value}; give at least {least}.")
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} is {value!r}; give one of {', '.join(known)}.")
        self._check_lease()
        if self.load_models and self.model_control_mode != "explicit":
            raise ValueError("load_models is given but model_control_mode is none, which serves every model.")

    def _check_lease(self) -> None:
        """A worker that looks more rarely than its lease runs out would follow a rollout that nobody waits for."""
        longest = self.rollout_lease_s / 3
        if not self.rollout_poll_interval_s <= longest:
            raise ValueError(
                f"rollout_poll_interval_s is {self.rollout_poll_interval_s}; give at most {longest:g}, a third of "
                f"rollout_lease_s ({self.rollout_lease_s}), or make the lease longer."
            )

    def _check_distinct_ports(self) -> None:
        seen: dict[int, str] = {}
        for name in ("http_port", "grpc_port", "metrics_port", "admin_port"):
            port = getattr(self, name)
            if port and port in seen:
                raise ValueError(f"{name} and {seen[port]} are both {port}; give each its own port.")
            seen[port] = name


_LEAST: dict[str, float] = {
    "poll_interval_s": 0.01,
    "rollout_poll_interval_s": 0.01,
    "rollout_lease_s": 0.5,
    "drain_delay_s": 0,
    "drain_timeout_s": 0,
    "inference_threads": 1,
    "intra_op_threads": 0,
    "inline_below_us": 0,
    "max_queue": 0,
    "max_body_bytes": 1024,
    "max_inflight_bytes": 1024,
    "max_response_bytes": 1024,
    "max_memory_bytes": 0,
    "body_timeout_s": 0.01,
    "keep_alive_timeout_s": 0.1,
    "max_header_bytes": 1024,
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "default_version": ("routed", "latest"),
    "model_control_mode": ("none", "explicit"),
    "reserved_headers": ("refuse", "strip"),
    "error_style": ("triton", "kserve"),
    "log_level": ("debug", "info", "warning", "error"),
}
