"""What an upstream must show before it gets requests of a version: the sealed probes' answers, over the wire.

Files prove nothing about a server elsewhere. The probes travel as requests do, through the same codec and the same
connections, so what is compared is what clients would get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ConverterError, ModelRunError
from paritygate.converter.parity import attest_candidate
from paritygate.converter.parity.report import Attestation, Certificate, RuntimeInfo
from paritygate.converter.types import Array, Feeds
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.types import ServerMetadata
from paritygate.serving.upstreams.faults import BadAnswer, NotReached, TimedOut, UpstreamFault
from paritygate.serving.upstreams.http_client import Call
from paritygate.serving.upstreams.wire import Wire, WireRequest
from paritygate.serving.validation import ModelRules, TensorRule, as_clients_see_it, as_model_takes_it

T = TypeVar("T")

_GRACE_S = 5.0


@dataclass(frozen=True)
class Sample:
    """A sealed probe that is asked again and again, and what the upstream answered when all were proven.

    Attributes:
        feeds: Inputs, in the shapes that clients send.
        answers: Outputs, as they came.
    """

    feeds: Mapping[str, Array]
    answers: Sequence[Array]


@dataclass(frozen=True)
class Proven:
    """What came of a proof that was passed.

    Attributes:
        attestation: The figures; None for a version without a certificate.
        sample: What to ask later on; None for a version without probes.
        server: What the upstream says of itself.
    """

    attestation: Attestation | None
    sample: Sample | None
    server: ServerMetadata


class NotProven(Exception):
    """An upstream does not give the proven numbers, or says nothing; one sentence."""


class Proof:
    """The sealed probes of one version, for whoever is to compute it.

    Args:
        model: Name of the model.
        version: Its number.
        rules: What the version takes and gives, with the config's `reshape`.
        sealed: The bundle and its passing certificate; None for a version that nobody proved.
        loop: The loop on which wires are asked.
    """

    def __init__(
        self,
        model: str,
        version: int,
        rules: ModelRules,
        sealed: tuple[Bundle, Certificate] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.model = model
        self.version = version
        self.rules = on_the_wire(rules)
        self.sealed = sealed is not None
        self._graph_rules = rules
        self._sealed = sealed
        self._loop = loop

    def show(self, wire: Wire, *, timeout_s: float, check_timeout_s: float) -> Proven:
        """Ask all sealed probes; slow, so not for the event loop, which must be running.

        Args:
            wire: The upstream.
            timeout_s: Until when each answer must have come.
            check_timeout_s: Until when it must have said who it is.

        Raises:
            NotProven: With what it did instead.
        """
        server = self._server(wire, check_timeout_s)
        if self._sealed is None:
            self._ask_metadata(wire, check_timeout_s)
            return Proven(None, None, server)
        bundle, certificate = self._sealed
        asked = _Asked(self, wire, timeout_s)
        runtime = RuntimeInfo(server.name or "unknown", server.version or "unknown", "unknown")
        try:
            attestation = attest_candidate(bundle, certificate, asked, runtime)
        except (ConverterError, OSError) as error:
            raise NotProven(f"its sealed probes cannot be read: {error}") from error
        if attestation.verdict != "pass":
            raise NotProven(asked.fault or f"it does not give the proven numbers: {attestation.reason}")
        return Proven(attestation, asked.smallest, server)

    def _server(self, wire: Wire, timeout_s: float) -> ServerMetadata:
        try:
            return result_of(wire.server(timeout_s), self._loop, timeout_s)
        except UpstreamFault as fault:
            raise NotProven(fault.text) from fault

    def _ask_metadata(self, wire: Wire, timeout_s: float) -> None:
        try:
            result_of(wire.model(self.model, self.version, timeout_s), self._loop, timeout_s)
        except UpstreamFault as fault:
            raise NotProven(fault.text) from fault

    def ask(self, wire: Wire, feeds: Feeds, timeout_s: float) -> dict[str, Array]:
        """The graph's outputs for the graph's inputs, as the upstream computes them.

        Raises:
            UpstreamFault: If it does not.
            InvalidArgument: If it blames the request.
        """
        rules = self._graph_rules
        sent = {name: as_clients_see_it(rules.inputs[name], array) for name, array in feeds.items()}
        found = [self._ask_wire(wire, part, timeout_s) for part in _batches(sent, rules.max_batch_size)]
        joined = found[0] if len(found) == 1 else [np.concatenate(each) for each in zip(*found, strict=True)]
        return {
            rule.name: as_model_takes_it(rule, array)
            for rule, array in zip(rules.outputs.values(), joined, strict=True)
        }

    def _ask_wire(self, wire: Wire, feeds: Feeds, timeout_s: float) -> list[Array]:
        return result_of(wire.infer(self.request(feeds), Call(), timeout_s), self._loop, timeout_s)

    def request(self, feeds: Feeds) -> WireRequest:
        """A request for all outputs."""
        return WireRequest(self.model, self.version, self.rules, feeds, tuple(self.rules.outputs))

    def sample(self, feeds: Feeds, answers: Mapping[str, Array]) -> Sample | None:
        """A probe as it went over the wire; None if it took several requests."""
        rules = self._graph_rules
        sent = {name: as_clients_see_it(rules.inputs[name], array) for name, array in feeds.items()}
        if len(_batches(sent, rules.max_batch_size)) > 1:
            return None
        found = [as_clients_see_it(rule, answers[name]) for name, rule in rules.outputs.items()]
        return Sample(sent, found)


class _Asked:
    """An upstream as what a proof compares with the source."""

    optimized = True

    def __init__(self, proof: Proof, wire: Wire, timeout_s: float) -> None:
        self._proof = proof
        self._wire = wire
        self._timeout_s = timeout_s
        self._smallest_bytes = -1
        self.smallest: Sample | None = None
        self.fault = ""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """All outputs; one that does not answer at all is not asked again."""
        if self.fault:
            raise ModelRunError(self.fault)
        try:
            answers = self._proof.ask(self._wire, feeds, self._timeout_s)
        except (NotReached, TimedOut) as fault:
            self.fault = fault.text
            raise ModelRunError(fault.text) from fault
        except (UpstreamFault, InvalidArgument) as fault:
            raise ModelRunError(str(fault)) from fault
        except ValueError as error:
            raise ModelRunError(f"its answer does not fit the config: {error}") from error
        size = sum(array.nbytes for array in feeds.values())
        if self._smallest_bytes < 0 or size < self._smallest_bytes:
            sample = self._proof.sample(feeds, answers)
            if sample is not None:
                self._smallest_bytes, self.smallest = size, sample
        return answers


def result_of(asked: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, timeout_s: float) -> T:
    """The result of a coroutine that runs on the loop, for a caller on another thread.

    Raises:
        TimedOut: If it has none although its own limit is long over.
    """
    future = asyncio.run_coroutine_threadsafe(asked, loop)
    try:
        return future.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        future.cancel()
        raise TimedOut(f"no whole answer within {timeout_s:g} s") from error


def on_the_wire(rules: ModelRules) -> ModelRules:
    """The rules of a version that another server computes: its own `reshape` is that server's to make."""

    def plain(tensors: Mapping[str, TensorRule]) -> dict[str, TensorRule]:
        return {name: replace(rule, model_shape=None) for name, rule in tensors.items()}

    return replace(rules, inputs=plain(rules.inputs), outputs=plain(rules.outputs))


def same_answer(sample: Sample, answers: Sequence[Array]) -> bool:
    """Whether an upstream answers a sample as it did, bit for bit; a NaN is the same as itself."""
    return all(
        old.dtype == new.dtype
        and old.shape == new.shape
        and (bool((old == new).all()) if old.dtype == object else old.tobytes() == new.tobytes())
        for old, new in zip(sample.answers, answers, strict=True)
    )


def _batches(feeds: Feeds, max_batch_size: int) -> list[dict[str, Array]]:
    """The feeds in requests that a server takes: a sealed probe may hold more items than its config allows."""
    size = max((len(array) for array in feeds.values()), default=0) if max_batch_size else 0
    if size <= max_batch_size:
        return [dict(feeds)]
    if any(len(array) != size for array in feeds.values()):
        raise BadAnswer("a probe's inputs differ in their batch size")
    return [
        {name: array[at : at + max_batch_size] for name, array in feeds.items()}
        for at in range(0, size, max_batch_size)
    ]
