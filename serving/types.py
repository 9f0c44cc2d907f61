"""The words of the serving package: requests, answers and what a model takes. No HTTP, no protobuf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from paritygate.converter.types import Array, DType

if TYPE_CHECKING:
    from paritygate.serving.shared_memory import RegionPart

Parameter: TypeAlias = "bool | int | float | str"
"""What a request parameter may be; objects and arrays are refused."""

DATATYPES: Mapping[str, DType] = {
    "BOOL": DType.BOOL,
    "UINT8": DType.UINT8,
    "UINT16": DType.UINT16,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "INT8": DType.INT8,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "FP16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "FP32": DType.FLOAT32,
    "FP64": DType.FLOAT64,
    "BYTES": DType.STRING,
}
"""Wire names of the element types. Source: kserve/open-inference-protocol, inference_rest.md."""

DATATYPE_NAMES: Mapping[DType, str] = {dtype: name for name, dtype in DATATYPES.items()}


@dataclass(slots=True)
class InferTensor:
    """One tensor of a request or an answer.

    Attributes:
        name: Name of the model's input or output.
        datatype: Wire name, a key of `DATATYPES`.
        array: The values. Strings are object arrays of `str`; a classification answer is one as well.
    """

    name: str
    datatype: str
    array: Array


@dataclass(slots=True)
class RequestedOutput:
    """One output that a request asks for.

    Attributes:
        name: Name of the model's output.
        binary: Whether the client wants bytes; None leaves it to the request's default.
        classification: Number of best classes wanted instead of the tensor; 0 asks for the tensor.
        part: Where in shared memory the tensor is to lie; None sends it with the answer.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    part: RegionPart | None = None


HeadersView: TypeAlias = "Callable[[], Mapping[str, str]]"
"""Gives the lower-case headers (or gRPC metadata) of a request; called only where a rollout asks for them."""


def no_headers() -> Mapping[str, str]:
    """The headers of a request that came without any."""
    return {}


@dataclass(slots=True)
class InferRequest:
    """One inference request, whatever protocol brought it.

    Attributes:
        model_name: Name of the model.
        model_version: Decimal text, or empty to let the rollout or the version policy choose.
        inputs: The tensors, in the order of the request.
        outputs: The outputs asked for; empty asks for all.
        id: The client's own id, given back in the answer; empty if there is none.
        parameters: Request parameters, reserved names already refused.
        headers: Gives the headers that a rollout's matches and sticky keys look at.
        protocol: Which facade brought it, for the metrics: `http` or `grpc`.
        stream: Keeps one version for one stream; None outside streams.
    """

    model_name: str
    model_version: str
    inputs: list[InferTensor]
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    headers: HeadersView = no_headers
    protocol: str = "http"
    stream: StreamPins | None = None


@dataclass(slots=True)
class StreamPins:
    """Which version a stream was given for each model it asked; a stream keeps its version."""

    routes: dict[str, Route] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Route:
    """Which version answers, and why.

    Attributes:
        version: The version's number.
        rule: Name of the rule that chose: a route of the rollout, `default`, `latest` or `named`.
        bucket: 0..9999 where a rollout drew one, else None.
    """

    version: int
    rule: str
    bucket: int | None = None


@dataclass(slots=True, frozen=True)
class Provenance:
    """What is known about the version that answered.

    Attributes:
        proof: `proven` (certificate for these bytes, attested on this host) or `unproven`.
        bundle: The bundle's digest; empty where the version is no bundle.
        certificate: Digest of the certificate that says so; empty where there is none.
    """

    proof: str
    bundle: str = ""
    certificate: str = ""


@dataclass(slots=True)
class Timings:
    """How long the parts of one request took, in nanoseconds."""

    queue: int
    compute_input: int
    compute_infer: int
    compute_output: int

    @property
    def total(self) -> int:
        """The whole request."""
        return self.queue + self.compute_input + self.compute_infer + self.compute_output

    def header(self) -> str:
        """Value of `Server-Timing`, in milliseconds. Source: W3C Server Timing, section 3."""
        return (
            f"queue;dur={self.queue / 1e6:.3f}, input;dur={self.compute_input / 1e6:.3f}, "
            f"infer;dur={self.compute_infer / 1e6:.3f}, output;dur={self.compute_output / 1e6:.3f}"
        )


@dataclass(slots=True)
class InferResponse:
    """One answer, before a facade writes it down."""

    model_name: str
    model_version: int
    outputs: list[InferTensor]
    route: Route
    provenance: Provenance
    id: str = ""
    timings: Timings | None = None

    def facts(self) -> list[tuple[str, str]]:
        """The `x-pg-*` facts about this answer, for HTTP headers and gRPC metadata alike."""
        return answer_facts(self.route, self.provenance)


def answer_facts(route: Route, provenance: Provenance) -> list[tuple[str, str]]:
    """The `x-pg-*` names and values that tell which version answered and why."""
    facts = [
        ("x-pg-model-version", str(route.version)),
        ("x-pg-rule", route.rule),
        ("x-pg-proof", provenance.proof),
    ]
    if route.bucket is not None:
        facts.append(("x-pg-bucket", f"{route.bucket:04d}"))
    if provenance.bundle:
        facts.append(("x-pg-bundle", provenance.bundle))
    if provenance.certificate:
        facts.append(("x-pg-certificate", provenance.certificate))
    return facts


@dataclass(slots=True, frozen=True)
class TensorMetadata:
    """Name, wire type and shape of an input or output; -1 stands for a size that may vary."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class ModelMetadata:
    """What `GET /v2/models/<name>` says."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(slots=True, frozen=True)
class ServerMetadata:
    """What `GET /v2` says."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class IndexEntry:
    """One line of the repository index: a version, its state and why it is in that state."""

    name: str
    version: str
    state: str
    reason: str
