"""A version that upstreams compute, from its config and its bundle to its execution."""

from __future__ import annotations

import asyncio

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.types import Signature, TensorSpec
from paritygate.serving.backends.base import Backend
from paritygate.serving.errors import LoadFailed
from paritygate.serving.execution import Execution, Placing
from paritygate.serving.types import DATATYPES, TensorMetadata
from paritygate.serving.upstreams.config import Upstream, UpstreamTable
from paritygate.serving.upstreams.endpoint import Endpoint
from paritygate.serving.upstreams.execution import UpstreamExecution
from paritygate.serving.upstreams.faults import UpstreamFault
from paritygate.serving.upstreams.proof import NotProven, Proof, result_of
from paritygate.serving.upstreams.wire import Wire, open_wire
from paritygate.serving.validation import ModelRules


class NoUpstreamReady(LoadFailed):
    """No upstream of a version shows the proven numbers now; another look may find one."""


class Hub:
    """The upstreams of one gateway, each with one wire for all versions."""

    def __init__(self, table: UpstreamTable, *, max_answer_bytes: int) -> None:
        self._table = table
        self._max_answer_bytes = max_answer_bytes
        self._wires: dict[str, Wire] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Open the wires; on the event loop that will carry them. Nothing is connected yet."""
        self._loop = asyncio.get_running_loop()
        self._wires = {
            name: open_wire(upstream, max_answer_bytes=self._max_answer_bytes)
            for name, upstream in self._table.upstreams.items()
        }

    def of(self, model: str, version: int) -> Site | None:
        """Where a version is computed; None if that is here."""
        upstreams = self._table.of(model, version)
        if not upstreams or self._loop is None:
            return None
        return Site(model, version, tuple((each, self._wires[each.name]) for each in upstreams), self._loop)

    async def stop(self) -> None:
        """End all connections."""
        for wire in self._wires.values():
            await wire.close()


class Site:
    """Where one version is computed: its upstreams in the order of the file, each with its wire."""

    def __init__(
        self,
        model: str,
        version: int,
        upstreams: tuple[tuple[Upstream, Wire], ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.model = model
        self.version = version
        self.upstreams = upstreams
        self.loop = loop

    def signature(self) -> Signature:
        """What the first upstream that answers says of the version; for one without a certificate.

        Raises:
            NoUpstreamReady: If none answers.
        """
        told = []
        for upstream, wire in self.upstreams:
            timeout_s = upstream.check_timeout_s
            asked = wire.model(self.model, self.version, timeout_s)
            try:
                metadata = result_of(asked, self.loop, timeout_s)
            except UpstreamFault as fault:
                told.append(f"{upstream.name}: {fault.text}")
                continue
            return Signature(_specs(metadata.inputs), _specs(metadata.outputs))
        raise NoUpstreamReady(f"no upstream says what it takes ({'; '.join(told)})")

    def open(self, rules: ModelRules, sealed: tuple[Bundle, Certificate] | None) -> UpstreamBackend:
        """Have an upstream prove itself; the others do so while the version is served already.

        Raises:
            NoUpstreamReady: If none of them gives the proven numbers.
        """
        proof = Proof(self.model, self.version, rules, sealed, self.loop)
        endpoints = [Endpoint(upstream, wire) for upstream, wire in self.upstreams]
        for endpoint in endpoints:
            upstream = endpoint.upstream
            try:
                proven = proof.show(
                    endpoint.wire, timeout_s=upstream.timeout_s, check_timeout_s=upstream.check_timeout_s
                )
            except NotProven as error:
                endpoint.fault = str(error)
                continue
            endpoint.enter(proven)
            return UpstreamBackend(endpoints, proof)
        told = "; ".join(f"{endpoint.name}: {endpoint.fault}" for endpoint in endpoints)
        raise NoUpstreamReady(f"no upstream is in service ({told})")


class UpstreamBackend(Backend):
    """A version that other servers compute."""

    def __init__(self, endpoints: list[Endpoint], proof: Proof) -> None:
        self.endpoints = endpoints
        self.rules = proof.rules
        self._proof = proof

    @property
    def attestation(self) -> Attestation | None:
        """The figures of the upstream that was proven first."""
        return next((e.proven.attestation for e in self.endpoints if e.proven is not None), None)

    @property
    def runtime(self) -> str:
        """The upstreams, and what those in service say of themselves."""
        return ", ".join(
            f"{e.name} ({e.proven.server.name} {e.proven.server.version})" if e.proven else e.name
            for e in self.endpoints
        )

    def execution(self, placing: Placing) -> Execution:
        """Over the wire, whatever the config says of batches: the upstream makes its own."""
        return UpstreamExecution(placing.name, self.endpoints, self._proof)

    def close(self) -> None:
        """There is nothing here."""


def _specs(tensors: tuple[TensorMetadata, ...]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(tensor) for tensor in tensors)


def _spec(tensor: TensorMetadata) -> TensorSpec:
    if tensor.datatype not in DATATYPES:
        raise NoUpstreamReady(
            f"tensor '{tensor.name}' is {tensor.datatype}, which this gateway does not know"
        )
    dims = tuple(f"{tensor.name}.{axis}" if dim == -1 else dim for axis, dim in enumerate(tensor.shape))
    return TensorSpec(tensor.name, DATATYPES[tensor.datatype], dims)
