"""Codec of the v2 JSON object: text to request, answer to text, with the binary extension beside it.

Decoding is strict where silence would mean a wrong number (ranges, fractions in whole-number tensors, sizes), and
relaxed in one place: FP16 and BF16 values are taken and given as JSON numbers, which Triton refuses.

Source: kserve/open-inference-protocol, inference_rest.md; triton-inference-server/server,
docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from paritygate.converter.types import Array, DType
from paritygate.serving import v2_binary
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.shared_memory import NONE as NO_REGIONS
from paritygate.serving.shared_memory import RegionPart, Regions
from paritygate.serving.types import (
    DATATYPES,
    InferRequest,
    InferResponse,
    InferTensor,
    ModelMetadata,
    Parameter,
    RequestedOutput,
)

_MAX_DEPTH = 32
MAX_TENSORS = 4096
"""Most inputs, outputs or parameters of one request; the largest real models have some hundreds."""
_MAX_CLASSES = 2**31 - 1
_REQUEST_KEYS = frozenset({"id", "parameters", "inputs", "outputs", "model_name", "model_version"})


@dataclass(slots=True)
class WireRequest:
    """A decoded request and what is needed to write its answer down.

    Attributes:
        request: The request, in the words of the data plane.
        binary_default: Whether outputs without their own wish are sent as bytes.
    """

    request: InferRequest
    binary_default: bool = False


def parse_json(text: bytes | memoryview) -> Any:
    """JSON text as Python values; NaN, Infinity and -Infinity are read as numbers.

    Raises:
        InvalidArgument: If it is not JSON, or nested too deep.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        octets = bytes(text)
        if b"NaN" in octets or b"Infinity" in octets:
            return _parse_with_special_numbers(octets)
        raise InvalidArgument(_json_fault(str(error), octets)) from None


