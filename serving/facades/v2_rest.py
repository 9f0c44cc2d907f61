"""The v2 protocol over HTTP: inference goes to its own endpoint, all else to the documented FastAPI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.facades.base import Facade
from paritygate.serving.facades.http_server import HttpServer
from paritygate.serving.facades.v2_api import build_api
from paritygate.serving.facades.v2_infer import INFER_PATH, InferEndpoint

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class RestFacade(Facade):
    """HTTP/1.1 on the inference port."""

    def __init__(self, dataplane: DataPlane) -> None:
        super().__init__(dataplane)
        self.infer = InferEndpoint(dataplane)
        app = Dispatcher(self.infer, build_api(dataplane))
        self.server = HttpServer(app, dataplane.settings, shortcut=self.infer)

    def bind(self, host: str, port: int) -> int:
        """Take the port."""
        return self.server.bind(host, port)

    async def start(self) -> None:
        """Answer requests."""
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self.server.stop(grace_s)


class Dispatcher:
    """Gives inference to its endpoint and the rest to the documented API."""

    def __init__(self, infer: InferEndpoint, api: Callable[..., Awaitable[None]]) -> None:
        self._infer = infer
        self._api = api

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "http":
            match = INFER_PATH.fullmatch(scope["raw_path"])
            if match is not None:
                await self._infer(scope, receive, send, match)
                return
        await self._api(scope, receive, send)
