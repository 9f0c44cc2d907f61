"""Upstreams: other servers of the v2 protocol (a Triton fleet) that compute versions of this repository.

Imports point down: config, faults; http_client; wire; v2_http, v2_grpc; proof; endpoint; execution; backend.
"""

from __future__ import annotations

from paritygate.serving.upstreams.config import Upstream, UpstreamTable, load_upstreams

__all__ = ["Upstream", "UpstreamTable", "load_upstreams"]
