"""The generate extension: a model's inputs as plain JSON keys, its outputs likewise, or as server-sent events.

Source: triton-inference-server/server, docs/protocol/extension_generate.md, and what Triton 2.51 answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response

from paritygate.converter.types import DType
from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades import v2_json
from paritygate.serving.facades.bodies import Body, Budget
from paritygate.serving.facades.v2_infer import check_no_reserved_headers, facts_of
from paritygate.serving.types import (
    DATATYPES,
    InferRequest,
    InferResponse,
    InferTensor,
    Parameter,
    TensorMetadata,
)

_EVENTS = "text/event-stream; charset=utf-8"


def add_generate(api: FastAPI, dataplane: DataPlane) -> None:
    """The calls of the extension."""
    budget = Budget(dataplane.settings.max_inflight_bytes)

    async def answer(model: str, version: str, request: Request) -> tuple[bytes, dict[str, str]]:
        headers = dict(request.headers.raw)
        if dataplane.settings.reserved_headers == "refuse":
            check_no_reserved_headers(headers)
        if headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise InvalidArgument("a generate request came compressed; send it as it is.")
        metadata = dataplane.model_metadata(model, version)
        with Body(budget, dataplane.settings) as body:
            document = v2_json.parse_json(await body.read(headers, request.receive))
            asked = decode_generate(document, model, version, metadata.inputs)
            asked.headers = lambda: facts_of(request.headers.raw)
            response = await dataplane.infer(asked)
        return encode_generate(response), dict(response.facts())

    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):

        @api.post(f"{prefix}/generate", tags=["inference"])
        async def generate(model: str, request: Request, version: str = "") -> Response:
            """Inputs by name as JSON values; gives outputs by name."""
            body, facts = await answer(model, version, request)
            return Response(body, 200, facts, "application/json")

        @api.post(f"{prefix}/generate_stream", tags=["inference"])
        async def generate_stream(model: str, request: Request, version: str = "") -> Response:
            """The same, as server-sent events; a model here gives one answer, so there is one event."""
            body, facts = await answer(model, version, request)
            return Response(b"data: " + body + b"\n\n", 200, {**facts, "content-type": _EVENTS})


def decode_generate(
    document: Any, model: str, version: str, inputs: Sequence[TensorMetadata]
) -> InferRequest:
    """The request in a generate document.

    Args:
        document: The parsed JSON.
        model: The model's name.
        version: Its version, or empty.
        inputs: What the model takes; other keys become parameters.

    Raises:
        InvalidArgument: If a value is none for its input, or a parameter is no plain value.
    """
    if not isinstance(document, dict):
        raise InvalidArgument("the request is not a JSON object; give the model's inputs by name.")
    known = {spec.name: spec for spec in inputs}
    tensors: dict[str, InferTensor] = {}
    parameters: dict[str, Parameter] = {}
    request_id = ""
    for key, value in _members(document, known):
        if key in known:
            if key in tensors:
                raise InvalidArgument(f"input '{key}' is given twice; give each input once.")
            tensors[key] = _tensor(known[key], value)
        elif key == "id" and isinstance(value, str):
            request_id = value
        else:
            parameters |= v2_json.decode_parameters({key: value}, "the request")
    return InferRequest(model, version, list(tensors.values()), [], request_id, parameters)


def _members(document: Mapping[str, Any], known: Mapping[str, object]) -> list[tuple[str, Any]]:
    """All keys with their values; those in an object called `parameters` count as if they stood outside it."""
    nested = document.get("parameters")
    if "parameters" in known or not isinstance(nested, dict):
        return list(document.items())
    outside = ((key, value) for key, value in document.items() if key != "parameters")
    return list(chain(outside, nested.items()))


def _tensor(spec: TensorMetadata, value: Any) -> InferTensor:
    data = value if isinstance(value, list) else [value]
    dtype = DATATYPES[spec.datatype]
    shape = _shape(spec, _count(data))
    array = v2_json.decode_json_data(spec.name, dtype, spec.datatype, shape, data)
    return InferTensor(spec.name, spec.datatype, array)


def _count(data: Any) -> int:
    """Values in a list that may be nested; the parser has bounded how deep."""
    return sum(map(_count, data)) if isinstance(data, list) else 1


def _shape(spec: TensorMetadata, count: int) -> tuple[int, ...]:
    """Fixed sizes as they are, the innermost open one takes what remains, other open ones are 1."""
    fixed = math.prod(size for size in spec.shape if size != -1)
    if -1 not in spec.shape:
        return spec.shape
    if fixed == 0 or count % fixed:
        raise InvalidArgument(
            f"input '{spec.name}' has {count} values; shape {list(spec.shape)} takes a multiple of {fixed}."
        )
    innermost = max(axis for axis, size in enumerate(spec.shape) if size == -1)
    return tuple(
        (count // fixed if axis == innermost else 1) if size == -1 else size
        for axis, size in enumerate(spec.shape)
    )


def encode_generate(response: InferResponse) -> bytes:
    """The JSON of an answer: one value as it is, several as a flat array."""
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    special = False
    for tensor in response.outputs:
        values, odd = _values(tensor)
        document[tensor.name] = values[0] if len(values) == 1 else values
        special = special or odd
    # orjson would write NaN and the infinities as null, which is another answer.
    return json.dumps(document).encode() if special else orjson.dumps(document)


def _values(tensor: InferTensor) -> tuple[list[Any], bool]:
    dtype, array = DATATYPES[tensor.datatype], tensor.array
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        array = array.astype(np.float32)
    values = array.ravel().tolist()
    if dtype is DType.FLOAT32 or array.dtype == np.float32:
        # The shortest text that is this float32, not the longer one of the float64 it widens to.
        values = [float(str(value)) for value in array.ravel()]
    return values, dtype.is_floating and not bool(np.isfinite(array).all())
