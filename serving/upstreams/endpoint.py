"""One version at one upstream: whether it is in service, what is on its way there, and what was counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from paritygate.converter.types import Array
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.upstreams.config import Upstream
from paritygate.serving.upstreams.faults import Busy, UpstreamFault
from paritygate.serving.upstreams.http_client import Call
from paritygate.serving.upstreams.proof import Proven
from paritygate.serving.upstreams.wire import Wire, WireRequest


class Endpoint:
    """One version at one upstream.

    Attributes:
        upstream: Where it is.
        wire: How it is asked; shared by all versions there.
        proven: What it showed; None until it did.
        fault: Why it is out of service; empty while it is in service.
        doubted: Whether its answers gave reason to ask the sealed probes again.
        inflight: Requests on their way.
        failures: Faulty answers since the last good one.
        answered_ns: When it last answered anything well, in nanoseconds of `time.monotonic_ns`.
        checked_ns: When it was last asked a sealed probe; the same clock.
        outcomes: Requests by outcome: `ok`, `refused` (it blames the request), or the kind of fault.
    """

    def __init__(self, upstream: Upstream, wire: Wire) -> None:
        self.upstream = upstream
        self.wire = wire
        self.proven: Proven | None = None
        self.fault = "it has not shown the proven numbers yet"
        self.doubted = False
        self.inflight = 0
        self.failures = 0
        self.answered_ns = self.checked_ns = time.monotonic_ns()
        self.outcomes: Counter[str] = Counter()
        self._calls: set[Call] = set()

    @property
    def name(self) -> str:
        """Name of the upstream."""
        return self.upstream.name

    async def ask(self, request: WireRequest, *, repeatable: bool) -> list[Array]:
        """Send one request there, and count what came of it.

        Raises:
            InvalidArgument: If the upstream blames the request.
            UpstreamFault: If anything else goes wrong.
        """
        call = Call(repeatable=repeatable)
        self._calls.add(call)
        self.inflight += 1
        try:
            answer = await self.wire.infer(request, call, self.upstream.timeout_s)
        except UpstreamFault as fault:
            self.outcomes[type(fault).__name__] += 1
            if not isinstance(fault, Busy):
                self.failures += 1
            raise
        except InvalidArgument:
            self._answered("refused")
            raise
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
            raise
        finally:
            self.inflight -= 1
            self._calls.discard(call)
        self._answered("ok")
        return answer

    def _answered(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.failures = 0
        self.answered_ns = time.monotonic_ns()

    @property
    def full(self) -> bool:
        """Whether it has as many requests as it may."""
        return self.inflight >= self.upstream.max_inflight

    def enter(self, proven: Proven) -> None:
        """Put it in service."""
        self.proven = proven
        self.fault = ""
        self.failures = 0
        self.doubted = False

    def leave(self, why: str, *, give_up: bool) -> None:
        """Take it out of service.

        Args:
            why: One sentence.
            give_up: End what is on its way, so that it is asked elsewhere: nobody answers there.
        """
        self.fault = why
        if give_up:
            for call in list(self._calls):
                call.end()
