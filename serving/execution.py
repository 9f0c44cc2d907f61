"""How a checked request becomes outputs: the seam between the data plane and what computes.

A version has one execution from the moment it is loaded. Which one is decided by its backend and its config: runs
of its own on the loop or in a thread, runs shared with other requests, or a call to another server.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from paritygate.converter.types import Array
from paritygate.serving.placement import Lane, Runner, Timed
from paritygate.serving.publish.triton_config import ModelConfig
from paritygate.serving.types import InferRequest
from paritygate.serving.validation import CheckedRequest

if TYPE_CHECKING:
    from paritygate.serving.backends.base import EmbeddedBackend
    from paritygate.serving.upstreams.endpoint import Endpoint


@dataclass(frozen=True)
class Placing:
    """Where and how a version is to run.

    Attributes:
        config: The model's config.
        runner: Threads, and the limit on what waits.
        inline_below_us: Runs known to be shorter than this, in microseconds, are made on the event loop.
        name: Version and model, for messages.
    """

    config: ModelConfig
    runner: Runner
    inline_below_us: float
    name: str


class Execution(abc.ABC):
    """Answers the checked requests of one version; everything here is called on the event loop."""

    puts_together = False
    """Whether requests that wait are run together now."""

    fault = ""
    """Why it cannot answer now; empty while it can."""

    @abc.abstractmethod
    async def run(
        self, checked: CheckedRequest, outputs: Sequence[str], request: InferRequest
    ) -> Timed[list[Array]]:
        """Compute `outputs`, in that order.

        Args:
            checked: The request's tensors as the graph takes them, its batch size and its size in bytes.
            outputs: Names of outputs that the version has.
            request: What the client sent, of whose parameters `priority` and `timeout` may matter.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs.
            Exhausted: If too many requests wait already.
            Unavailable: If nothing that could compute it answers now.
            InferenceFailed: If the runtime fails.
        """

    def run_at_once(self, checked: CheckedRequest, outputs: Sequence[str]) -> Timed[list[Array]] | None:
        """Compute `outputs` here and now if that is known to be short; None, with nothing done, if it is not.

        Most small models are answered this way: no coroutine, no task and no thread is worth their time.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs.
            InferenceFailed: If the runtime fails.
        """
        return None

    def upstreams(self) -> Sequence[Endpoint]:
        """The servers elsewhere that compute it; none where it is computed here."""
        return ()

    async def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what waits; called once no request is in the version."""


class DirectExecution(Execution):
    """Every request is a run of its own: on the event loop where that is known to be short, else in a thread."""

    def __init__(self, backend: EmbeddedBackend, lane: Lane) -> None:
        self._backend = backend
        self._lane = lane

    def run_at_once(self, checked: CheckedRequest, outputs: Sequence[str]) -> Timed[list[Array]] | None:
        """Run the request on the event loop if one of its size is known to be short."""
        if not self._lane.is_short(checked.size_bytes):
            return None
        return self._lane.run_here(checked.size_bytes, partial(self._backend.infer, checked.feeds, outputs))

    async def run(
        self, checked: CheckedRequest, outputs: Sequence[str], request: InferRequest
    ) -> Timed[list[Array]]:
        """Run the request by itself, on a thread."""
        return await self._lane.run(checked.size_bytes, partial(self._backend.infer, checked.feeds, outputs))

    async def close(self) -> None:
        """End the threads."""
        await asyncio.to_thread(self._lane.close)