def _parse_with_special_numbers(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(_json_fault(str(error), text)) from None


def _json_fault(fault: str, text: bytes) -> str:
    if not text:
        return "the request body is empty; expected a JSON object with 'inputs'."
    hint = ""
    if b"binary_data_size" in text:
        hint = " If tensors follow the JSON, say its length in the Inference-Header-Content-Length header."
    return f"the request is not valid JSON: {fault}.{hint}"


def decode_request(
    body: bytes,
    header_length: int | None,
    model_name: str,
    model_version: str,
    regions: Regions = NO_REGIONS,
) -> WireRequest:
    """The request in an HTTP body.

    Args:
        body: The whole body, decompressed.
        header_length: Bytes of JSON at the body's start; None where all of it is JSON.
        model_name: From the URL.
        model_version: From the URL, or empty.
        regions: Where tensors in shared memory are.

    Raises:
        InvalidArgument: With one sentence about the first thing that does not fit.
        NotFound: If a region is not registered.
        Unsupported: If a region is named where shared memory is off.
    """
    if header_length is not None and header_length <= _MAX_KEPT_BYTES:
        known = _KEPT.get(body[:header_length])
        if known is not None and len(body) - header_length == known.tensor_bytes:
            return known.with_tensors(body, header_length, model_name, model_version)
    view = memoryview(body)
    document = parse_json(body if header_length is None else view[:header_length])
    if not isinstance(document, dict):
        raise InvalidArgument(f"the request is a JSON {_kind(document)}; expected an object with 'inputs'.")
    blobs = _Blobs(view, len(body) if header_length is None else header_length)
    inputs = [_decode_input(item, blobs, regions) for item in _list(document, "inputs", required=True)]
    blobs.check_used_up()
    parameters = decode_parameters(document.get("parameters"), "the request")
    outputs, binary_default = _decode_outputs(document, parameters, regions)
    request = InferRequest(
        model_name, model_version, inputs, outputs, _decode_id(document.get("id")), parameters
    )
    if header_length is not None and header_length <= _MAX_KEPT_BYTES:
        _keep(body[:header_length], document, request, binary_default=binary_default)
    return WireRequest(request, binary_default)


@dataclass(slots=True, frozen=True)
class _Head:
    """What the JSON before binary tensors says, decoded once for all requests that begin with the same bytes.

    Attributes:
        tensors: How each is read, in the order in which they follow.
        tensor_bytes: Sum of their bytes.
        request: The first request that began so, without its tensors; nothing of it is ever changed.
        binary_default: See `WireRequest`.
    """

    tensors: tuple[v2_binary.RawTensor, ...]
    tensor_bytes: int
    request: InferRequest
    binary_default: bool

    def with_tensors(self, body: bytes, at: int, model_name: str, model_version: str) -> WireRequest:
        """A request with tensors of its own, from `at` on to the body's end; checked as the first one's were."""
        inputs = []
        for tensor in self.tensors:
            inputs.append(tensor.read(body, at))
            at += tensor.size_bytes
        first = self.request
        request = InferRequest(
            model_name, model_version, inputs, list(first.outputs), first.id, dict(first.parameters)
        )
        return WireRequest(request, self.binary_default)


_KEPT: OrderedDict[bytes, _Head] = OrderedDict()
_MAX_KEPT = 512
_MAX_KEPT_BYTES = 4096
"""Bytes of JSON that are kept; what is not an id or a shape hardly differs between a client's requests."""


def _keep(text: bytes, document: Mapping[str, Any], request: InferRequest, *, binary_default: bool) -> None:
    """Remember a head that was found right, if all of its tensors are binary; of many the oldest is forgotten."""
    elsewhere = any("binary_data_size" not in item.get("parameters", ()) for item in document["inputs"])
    if request.id or elsewhere or any(output.part for output in request.outputs):
        return  # an id differs each time, and a region may be another one the next time
    tensors = tuple(
        v2_binary.RawTensor(
            tensor.name, tensor.datatype, tensor.array.shape, item["parameters"]["binary_data_size"]
        )
        for tensor, item in zip(request.inputs, document["inputs"], strict=True)
    )
    first = replace(request, inputs=[], outputs=list(request.outputs), parameters=dict(request.parameters))
    size_bytes = sum(tensor.size_bytes for tensor in tensors)
    _KEPT[text] = _Head(tensors, size_bytes, first, binary_default)
    if len(_KEPT) > _MAX_KEPT:
        _KEPT.popitem(last=False)


class _Blobs:
    """The tensor bytes after the JSON text, handed out in order."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview, at: int) -> None:
        self._view = view
        self._at = at

    def take(self, name: str, size: int) -> memoryview:
        left = len(self._view) - self._at
        if size > left:
            raise InvalidArgument(
                f"input '{name}' has binary_data_size {size}, but only {left} bytes are left in the body."
            )
        data = self._view[self._at : self._at + size]
        self._at += size
        return data

    def check_used_up(self) -> None:
        left = len(self._view) - self._at
        if left:
            raise InvalidArgument(
                f"the body has {left} unexpected additional bytes after the last input; "
                "the sizes in binary_data_size must add up to the bytes after the JSON."
            )


def _list(document: Mapping[str, Any], key: str, *, required: bool = False) -> list[Any]:
    value = document.get(key)
    if value is None and not required:
        return []
    if not isinstance(value, list):
        given = "is missing" if value is None else f"is a JSON {_kind(value)}"
        raise InvalidArgument(f"'{key}' {given}; expected a list of objects.")
    if len(value) > MAX_TENSORS:
        raise InvalidArgument(f"'{key}' has {len(value)} entries; expected at most {MAX_TENSORS}.")
    return value


def _decode_id(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidArgument(f"'id' is a JSON {_kind(value)}; expected a string.")
    return value


def decode_parameters(value: Any, owner: str) -> dict[str, Parameter]:
    """The `parameters` object of a request, input or output.

    Raises:
        InvalidArgument: If it is no object, or holds an object, a list or null.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"'parameters' of {owner} is a JSON {_kind(value)}; expected an object.")
    if len(value) > MAX_TENSORS:
        raise InvalidArgument(
            f"'parameters' of {owner} has {len(value)} entries; expected at most {MAX_TENSORS}."
        )
    for key, item in value.items():
        if not isinstance(item, (bool, int, float, str)):
            raise InvalidArgument(
                f"parameter '{key}' of {owner} is a JSON {_kind(item)}; expected a string, a number or a bool."
            )
    return value


