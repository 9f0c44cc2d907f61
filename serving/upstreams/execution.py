"""Answers the requests of one version from its upstreams: chooses, retries where that is safe, watches, ejects.

An upstream is judged by its answers. A Triton whose model processes are dead says that it is ready and answers
500 (seen, Triton 2.51); one that hangs accepts connections. So faulty answers in a row make the sealed probes
decide, a probe is asked now and then in any case, and only all probes bring an upstream back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence

from paritygate.converter.types import Array
from paritygate.serving.errors import Exhausted, InferenceFailed, InvalidArgument, ServingError, Unavailable
from paritygate.serving.execution import Execution
from paritygate.serving.placement import Timed
from paritygate.serving.types import InferRequest
from paritygate.serving.upstreams.endpoint import Endpoint
from paritygate.serving.upstreams.faults import Absent, BadAnswer, Busy, Failed, UpstreamFault
from paritygate.serving.upstreams.http_client import Call
from paritygate.serving.upstreams.proof import NotProven, Proof, Sample, same_answer
from paritygate.serving.upstreams.wire import WireRequest
from paritygate.serving.validation import CheckedRequest

log = logging.getLogger("paritygate.serving")

_RETRIES_PER_REQUEST = 0.2
_MOST_RETRIES = 20.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_LOOK_EVERY_S = 0.25
_LATE_CHECKS = 2
_TRACE_HEADERS = ("traceparent", "tracestate")


class RetryBudget:
    """At most a fifth of the requests may be retries, so that a sick fleet is not asked twice as often."""

    def __init__(self) -> None:
        self._left = _MOST_RETRIES

    def earn(self) -> None:
        """A request came."""
        self._left = min(_MOST_RETRIES, self._left + _RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        """Whether one may be made."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class UpstreamExecution(Execution):
    """The upstreams of one version."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint], proof: Proof) -> None:
        self._name = name
        self._proof = proof
        self._budget = RetryBudget()
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.endpoints = tuple(endpoints)
        for endpoint in endpoints:
            self._begin(self._watch(endpoint))

    @property
    def fault(self) -> str:  # type: ignore[override]
        """Why no upstream answers; empty if one does."""
        if any(not endpoint.fault for endpoint in self.endpoints):
            return ""
        told = "; ".join(f"{endpoint.name}: {endpoint.fault}" for endpoint in self.endpoints)
        return f"no upstream of {self._name} is in service ({told})."

    def upstreams(self) -> Sequence[Endpoint]:
        """Its upstreams."""
        return self.endpoints

    async def run(
        self, checked: CheckedRequest, outputs: Sequence[str], request: InferRequest
    ) -> Timed[list[Array]]:
        """Ask one upstream, and at most one other where the first one's fault leaves that safe."""
        asked = self._request(checked, outputs, request)
        repeatable = "sequence_id" not in request.parameters
        self._budget.earn()
        started_ns = time.perf_counter_ns()
        first = self._choose(None)
        try:
            answer = await self._ask(first, asked, repeatable=repeatable)
        except UpstreamFault as fault:
            other = self._other(first, fault, repeatable=repeatable)
            if other is None:
                raise self._error(first, fault) from fault
            try:
                answer = await self._ask(other, asked, repeatable=repeatable)
            except UpstreamFault as second:
                raise self._error(other, second) from second
        return Timed(answer, started_ns, time.perf_counter_ns(), None)

    def _request(self, checked: CheckedRequest, outputs: Sequence[str], request: InferRequest) -> WireRequest:
        headers = request.headers()
        return WireRequest(
            self._proof.model,
            self._proof.version,
            self._proof.rules,
            checked.feeds,
            outputs,
            request.id,
            request.parameters,
            {name: headers[name] for name in _TRACE_HEADERS if name in headers},
        )

    async def _ask(self, endpoint: Endpoint, request: WireRequest, *, repeatable: bool) -> list[Array]:
        try:
            return await endpoint.ask(request, repeatable=repeatable)
        except UpstreamFault:
            if endpoint.failures >= endpoint.upstream.failures:
                self._doubt(endpoint)
            raise

    def _choose(self, but: Endpoint | None) -> Endpoint:
        """The one with the fewest requests on their way, of those in service; doubted ones last.

        Raises:
            Unavailable: If none is in service.
            Exhausted: If all of them have as many requests as they may.
        """
        serving = [endpoint for endpoint in self.endpoints if not endpoint.fault and endpoint is not but]
        if not serving:
            raise Unavailable(f"{self.fault or 'no other upstream is in service.'} Try again.")
        free = [endpoint for endpoint in serving if not endpoint.full]
        if not free:
            limit = sum(endpoint.upstream.max_inflight for endpoint in serving)
            raise Exhausted(
                f"{limit} requests of {self._name} are on their way upstream, which is the limit; try again later."
            )
        if len(free) == 1:
            return free[0]
        self._turn += 1
        place = self._turn % len(free)
        turned = free[place:] + free[:place]
        return min(turned, key=lambda endpoint: (endpoint.doubted, endpoint.inflight))

    def _other(self, first: Endpoint, fault: UpstreamFault, *, repeatable: bool) -> Endpoint | None:
        """Whom to ask after a fault; None if asking again is not safe, not allowed or of no use."""
        if not fault.elsewhere or (fault.computed and not repeatable):
            return None
        try:
            other = self._choose(first)
        except ServingError:
            return None
        return other if self._budget.spend() else None

    def _error(self, endpoint: Endpoint, fault: UpstreamFault) -> ServingError:
        """What the client is told: an upstream's own words as they are, what was seen with its name."""
        if isinstance(fault, Failed):
            return InferenceFailed(fault.text)
        if isinstance(fault, BadAnswer):
            return InferenceFailed(f"upstream '{endpoint.name}' gave no right answer: {fault.text}.")
        if isinstance(fault, Busy):
            return Exhausted(fault.text, retry_after_s=fault.retry_after_s)
        if isinstance(fault, Absent):
            return Unavailable(f"upstream '{endpoint.name}' does not serve it: {fault.text}. Try again.")
        return Unavailable(f"upstream '{endpoint.name}' did not answer: {fault.text}. Try again.")

    # --- watching -----------------------------------------------------------------------------------------------

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _doubt(self, endpoint: Endpoint) -> None:
        """Have the probes decide about an upstream with faulty answers; requests prefer others meanwhile."""
        if endpoint.doubted or endpoint.fault:
            return
        endpoint.doubted = True
        self._begin(self._decide(endpoint))

    async def _decide(self, endpoint: Endpoint) -> None:
        if endpoint.proven is None or endpoint.proven.sample is None:
            self._eject(endpoint, f"{endpoint.failures} faulty answers in a row", give_up=False)
            return
        why = await self._check(endpoint)
        if why:
            self._eject(endpoint, why, give_up=True)
        else:
            endpoint.doubted = False
            endpoint.failures = 0

    def _eject(self, endpoint: Endpoint, why: str, *, give_up: bool) -> None:
        if not endpoint.fault:
            log.warning("upstream '%s' is out of service for %s: %s", endpoint.name, self._name, why)
            endpoint.leave(why, give_up=give_up)

    async def _watch(self, endpoint: Endpoint) -> None:
        """Ask a probe now and then while it is in service; prove everything again while it is not."""
        wait_s, late, entered_ns = 0.0, 0, 0
        while True:
            if endpoint.fault:
                # One that comes back and fails again at once stays away longer each time.
                await asyncio.sleep(wait_s)
                wait_s = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * wait_s))
                await self._prove(endpoint)
                entered_ns = time.monotonic_ns()
                continue
            await asyncio.sleep(_LOOK_EVERY_S)
            if time.monotonic_ns() - entered_ns > _LONGEST_WAIT_S * 1e9:
                wait_s = _FIRST_WAIT_S
            if self._due(endpoint):
                why = await self._check(endpoint)
                late = late + 1 if why else 0
                if late >= _LATE_CHECKS:
                    self._eject(endpoint, why, give_up=True)
                    late = 0

    def _due(self, endpoint: Endpoint) -> bool:
        interval_s = endpoint.upstream.check_interval_s
        if endpoint.fault or endpoint.doubted or not interval_s:
            return False
        quiet_s = (time.monotonic_ns() - endpoint.checked_ns) / 1e9
        return quiet_s >= interval_s

    async def _check(self, endpoint: Endpoint) -> str:
        """Ask the smallest probe; gives what is wrong, or nothing."""
        proven = endpoint.proven
        began_ns = endpoint.checked_ns = time.monotonic_ns()
        sample = proven.sample if proven is not None else None
        try:
            answers = await self._ask_sample(endpoint, sample)
        except Busy:
            return ""
        except (UpstreamFault, InvalidArgument) as fault:
            # Under load a probe waits as everybody does; whoever answers others is not dead.
            return "" if endpoint.answered_ns > began_ns else f"a sealed probe failed: {fault}"
        if sample is None or same_answer(sample, answers):
            return ""
        return "" if await self._prove(endpoint) else endpoint.fault

    async def _ask_sample(self, endpoint: Endpoint, sample: Sample | None) -> list[Array]:
        """The answer to the sample; a version without probes is only asked what it is."""
        timeout_s = endpoint.upstream.check_timeout_s
        if sample is None:
            await endpoint.wire.model(self._proof.model, self._proof.version, timeout_s)
            return []
        return await endpoint.wire.infer(self._proof.request(sample.feeds), Call(), timeout_s)

    async def _prove(self, endpoint: Endpoint) -> bool:
        """Ask all probes; in service if they pass, out of it if not."""
        upstream = endpoint.upstream
        try:
            proven = await asyncio.to_thread(
                self._proof.show,
                endpoint.wire,
                timeout_s=upstream.timeout_s,
                check_timeout_s=upstream.check_timeout_s,
            )
        except NotProven as error:
            self._eject(endpoint, str(error), give_up=True)
            endpoint.fault = str(error)
            return False
        if endpoint.fault:
            log.warning("upstream '%s' is in service for %s", endpoint.name, self._name)
        endpoint.enter(proven)
        return True

    async def close(self) -> None:
        """End the watching; the wires belong to whoever made them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
