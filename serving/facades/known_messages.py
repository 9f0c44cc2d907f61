"""gRPC messages that begin as one before did: what they say beside their tensors is known, and not unpacked again.

Clients write a ModelInferRequest field after field, its raw tensors last. All that stands before them, and where
they lie, is the same in each request of one shape. A message is taken for one of that kind only if it is as long
and has the same bytes everywhere outside its tensors; Protocol Buffers then gives the same fields for it.

Source: Protocol Buffers encoding, "Message Structure"; triton-inference-server/common, grpc_service.proto.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from paritygate.serving.facades.v2_proto import varint
from paritygate.serving.types import InferRequest
from paritygate.serving.v2_binary import RawTensor

_RAW_INPUT_TAG = bytes([pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | 2])

_MAX_KNOWN = 512
_MAX_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one raw tensor of such messages lies, what stands before it, and how it is to be read."""

    lead: bytes
    lead_at: int
    at: int
    tensor: RawTensor


@dataclass(frozen=True, slots=True)
class _Known:
    """All messages of one kind; `first` is the first of them without its tensors, and is never changed."""

    places: tuple[_Place, ...]
    first: InferRequest

    def fits(self, data: bytes) -> bool:
        """Whether a message of this length is of this kind."""
        return all(data.startswith(place.lead, place.lead_at) for place in self.places)

    def request(self, data: bytes) -> InferRequest:
        """The request in such a message; values are checked as those of the first one were."""
        inputs = [place.tensor.read(data, place.at) for place in self.places]
        first = self.first
        return InferRequest(
            first.model_name,
            first.model_version,
            inputs,
            list(first.outputs),
            parameters=dict(first.parameters),
            protocol=first.protocol,
        )


class KnownMessages:
    """Kinds of messages by their length; of many the oldest is forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def find(self, data: bytes) -> InferRequest | None:
        """The request in a message of a known kind, or None.

        Raises:
            InvalidArgument: If the bytes of a tensor are no values of its type.
        """
        known = self._known.get(len(data))
        return known.request(data) if known is not None and known.fits(data) else None

    def offer(self, data: bytes, message: Any, request: InferRequest) -> None:
        """Take note of a message that was found right.

        Args:
            data: Its bytes.
            message: The same, unpacked.
            request: What it asks for.
        """
        sizes = [len(octets) for octets in message.raw_input_contents]
        elsewhere = len(sizes) != len(request.inputs) or any(output.part for output in request.outputs)
        if request.id or not sizes or elsewhere:
            return  # an id differs each time, and a region may be another one the next time
        leads = [_RAW_INPUT_TAG + varint(size) for size in sizes]
        head_bytes = len(data) - sum(map(len, leads)) - sum(sizes)
        places = _places(data[:head_bytes], leads, sizes, request)
        known = _Known(places, replace(request, inputs=[], outputs=list(request.outputs)))
        if head_bytes > _MAX_KEPT_BYTES or not known.fits(data) or not _is_head(data[:head_bytes], message):
            return  # written in another order
        self._known[len(data)] = known
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


def _is_head(head: bytes, message: Any) -> bool:
    """Whether these bytes are whole fields, none of them a raw tensor."""
    try:
        return not type(message).FromString(head).raw_input_contents
    except DecodeError:
        return False


def _places(head: bytes, leads: list[bytes], sizes: list[int], request: InferRequest) -> tuple[_Place, ...]:
    places, lead_at, before = [], 0, head
    for lead, size, given in zip(leads, sizes, request.inputs, strict=True):
        at = lead_at + len(before) + len(lead)
        tensor = RawTensor(given.name, given.datatype, given.array.shape, size)
        places.append(_Place(before + lead, lead_at, at, tensor))
        lead_at, before = at + size, b""
    return tuple(places)