def _decode_input(item: Any, blobs: _Blobs, regions: Regions) -> InferTensor:
    if not isinstance(item, dict):
        raise InvalidArgument(f"an entry of 'inputs' is a JSON {_kind(item)}; expected an object.")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidArgument(
            "an entry of 'inputs' has no 'name'; expected the name of one of the model's inputs."
        )
    datatype = item.get("datatype")
    dtype = v2_binary.dtype_of(name, datatype)
    shape = v2_binary.shape_of(name, item.get("shape"))
    array = _decode_values(name, dtype, str(datatype), shape, item, blobs, regions)
    return InferTensor(name, str(datatype), array)


def _decode_values(
    name: str,
    dtype: DType,
    datatype: str,
    shape: tuple[int, ...],
    item: Mapping[str, Any],
    blobs: _Blobs,
    regions: Regions,
) -> Array:
    parameters = decode_parameters(item.get("parameters"), f"input '{name}'")
    size = parameters.get("binary_data_size")
    if "shared_memory_region" in parameters:
        if "data" in item or size is not None:
            raise InvalidArgument(
                f"input '{name}' names a shared memory region and has data of its own; give exactly one of them."
            )
        part = part_of(f"input '{name}'", parameters, regions)
        return v2_binary.decode_raw(name, dtype, datatype, shape, memoryview(part.read()))
    if "data" in item:
        if size is not None:
            raise InvalidArgument(
                f"input '{name}' has both 'data' and 'binary_data_size'; give exactly one of them."
            )
        return decode_json_data(name, dtype, datatype, shape, item["data"])
    if size is None:
        raise InvalidArgument(
            f"input '{name}' has neither 'data' nor 'binary_data_size'; give exactly one of them."
        )
    if type(size) is not int or size < 0:
        raise InvalidArgument(
            f"input '{name}' has binary_data_size {size!r}; expected the number of its bytes, 0 or more."
        )
    return v2_binary.decode_raw(name, dtype, datatype, shape, blobs.take(name, size))


