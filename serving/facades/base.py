"""The interface of a facade: a protocol on a port."""

from __future__ import annotations

import abc

from paritygate.serving.dataplane import DataPlane


class PortInUse(OSError):
    """An address cannot be listened on; one sentence."""


class Facade(abc.ABC):
    """One protocol on one port, in front of the data plane.

    The port is taken by `bind` before anything slow happens, so that a port in use is told at once.
    """

    def __init__(self, dataplane: DataPlane) -> None:
        self.dataplane = dataplane

    @abc.abstractmethod
    def bind(self, host: str, port: int) -> int:
        """Take the port (0: any free one) and give its number.

        Raises:
            PortInUse: If it cannot be had.
        """

    @abc.abstractmethod
    async def start(self) -> None:
        """Answer requests from now on; returns at once."""

    @abc.abstractmethod
    async def stop(self, grace_s: float) -> None:
        """Take no more connections, let what is under way finish within `grace_s` seconds, then end it."""
