"""The interface of a wire: how one upstream is asked, whatever protocol it is spoken to in.

A new one is one file and one line in `WIRES`, by the scheme of the upstream's URL.
"""

from __future__ import annotations

import abc
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paritygate.converter.types import Array, DType
from paritygate.serving.types import DATATYPES, ModelMetadata, Parameter, ServerMetadata
from paritygate.serving.upstreams.config import Upstream
from paritygate.serving.upstreams.faults import BadAnswer
from paritygate.serving.upstreams.http_client import Call
from paritygate.serving.v2_binary import encode_raw
from paritygate.serving.validation import ModelRules

WIRES: dict[str, str] = {
    "http": "paritygate.serving.upstreams.v2_http:HttpWire",
    "https": "paritygate.serving.upstreams.v2_http:HttpWire",
    "grpc": "paritygate.serving.upstreams.v2_grpc:GrpcWire",
    "grpcs": "paritygate.serving.upstreams.v2_grpc:GrpcWire",
}


@dataclass(slots=True)
class WireRequest:
    """What an upstream is asked.

    Attributes:
        model: Name of the model.
        version: Its number; always told.
        rules: What the version takes and gives on the wire.
        feeds: Tensors by input name, in the shapes that clients send.
        outputs: Names of the outputs wanted.
        id: The client's id; empty if there is none.
        parameters: The client's parameters.
        headers: Headers that travel with it (`traceparent`).
    """

    model: str
    version: int
    rules: ModelRules
    feeds: Mapping[str, Array]
    outputs: Sequence[str]
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class Wire(abc.ABC):
    """Speaks to one upstream; everything here is called on the event loop.

    Args:
        upstream: Where it is.
        max_answer_bytes: Largest answer that is read.
    """

    @abc.abstractmethod
    def __init__(self, upstream: Upstream, *, max_answer_bytes: int) -> None: ...

    @abc.abstractmethod
    async def infer(self, request: WireRequest, call: Call, timeout_s: float) -> list[Array]:
        """The outputs wanted, in that order, as the upstream computes them.

        Raises:
            InvalidArgument: If the upstream blames the request; with its text.
            UpstreamFault: If anything else goes wrong.
        """

    @abc.abstractmethod
    async def server(self, timeout_s: float) -> ServerMetadata:
        """What the upstream says of itself.

        Raises:
            UpstreamFault: If it does not.
        """

    @abc.abstractmethod
    async def model(self, name: str, version: int, timeout_s: float) -> ModelMetadata:
        """What it says of one version.

        Raises:
            UpstreamFault: If it does not, or says that there is none.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """End all connections."""


def open_wire(upstream: Upstream, *, max_answer_bytes: int) -> Wire:
    """The wire to an upstream; connects when it is first asked."""
    made: type[Wire] = pkgutil.resolve_name(WIRES[upstream.scheme])
    return made(upstream, max_answer_bytes=max_answer_bytes)


def raw_bytes(array: Array, datatype: str) -> bytes | memoryview:
    """The bytes of a tensor for the wire; those of large numeric ones are a view, not a copy."""
    dtype = DATATYPES[datatype]
    if dtype is DType.STRING or array.nbytes < 65_536 or not array.flags.c_contiguous:
        return encode_raw(dtype, array)
    return array.reshape(-1).view(np.uint8).data


def from_raw(rules: ModelRules, name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """An output from its bytes: a view of them where its type allows.

    Raises:
        BadAnswer: If they do not make up exactly this shape and type.
    """
    check_output(rules, name, datatype, shape)
    dtype = DATATYPES[datatype]
    count = 1
    for dim in shape:
        count *= dim
    if dtype is DType.STRING:
        return _strings(name, count, data).reshape(tuple(shape))
    expected = count * dtype.numpy.itemsize
    if len(data) != expected:
        raise BadAnswer(
            f"it sent {len(data)} bytes for output '{name}'; {datatype} of shape {list(shape)} takes {expected}"
        )
    array: Array = np.frombuffer(data, dtype=dtype.numpy)
    return (array if array.flags.aligned else array.copy()).reshape(tuple(shape))


def check_output(rules: ModelRules, name: str, datatype: object, shape: Sequence[Any]) -> None:
    """Compare the head of an output with what the version gives.

    Raises:
        BadAnswer: If it is another type or shape.
    """
    rule = rules.outputs[name]
    if datatype != rule.datatype:
        raise BadAnswer(f"it sent output '{name}' as {datatype}, the version gives {rule.datatype}")
    fits = len(shape) == len(rule.shape) and all(
        type(given) is int and given >= 0 and (isinstance(wanted, str) or given == wanted)
        for given, wanted in zip(shape, rule.shape, strict=True)
    )
    if not fits:
        raise BadAnswer(
            f"it sent output '{name}' with shape {list(shape)[:32]}, "
            f"the version gives {list(rule.wildcard_shape)}"
        )


def _strings(name: str, count: int, data: memoryview) -> Array:
    array, at = np.empty(count, dtype=object), 0
    if 4 * count > len(data):
        raise BadAnswer(f"it sent {len(data)} bytes for the {count} BYTES elements of output '{name}'")
    for index in range(count):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or at + 4 + size > len(data):
            raise BadAnswer(f"output '{name}' ends inside element {index} of its BYTES elements")
        # What is no text goes on as the same bytes (`v2_binary.encode_raw`).
        array[index] = str(data[at + 4 : at + 4 + size], "utf-8", "surrogateescape")
        at += 4 + size
    if at != len(data):
        raise BadAnswer(f"output '{name}' has {len(data) - at} bytes after its {count} BYTES elements")
    return array
