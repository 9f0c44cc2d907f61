"""The v2 protocol over HTTP: a small ASGI function for inference, and FastAPI for everything that is documented.

Inference is dispatched before FastAPI: no route matching, no middleware, no validation
model per request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from paritygate.serving.dataplane import DataPlane
from paritygate.serving.errors import InvalidArgument, Kind, ServingError
from paritygate.serving.facades import v2_json
from paritygate.serving.facades.base import Facade
from paritygate.serving.facades.bodies import (
    Body,
    Budget,
    ClientGone,
    UnsupportedEncoding,
    accepted_encoding,
    compress,
)
from paritygate.serving.facades.http_errors import STATUS, error_body, log_internal_error
from paritygate.serving.facades.http_server import HttpServer, answer_whole, cycle_of
from paritygate.serving.facades.steps import Started
from paritygate.serving.facades.v2_api import build_api
from paritygate.serving.types import InferResponse, Provenance, Route, answer_facts

RESERVED_PREFIX = b"x-pg-"
_HEADER_LENGTH = b"inference-header-content-length"
_MAX_HEADER_LENGTH_DIGITS = 18
_WATCH_AFTER_S = 0.05
_OFF_LOOP_FROM_BYTES = 64 * 1024
_INFER_PATH = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")

Headers = list[tuple[bytes, bytes]]
Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class RestFacade(Facade):
    """HTTP/1.1 on the inference port."""

    def __init__(self, dataplane: DataPlane) -> None:
        super().__init__(dataplane)
        self.infer = InferEndpoint(dataplane)
        self.server = HttpServer(Dispatcher(self.infer, build_api(dataplane)), dataplane.settings)

    def bind(self, host: str, port: int) -> int:
        """Take the port."""
        return self.server.bind(host, port)

    async def start(self) -> None:
        """Answer requests."""
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self.server.stop(grace_s)


class Dispatcher:
    """Gives inference to its endpoint and the rest to the documented API."""

    def __init__(self, infer: InferEndpoint, api: Callable[..., Awaitable[None]]) -> None:
        self._infer = infer
        self._api = api

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "http":
            match = _INFER_PATH.fullmatch(scope["raw_path"])
            if match is not None:
                await self._infer(scope, receive, send, match)
                return
        await self._api(scope, receive, send)


class InferEndpoint:
    """`POST /v2/models/<name>[/versions/<n>]/infer` as a plain ASGI function."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane
        self._settings = dataplane.settings
        self._budget = Budget(dataplane.settings.max_inflight_bytes)
        self._refuse_reserved = dataplane.settings.reserved_headers == "refuse"

    async def __call__(self, scope: Any, receive: Receive, send: Send, match: re.Match[bytes]) -> None:
        """Answer one request; whatever goes wrong becomes one JSON error."""
        if scope["method"] != "POST":
            await _send(send, 405, error_body("Method Not Allowed"), [(b"allow", b"POST")])
            return
        try:
            with Body(self._budget, self._settings) as body:
                payload, headers = await self._respond(scope, receive, match, body)
                cycle = cycle_of(scope)
                if cycle is None or self._dataplane.exiting:
                    await _send(send, 200, payload, headers)
                else:
                    await answer_whole(cycle, _head(tuple(headers)) + b"%d\r\n" % len(payload), payload)
        except ClientGone:
            return
        except ServingError as error:
            await _send(send, STATUS[error.kind], error_body(str(error)), self._error_headers(error))
        except Exception:  # noqa: BLE001 - logged with its traceback
            await _send(send, 500, error_body(log_internal_error()), [])

    async def _respond(
        self, scope: Any, receive: Receive, match: re.Match[bytes], body: Body
    ) -> tuple[bytes, Headers]:
        headers = _as_mapping(scope["headers"])
        if self._refuse_reserved:
            check_no_reserved_headers(headers)
        model, version = _target(match)
        wire = await self._decode(await body.read(headers, receive), headers, model, version)
        wire.request.headers = lambda: _facts(scope["headers"])
        response = await self._infer(wire.request, receive)
        answer = v2_json.encode_response(wire, response)
        encoding = accepted_encoding(headers.get(b"accept-encoding"))
        payload, encoding = await compress(answer.body, encoding)
        return payload, self._answer_headers(answer, response, encoding)

    async def _decode(
        self, body: bytes, headers: Mapping[bytes, bytes], model: str, version: str
    ) -> v2_json.WireRequest:
        header_length = header_length_of(headers.get(_HEADER_LENGTH), len(body))
        if header_length == 0:
            metadata = self._dataplane.model_metadata(model, version)
            batch = self._dataplane.max_batch_size(model, version)
            return v2_json.decode_raw_body(body, metadata, batch, version)
        if (header_length or len(body)) > _OFF_LOOP_FROM_BYTES:
            # Health and every other client would wait meanwhile.
            return await asyncio.to_thread(v2_json.decode_request, body, header_length, model, version)
        return v2_json.decode_request(body, header_length, model, version)

    async def _infer(self, request: Any, receive: Receive) -> InferResponse:
        """Ask the data plane; a client that goes away takes its request with it, if that still waits."""
        begun: Started[InferResponse] = Started(self._dataplane.infer(request))
        if begun.done:
            return await begun
        loop = asyncio.get_running_loop()
        watch = _Watch(asyncio.current_task(), receive)
        timer = loop.call_later(_WATCH_AFTER_S, watch.start)
        try:
            return await begun
        except asyncio.CancelledError:
            if watch.client_gone:
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            watch.stop()

    def _answer_headers(self, answer: v2_json.WireAnswer, response: InferResponse, encoding: str) -> Headers:
        headers: Headers = []
        if answer.header_length is None:
            headers.append((b"content-type", b"application/json"))
        else:
            headers.append((b"content-type", b"application/octet-stream"))
            headers.append((_HEADER_LENGTH, b"%d" % answer.header_length))
        if encoding:
            headers.append((b"content-encoding", encoding.encode()))
        headers += _encoded_facts(response.route, response.provenance)
        if self._dataplane.exiting:
            headers.append((b"connection", b"close"))
        return headers

    def _error_headers(self, error: ServingError) -> Headers:
        headers: Headers = []
        if error.answered_by is not None:
            headers += _encoded(answer_facts(*error.answered_by))
        if isinstance(error, UnsupportedEncoding):
            headers.append((b"accept-encoding", b"gzip, deflate"))
        # After these two the rest of the body may still be on its way: it must not be read as a request.
        if error.kind in (Kind.TOO_LARGE, Kind.TIMEOUT) or self._dataplane.exiting:
            headers.append((b"connection", b"close"))
        return headers