def decode_json_data(name: str, dtype: DType, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """The tensor that a JSON `data` list, nested or flat, stands for.

    Raises:
        InvalidArgument: If the number, the type or the range of the elements does not fit.
    """
    if not isinstance(data, list):
        raise InvalidArgument(f"'data' of input '{name}' is a JSON {_kind(data)}; expected a list.")
    flat, types = _flatten(name, data)
    count = v2_binary.num_elements(name, shape)
    if len(flat) != count:
        raise InvalidArgument(
            f"input '{name}' has {len(flat)} elements in 'data'; shape {list(shape)} takes {count}."
        )
    _check_types(name, dtype, datatype, flat, types)
    if dtype.is_integer:
        array = _integers(name, dtype, datatype, flat)
    elif dtype.is_floating:
        array = _floats(name, dtype, datatype, flat)
    else:
        array = _bools_or_strings(name, dtype, flat)
    return array.reshape(shape)


def _flatten(name: str, data: list[Any]) -> tuple[list[Any], set[type]]:
    for _ in range(_MAX_DEPTH):
        types = set(map(type, data))
        if list not in types:
            return data, types
        if types != {list}:
            raise InvalidArgument(f"'data' of input '{name}' mixes lists and values on one level.")
        data = list(chain.from_iterable(data))
    raise InvalidArgument(f"'data' of input '{name}' is nested deeper than {_MAX_DEPTH} lists.")


def _check_types(name: str, dtype: DType, datatype: str, flat: Sequence[Any], types: set[type]) -> None:
    allowed, word = _JSON_TYPES[_family(dtype)]
    odd = types - allowed
    if not odd:
        return
    place = next(index for index, value in enumerate(flat) if type(value) in odd)
    raise InvalidArgument(
        f"input '{name}' has {_shown(flat[place])} at element {place}; {datatype} takes {word}."
    )


def _family(dtype: DType) -> str:
    if dtype.is_integer:
        return "integer"
    return "float" if dtype.is_floating else dtype.value


_JSON_TYPES: Mapping[str, tuple[frozenset[type], str]] = {
    "integer": (frozenset({int}), "whole numbers of at most 64 bits"),
    "float": (frozenset({int, float}), "numbers"),
    "bool": (frozenset({bool}), "true and false"),
    "string": (frozenset({str}), "strings"),
}


def _integers(name: str, dtype: DType, datatype: str, flat: list[Any]) -> Array:
    limits = np.iinfo(dtype.numpy)
    if flat:
        for value in (min(flat), max(flat)):
            if not limits.min <= value <= limits.max:
                raise InvalidArgument(
                    f"input '{name}' has {value} at element {flat.index(value)}; "
                    f"{datatype} takes {limits.min} to {limits.max}."
                )
    return np.array(flat, dtype=dtype.numpy)


def _floats(name: str, dtype: DType, datatype: str, flat: list[Any]) -> Array:
    try:
        wide = np.array(flat, dtype=np.float64)
    except OverflowError:
        raise InvalidArgument(
            f"input '{name}' has a whole number in 'data' that is too large for {datatype}."
        ) from None
    with np.errstate(over="ignore"):
        array: Array = wide.astype(dtype.numpy)
        # One product tells of a few numbers in a third of the time that they are finite and fit.
        if wide.size <= _MAX_DOT and wide.dot(wide) < _FITS_SQUARED[dtype]:
            return array
    if np.isfinite(array).all():
        return array
    lost = np.isinf(array.astype(np.float64)) & np.isfinite(wide)
    if lost.any():
        place = int(np.argmax(lost))
        raise InvalidArgument(
            f"input '{name}' has {_shown(flat[place])} at element {place}, out of range for {datatype}."
        )
    return array


_MAX_DOT = 4096
_FITS_SQUARED: Mapping[DType, float] = {
    dtype: min(float(ml_dtypes.finfo(dtype.numpy).max) * 0.999, 1e154) ** 2
    for dtype in DType
    if dtype.is_floating
}
"""By type, a square below which a number surely neither is nor becomes infinite."""


def _bools_or_strings(name: str, dtype: DType, flat: list[Any]) -> Array:
    if dtype is DType.BOOL:
        return np.array(flat, dtype=np.bool_)
    array = np.empty(len(flat), dtype=object)
    for index, text in enumerate(flat):
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidArgument(
                f"input '{name}' has half a surrogate pair at element {index}, which is no text."
            )
        array[index] = text
    return array


def _decode_outputs(
    document: Mapping[str, Any], parameters: Mapping[str, Parameter], regions: Regions
) -> tuple[list[RequestedOutput], bool]:
    default = _bool(parameters.get("binary_data_output"), "binary_data_output", "the request")
    outputs = [_decode_output(item, regions) for item in _list(document, "outputs")]
    return outputs, bool(default)


def part_of(owner: str, parameters: Mapping[str, Parameter], regions: Regions) -> RegionPart:
    """Where in shared memory the parameters of an input or output say that it lies.

    Raises:
        InvalidArgument: If they do not fit the region.
        NotFound: If the region is not registered.
        Unsupported: If shared memory is off.
    """
    return regions.part(
        owner,
        parameters["shared_memory_region"],
        parameters.get("shared_memory_offset", 0),
        parameters.get("shared_memory_byte_size"),
    )


def requested_output(
    name: str, parameters: Mapping[str, Parameter], binary: bool | None, regions: Regions
) -> RequestedOutput:
    """An output with what its parameters ask for, in every protocol.

    Raises:
        InvalidArgument: If they contradict each other or are of another type.
        NotFound: If a region is not registered.
        Unsupported: If a region is named where shared memory is off.
    """
    classes = decode_classification(name, parameters.get("classification"))
    if "shared_memory_region" not in parameters:
        return RequestedOutput(name, binary, classes)
    if classes or binary:
        other = "classified" if classes else "sent as bytes"
        raise InvalidArgument(
            f"output '{name}' is to lie in shared memory and to be {other}; ask for one of them."
        )
    return RequestedOutput(name, None, 0, part_of(f"output '{name}'", parameters, regions))


def _decode_output(item: Any, regions: Regions) -> RequestedOutput:
    if not isinstance(item, dict):
        raise InvalidArgument(f"an entry of 'outputs' is a JSON {_kind(item)}; expected an object.")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidArgument(
            "an entry of 'outputs' has no 'name'; expected the name of one of the model's outputs."
        )
    parameters = decode_parameters(item.get("parameters"), f"output '{name}'")
    binary = _bool(parameters.get("binary_data"), "binary_data", f"output '{name}'")
    return requested_output(name, parameters, binary, regions)


def decode_classification(name: str, value: object) -> int:
    """The number of classes that an output asks for; 0 asks for the tensor itself.

    Raises:
        InvalidArgument: If it is not a whole number from 0.
    """
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _MAX_CLASSES:
        raise InvalidArgument(
            f"output '{name}' has classification {value!r}; expected the number of classes, 0 or more."
        )
    return value


def _bool(value: object, key: str, owner: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"parameter '{key}' of {owner} is {value!r}; expected true or false.")
    return value


def decode_raw_body(
    body: bytes, metadata: ModelMetadata, max_batch_size: int, model_version: str
) -> WireRequest:
    """The request in a body that is nothing but the bytes of the model's only input.

    Raises:
        InvalidArgument: If the model has several inputs, or the shape cannot be told from the number of bytes.

    Source: triton-inference-server/server, docs/protocol/extension_binary_data.md, "Raw Binary Request".
    """
    if len(metadata.inputs) != 1:
        raise InvalidArgument(
            "Inference-Header-Content-Length is 0, which sends one raw tensor, "
            f"but model '{metadata.name}' has {len(metadata.inputs)} inputs. Say the length of the JSON there."
        )
    (spec,) = metadata.inputs
    dtype = DATATYPES[spec.datatype]
    shape = spec.shape[1:] if max_batch_size else spec.shape
    shape = _raw_shape(spec.name, dtype, shape, len(body))
    if max_batch_size:
        shape = (1, *shape)
    if dtype is DType.STRING:
        array = np.empty(1, dtype=object)
        array[0] = v2_binary.decode_text(spec.name, 0, body)
        array = array.reshape(shape)
    else:
        array = v2_binary.decode_raw(spec.name, dtype, spec.datatype, shape, memoryview(body))
    tensor = InferTensor(spec.name, spec.datatype, array)
    return WireRequest(InferRequest(metadata.name, model_version, [tensor]), binary_default=True)


def _raw_shape(name: str, dtype: DType, shape: tuple[int, ...], size_bytes: int) -> tuple[int, ...]:
    if shape.count(-1) > 1:
        raise InvalidArgument(
            f"input '{name}' has {shape.count(-1)} open dimensions; a raw body can tell only one."
        )
    if dtype is DType.STRING:
        if any(dim not in (1, -1) for dim in shape):
            raise InvalidArgument(
                f"input '{name}' takes BYTES of shape {list(shape)}; a raw body is one element."
            )
        return tuple(1 for _ in shape)
    if -1 not in shape:
        return shape
    unit = dtype.numpy.itemsize * int(np.prod([dim for dim in shape if dim != -1], dtype=np.int64))
    if unit == 0 or size_bytes % unit:
        raise InvalidArgument(
            f"input '{name}' came with {size_bytes} raw bytes; expected a multiple of {unit}."
        )
    return tuple(size_bytes // unit if dim == -1 else dim for dim in shape)


@dataclass(slots=True)
class WireAnswer:
    """An encoded answer.

    Attributes:
        body: JSON text, and the bytes of binary outputs after it.
        header_length: Bytes of JSON where binary follows it, else None.
    """

    body: bytes
    header_length: int | None


def encode_response(wire: WireRequest, response: InferResponse) -> WireAnswer:
    """The HTTP body of an answer."""
    if wire.binary_default and not wire.request.outputs and not response.id:
        return _encode_all_binary(response)
    wishes = {output.name: output for output in wire.request.outputs}
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for tensor in response.outputs:
        wish = wishes.get(tensor.name)
        binary = wire.binary_default if wish is None or wish.binary is None else wish.binary
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.array.shape,
        }
        if wish is not None and wish.part is not None:
            entry["parameters"] = write_part(wish.part, tensor)
        elif binary:
            blob = v2_binary.encode_raw(DATATYPES[tensor.datatype], tensor.array)
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = _json_values(tensor)
        outputs.append(entry)
    text = _dump(_named(response.id, response.model_name, response.model_version, outputs))
    payload = b"".join(blobs)
    if not payload:
        return WireAnswer(text, None)
    return WireAnswer(text + payload, len(text))


def write_part(part: RegionPart, tensor: InferTensor) -> dict[str, Parameter]:
    """Put a tensor into shared memory; gives the parameters that tell where it lies.

    Raises:
        InvalidArgument: If there is no room for it.
    """
    octets = v2_binary.encode_raw(DATATYPES[tensor.datatype], tensor.array)
    part.write(tensor.name, octets)
    return {
        "shared_memory_region": part.region.name,
        "shared_memory_offset": part.offset,
        "shared_memory_byte_size": len(octets),
    }


def _encode_all_binary(response: InferResponse) -> WireAnswer:
    """An answer whose outputs are all bytes: the text before them hangs on names and shapes alone."""
    blobs = [v2_binary.encode_raw(DATATYPES[tensor.datatype], tensor.array) for tensor in response.outputs]
    text = _binary_head(
        response.model_name,
        response.model_version,
        tuple(
            (tensor.name, tensor.datatype, tensor.array.shape, len(blob))
            for tensor, blob in zip(response.outputs, blobs, strict=True)
        ),
    )
    payload = b"".join(blobs)
    return WireAnswer(text + payload, len(text)) if payload else WireAnswer(text, None)


@lru_cache(maxsize=1024)
def _binary_head(
    model_name: str, model_version: int, outputs: tuple[tuple[str, str, tuple[int, ...], int], ...]
) -> bytes:
    entries = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size in outputs
    ]
    return _dump(_named("", model_name, model_version, entries))


def _named(
    request_id: str, model_name: str, model_version: int, outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    head: dict[str, Any] = {"id": request_id} if request_id else {}
    return head | {"model_name": model_name, "model_version": str(model_version), "outputs": outputs}


def _json_values(tensor: InferTensor) -> Any:
    """What stands for the tensor in JSON: a flat list, or an array that is written as one."""
    dtype = DATATYPES[tensor.datatype]
    if dtype is DType.STRING:
        return tensor.array.ravel().tolist()
    array = tensor.array
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        array = array.astype(np.float32)
    return np.ascontiguousarray(array).ravel()


def _dump(document: dict[str, Any]) -> bytes:
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes NaN and the infinities as null, which would be another answer.
    if b"null" in text and any(_holds_special(output.get("data")) for output in document["outputs"]):
        return json.dumps(document, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()
    return text


def _holds_special(data: Any) -> bool:
    """Whether an array of floats holds NaN or an infinity."""
    return isinstance(data, np.ndarray) and data.dtype.kind == "f" and not bool(np.isfinite(data).all())


def _plain(value: Any) -> Any:
    return value.tolist()


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "string", list: "list"}
    return names.get(type(value), "object")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
