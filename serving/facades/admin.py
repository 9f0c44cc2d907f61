"""The admin port: load, unload and the index, on loopback only."""

from __future__ import annotations

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.facades.base import Facade
from paritygate.serving.facades.http_server import HttpServer
from paritygate.serving.facades.v2_api import add_docs, add_repository, new_api
from paritygate.serving.facades.v2_settings import add_settings


class AdminFacade(Facade):
    """What operators may do and clients may not."""

    def __init__(self, dataplane: DataPlane) -> None:
        super().__init__(dataplane)
        api = new_api("paritygate admin", dataplane, starts_at="/v2/repository")
        add_repository(api, dataplane, admin=True)
        add_settings(api, dataplane, admin=True)
        add_docs(api, dataplane, admin=True)
        self._server = HttpServer(api, dataplane.settings)

    def bind(self, host: str, port: int) -> int:
        """Take the port."""
        return self._server.bind(host, port)

    async def start(self) -> None:
        """Answer requests."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self._server.stop(grace_s)