class _Watch:
    """Cancels a request's task when its client closes the connection."""

    def __init__(self, task: asyncio.Task[Any] | None, receive: Receive) -> None:
        self._request = task
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self.client_gone = False

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_gone = True
        if self._request is not None:
            self._request.cancel()

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


def header_length_of(value: bytes | None, body_bytes: int) -> int | None:
    """The number of JSON bytes that the header names; None where there is no such header.

    Raises:
        InvalidArgument: If it is no number, or more than the body has.
    """
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_HEADER_LENGTH_DIGITS):
        raise InvalidArgument(
            f"Inference-Header-Content-Length is '{text[:40]}'; expected a number from 0 to the body's length."
        )
    length = int(text)
    if length > body_bytes:
        raise InvalidArgument(
            f"Inference-Header-Content-Length is {length}, but the body has only {body_bytes} bytes."
        )
    return length


def check_no_reserved_headers(names: Iterable[bytes]) -> None:
    """Refuse headers that only the gateway may set.

    Raises:
        InvalidArgument: If there is one.
    """
    for name in names:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                f"header '{name.decode('latin-1')[:60]}' is reserved: "
                "x-pg-* headers are set by the gateway alone. Leave it out."
            )


def _as_mapping(headers: Headers) -> Mapping[bytes, bytes]:
    """Headers by name; one that decides how a body is read must not come twice with two values.

    Raises:
        InvalidArgument: If it does.
    """
    mapping: dict[bytes, bytes] = {}
    for name, value in headers:
        if mapping.setdefault(name, value) != value and name in (_HEADER_LENGTH, b"content-encoding"):
            raise InvalidArgument(
                f"header '{name.decode()}' is given twice with different values; give it once."
            )
    return mapping


def _target(match: re.Match[bytes]) -> tuple[str, str]:
    """Model name and version in the URL, decoded."""
    model, version = match.groups()
    return _unquoted(model), _unquoted(version or b"")


def _unquoted(text: bytes) -> str:
    plain = text.decode("ascii", "replace")
    return unquote(plain) if "%" in plain else plain


def _facts(headers: Headers) -> dict[str, str]:
    """What a rollout may look at: lower-case names, values byte for byte, the gateway's own names left out."""
    facts: dict[str, str] = {}
    for name, value in headers:
        if not name.startswith(RESERVED_PREFIX):
            key, text = name.decode("latin-1"), value.decode("latin-1")
            facts[key] = f"{facts[key]},{text}" if key in facts else text
    return facts


@lru_cache(maxsize=4096)
def _encoded_facts(route: Route, provenance: Provenance) -> Sequence[tuple[bytes, bytes]]:
    return tuple(_encoded(answer_facts(route, provenance)))


@lru_cache(maxsize=4096)
def _head(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Everything before the body's length in a good answer."""
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: "


def _encoded(facts: Iterable[tuple[str, str]]) -> Headers:
    return [(name.encode(), value.encode("ascii", "backslashreplace")) for name, value in facts]


async def _send(send: Send, status: int, body: bytes, headers: Headers) -> None:
    if status != 200:
        headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
