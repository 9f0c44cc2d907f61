"""The v2 protocol over HTTP, as a client: binary tensors where the upstream takes them, JSON where not.

Source: triton-inference-server/server, docs/protocol/extension_binary_data.md; kserve/open-inference-protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from paritygate.converter.types import Array, DType
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.types import DATATYPES, ModelMetadata, Parameter, ServerMetadata, TensorMetadata
from paritygate.serving.upstreams.config import Upstream
from paritygate.serving.upstreams.faults import Absent, BadAnswer, Busy, Failed, UpstreamFault
from paritygate.serving.upstreams.http_client import Call, HttpAnswer, HttpClient, Part
from paritygate.serving.upstreams.wire import Wire, WireRequest, check_output, from_raw, raw_bytes

_OK = 200
_BLAMES_THE_REQUEST = frozenset({400, 413, 422})
_BUSY = frozenset({429, 503})
_MAX_TEXT = 2000
_BINARY = frozenset({"binary_tensor_data", "binary_data"})

Key = tuple[tuple[tuple[str, str, tuple[int, ...], int], ...], tuple[str, ...]]


class HttpWire(Wire):
    """One upstream over HTTP."""

    def __init__(self, upstream: Upstream, *, max_answer_bytes: int) -> None:
        self._client = HttpClient(upstream, max_body_bytes=max_answer_bytes)
        self._path = upstream.path
        self._binary: bool | None = None

    async def infer(self, request: WireRequest, call: Call, timeout_s: float) -> list[Array]:
        """The outputs wanted."""
        if self._binary is None:
            await self.server(timeout_s)
        parts = self._parts(request)
        answer = await self._client.request(parts, call, timeout_s)
        if answer.status != _OK:
            raise _error(answer)
        return _outputs(request, answer)

    def _parts(self, request: WireRequest) -> list[Part]:
        rules = request.rules
        if not self._binary:
            return self._json_parts(request)
        blobs = [raw_bytes(array, rules.inputs[name].datatype) for name, array in request.feeds.items()]
        key = (
            tuple(
                (name, rules.inputs[name].datatype, array.shape, len(blob))
                for (name, array), blob in zip(request.feeds.items(), blobs, strict=True)
            ),
            tuple(request.outputs),
        )
        text = _plain_head(key) if not (request.id or request.parameters) else _head(key, request)
        size = len(text) + sum(map(len, blobs))
        target = self._target(request.model, request.version)
        more = _header_lines(request.headers) if request.headers else b""
        head = (
            b"%bContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
            b"Content-Length: %d\r\n%b\r\n" % (target, len(text), size, more)
        )
        return [head, text, *blobs]

    def _json_parts(self, request: WireRequest) -> list[Part]:
        inputs = [
            {
                "name": name,
                "datatype": request.rules.inputs[name].datatype,
                "shape": array.shape,
                "data": _json_values(array),
            }
            for name, array in request.feeds.items()
        ]
        document = _named(request.id, request.parameters) | {
            "inputs": inputs,
            "outputs": [{"name": name} for name in request.outputs],
        }
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        target = self._target(request.model, request.version)
        more = _header_lines(request.headers)
        head = b"%bContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n" % (target, len(text), more)
        return [head, text]

    def _target(self, model: str, version: int) -> bytes:
        return _request_line(
            "POST", f"{_model_path(self._path, model, version)}/infer", self._client.authority
        )

    async def server(self, timeout_s: float) -> ServerMetadata:
        """What the upstream says of itself."""
        document = await self._get(f"{self._path}/v2", timeout_s)
        extensions = document.get("extensions")
        names = tuple(map(str, extensions)) if isinstance(extensions, list) else ()
        self._binary = bool(_BINARY & set(names))
        return ServerMetadata(str(document.get("name", "")), str(document.get("version", "")), names)

    async def model(self, name: str, version: int, timeout_s: float) -> ModelMetadata:
        """What it says of one version."""
        document = await self._get(_model_path(self._path, name, version), timeout_s)
        try:
            inputs, outputs = (_tensors(document[key]) for key in ("inputs", "outputs"))
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswer(f"its metadata of model '{name}' is none: {error!r}") from error
        return ModelMetadata(name, (version,), str(document.get("platform", "")), inputs, outputs)

    async def _get(self, path: str, timeout_s: float) -> dict[str, Any]:
        line = _request_line("GET", path, self._client.authority)
        answer = await self._client.request([line + b"\r\n"], Call(), timeout_s)
        if answer.status != _OK:
            fault = _error(answer)
            raise fault if isinstance(fault, UpstreamFault) else Failed(str(fault))
        return _json(answer.body)

    async def close(self) -> None:
        """End all connections."""
        self._client.close()


@lru_cache(maxsize=256)
def _model_path(prefix: str, model: str, version: int) -> str:
    return f"{prefix}/v2/models/{quote(model, safe='')}/versions/{version}"


@lru_cache(maxsize=256)
def _request_line(method: str, path: str, authority: bytes) -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method.encode(), path.encode(), authority)


def _header_lines(headers: Mapping[str, str]) -> bytes:
    return b"".join(b"%b: %b\r\n" % (k.encode("ascii"), v.encode("latin-1")) for k, v in headers.items())


@lru_cache(maxsize=1024)
def _plain_head(key: Key) -> bytes:
    return orjson.dumps(_document(key))


def _head(key: Key, request: WireRequest) -> bytes:
    return orjson.dumps(_named(request.id, request.parameters) | _document(key))


def _document(key: Key) -> dict[str, Any]:
    inputs, outputs = key
    return {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
            for name, datatype, shape, size in inputs
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
    }


def _named(request_id: str, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    document: dict[str, Any] = {"id": request_id} if request_id else {}
    kept = {key: value for key, value in parameters.items() if key != "binary_data_output"}
    return document | ({"parameters": kept} if kept else {})


def _json_values(array: Array) -> Any:
    if array.dtype == object:
        return array.ravel().tolist()
    if array.dtype.itemsize <= 2 and array.dtype.kind in "fV":
        array = array.astype(np.float32)
    return np.ascontiguousarray(array).ravel()


# --- answers ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _known_outputs(text: bytes) -> tuple[tuple[str, str, tuple[int, ...], Any], ...]:
    """Name, type, shape and size of each output of an answer in which all are binary.

    Raises:
        ValueError: If one of them is not.
    """
    return tuple(
        (o["name"], o["datatype"], tuple(o["shape"]), o["parameters"]["binary_data_size"])
        for o in _json(text)["outputs"]
    )


def _outputs(request: WireRequest, answer: HttpAnswer) -> list[Array]:
    length = answer.headers.get(b"inference-header-content-length")
    try:
        if length is None:
            found = _from_json(request, _json(answer.body)["outputs"])
        else:
            found = _from_binary(request, answer.body, int(length))
        return [found[name] for name in request.outputs]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadAnswer(f"its answer is not one of the v2 protocol: {error!r}") from error


def _from_binary(request: WireRequest, body: bytes, length: int) -> dict[str, Array]:
    found, at, data = {}, length, memoryview(body)
    for name, datatype, shape, size in _known_outputs(body[:length]):
        if not isinstance(size, int) or not 0 <= size <= len(body) - at:
            raise BadAnswer(f"it says {size} bytes for output '{name}', but {len(body) - at} follow")
        if name in request.rules.outputs:
            found[name] = from_raw(request.rules, name, datatype, shape, data[at : at + size])
        at += size
    if at != len(body):
        raise BadAnswer(f"its answer has {len(body) - at} bytes more than its outputs take")
    return found


def _from_json(request: WireRequest, outputs: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    found = {}
    for output in outputs:
        name, shape = output["name"], output["shape"]
        if name not in request.rules.outputs:
            continue
        check_output(request.rules, name, output["datatype"], shape)
        dtype = DATATYPES[output["datatype"]]
        if dtype is DType.STRING:
            array: Array = np.array(output["data"], dtype=object)
        else:
            array = np.array(output["data"], dtype=dtype.numpy)
        found[name] = array.reshape(tuple(shape))
    return found


def _error(answer: HttpAnswer) -> UpstreamFault | InvalidArgument:
    """What an answer that is none says; the upstream's own text is kept."""
    text = _error_text(answer)
    if answer.status in _BLAMES_THE_REQUEST:
        return InvalidArgument(text)
    if answer.status in _BUSY:
        seconds = answer.headers.get(b"retry-after", b"1")
        return Busy(text, int(seconds) if seconds.isdigit() and len(seconds) < 4 else 1)
    if answer.status == 404:
        return Absent(text)
    return Failed(text if answer.status >= 500 else f"{answer.status}: {text}")


def _error_text(answer: HttpAnswer) -> str:
    try:
        document = orjson.loads(answer.body)
        text = document["error"] if isinstance(document, dict) else None
    except (ValueError, KeyError):
        text = None
    if isinstance(text, str) and text:
        return text[:_MAX_TEXT]
    return answer.body[:_MAX_TEXT].decode("utf-8", "replace").strip() or f"status {answer.status}"


def _json(text: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except ValueError as error:
        raise BadAnswer(f"its answer is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadAnswer("its answer is no JSON object")
    return document


def _tensors(items: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(i["name"], i["datatype"], tuple(map(int, i["shape"]))) for i in items)
