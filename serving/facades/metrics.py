"""The metrics port: `/metrics` for Prometheus, and nothing else."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.facades.base import Facade
from paritygate.serving.facades.http_server import HttpServer
from paritygate.serving.telemetry import GatewayCollector


class MetricsFacade(Facade):
    """Prometheus text under the names that Triton's dashboards have."""

    def __init__(self, dataplane: DataPlane) -> None:
        super().__init__(dataplane)
        self._registry = CollectorRegistry()
        self._registry.register(GatewayCollector(dataplane))
        self._server = HttpServer(self._answer, dataplane.settings)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        found = scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        body = generate_latest(self._registry) if found else b'{"error":"Not Found"}'
        kind = CONTENT_TYPE_LATEST if found else "application/json"
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def bind(self, host: str, port: int) -> int:
        """Take the port."""
        return self._server.bind(host, port)

    async def start(self) -> None:
        """Answer requests."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self._server.stop(grace_s)
