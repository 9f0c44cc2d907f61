"""Inference over HTTP: a plain ASGI function, and the shortcut past ASGI for requests that need not wait.

No route matching, no middleware and no validation model comes between the server and the data plane.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from paritygate.serving.dataplane import Begun, DataPlane
from paritygate.serving.errors import InvalidArgument, Kind, ServingError
from paritygate.serving.facades import v2_json
from paritygate.serving.facades.bodies import (
    Body,
    Budget,
    ClientGone,
    UnsupportedEncoding,
    accepted_encoding,
    compress,
    is_worth_compressing,
)
from paritygate.serving.facades.http_errors import STATUS, error_body, error_headers, log_internal_error
from paritygate.serving.facades.http_server import BEGUN, answer_whole, cycle_of
from paritygate.serving.types import InferResponse, Provenance, Route, answer_facts

RESERVED_PREFIX = b"x-pg-"
_HEADER_LENGTH = b"inference-header-content-length"
_MAX_HEADER_LENGTH_DIGITS = 18
_WATCH_AFTER_S = 0.05
_OFF_LOOP_FROM_BYTES = 64 * 1024
_UNUSUAL = frozenset({b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"})
INFER_PATH = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")

Headers = list[tuple[bytes, bytes]]
Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class KnownInfer:
    """What the head of an inference request says, read once for all requests that begin with the same bytes.

    Attributes:
        model: Name of the model.
        version: Its version, or empty.
        body_bytes: Length of the body.
        header_length: Bytes of JSON at the body's start; None where all of it is JSON.
        encoding: How the client likes its answer compressed; empty if it does not.
        facts: What a rollout may look at.
    """

    model: str
    version: str
    body_bytes: int
    header_length: int | None
    encoding: str
    facts: Mapping[str, str]


@dataclass(slots=True)
class _Halfway:
    """A request that the shortcut could not answer to its end: it is refused, waits, or is to be compressed."""

    body_bytes: int
    encoding: str
    error: Exception | None = None
    wire: v2_json.WireRequest | None = None
    begun: Begun | None = None
    response: InferResponse | None = None


class InferEndpoint:
    """`POST /v2/models/<name>[/versions/<n>]/infer` as a plain ASGI function, and the shortcut past ASGI."""

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
                halfway = scope.get("extensions", {}).get(BEGUN)
                if halfway is None:
                    answer = await self._respond(scope, receive, match, body)
                else:
                    answer = await self._resume(halfway["begun"], receive, body)
                await self._write(scope, send, *answer)
        except ClientGone:
            return
        except ServingError as error:
            await _send(send, STATUS[error.kind], error_body(str(error)), self._error_headers(error))
        except Exception:  # noqa: BLE001 - logged with its traceback
            await _send(send, 500, error_body(log_internal_error()), [])

    # --- the shortcut -------------------------------------------------------------------------------------------

    def read_head(self, scope: Any) -> KnownInfer | None:
        """What a head means, if it is that of an inference request with nothing unusual about it."""
        match = INFER_PATH.fullmatch(scope["raw_path"])
        if match is None or scope["method"] != "POST":
            return None
        try:
            headers = _as_mapping(scope["headers"])
            if self._refuse_reserved:
                check_no_reserved_headers(headers)
            size_bytes = int(headers.get(b"content-length", b"-1"))
            header_length = header_length_of(headers.get(_HEADER_LENGTH), size_bytes)
        except (ServingError, ValueError):
            return None
        json_bytes = size_bytes if header_length is None else header_length
        usual = not _UNUSUAL & headers.keys() and 0 < json_bytes <= _OFF_LOOP_FROM_BYTES
        if not usual or size_bytes > self._settings.max_body_bytes:
            return None
        model, version = _target(match)
        encoding = accepted_encoding(headers.get(b"accept-encoding"))
        return KnownInfer(model, version, size_bytes, header_length, encoding, facts_of(scope["headers"]))

    def answer(self, known: KnownInfer, body: bytes) -> tuple[bytes, bytes] | _Halfway | None:
        """Answer a whole request, as far as nothing has to be waited for; see `http_server.Shortcut`."""
        dataplane = self._dataplane
        if dataplane.exiting:
            return None  # such answers close their connection
        try:
            wire = v2_json.decode_request(
                body, known.header_length, known.model, known.version, dataplane.regions
            )
            wire.request.headers = lambda: known.facts
            begun = dataplane.begin(wire.request)
            response = dataplane.answer_at_once(begun)
            if response is None:
                return _Halfway(known.body_bytes, known.encoding, None, wire, begun)
            answer = v2_json.encode_response(wire, response)
            if known.encoding and is_worth_compressing(answer.body):
                return _Halfway(known.body_bytes, known.encoding, None, wire, None, response)
        except Exception as error:  # noqa: BLE001 - raised again where every error gets its answer
            return _Halfway(known.body_bytes, known.encoding, error)
        return self._head(answer, "", response), answer.body

    def give_up(self, begun: _Halfway) -> None:
        """Let go of a request that nobody will finish."""
        if begun.begun is not None:
            self._dataplane.give_up(begun.begun, asyncio.CancelledError())

    async def _resume(
        self, halfway: _Halfway, receive: Receive, body: Body
    ) -> tuple[v2_json.WireAnswer, InferResponse, str]:
        """Finish what the shortcut began."""
        refusal, halfway.error = halfway.error, None
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal  # its traceback leads here: a circle would keep the request's tensors for long
        assert halfway.wire is not None  # only what is refused has none
        response = halfway.response
        if response is None:
            assert halfway.begun is not None  # what has no answer yet waits for one
            try:
                body.hold(halfway.body_bytes)
            except ServingError as error:
                self._dataplane.give_up(halfway.begun, error)
                raise
            response = await self._answered(halfway.begun, receive)
        return await self._encoded(halfway.wire, response, halfway.encoding)

    # --- the ordinary way ---------------------------------------------------------------------------------------

    async def _respond(
        self, scope: Any, receive: Receive, match: re.Match[bytes], body: Body
    ) -> tuple[v2_json.WireAnswer, InferResponse, str]:
        headers = _as_mapping(scope["headers"])
        if self._refuse_reserved:
            check_no_reserved_headers(headers)
        model, version = _target(match)
        wire = await self._decode(await body.read(headers, receive), headers, model, version)
        wire.request.headers = lambda: facts_of(scope["headers"])
        begun = self._dataplane.begin(wire.request)
        response = self._dataplane.answer_at_once(begun)
        if response is None:
            response = await self._answered(begun, receive)
        return await self._encoded(wire, response, accepted_encoding(headers.get(b"accept-encoding")))

    async def _decode(
        self, body: bytes, headers: Mapping[bytes, bytes], model: str, version: str
    ) -> v2_json.WireRequest:
        header_length = header_length_of(headers.get(_HEADER_LENGTH), len(body))
        regions = self._dataplane.regions
        if header_length == 0:
            metadata = self._dataplane.model_metadata(model, version)
            batch = self._dataplane.max_batch_size(model, version)
            return v2_json.decode_raw_body(body, metadata, batch, version)
        if (header_length or len(body)) > _OFF_LOOP_FROM_BYTES:
            # Health and every other client would wait meanwhile.
            return await asyncio.to_thread(
                v2_json.decode_request, body, header_length, model, version, regions
            )
        return v2_json.decode_request(body, header_length, model, version, regions)

    async def _answered(self, begun: Begun, receive: Receive) -> InferResponse:
        """Wait for an answer; a client that goes away takes its request with it, if that still waits."""
        watch = _Watch(asyncio.current_task(), receive)
        timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, watch.start)
        try:
            return await self._dataplane.answer(begun)
        except asyncio.CancelledError:
            if watch.client_gone:
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            watch.stop()

    async def _encoded(
        self, wire: v2_json.WireRequest, response: InferResponse, encoding: str
    ) -> tuple[v2_json.WireAnswer, InferResponse, str]:
        answer = v2_json.encode_response(wire, response)
        answer.body, encoding = await compress(answer.body, encoding)
        return answer, response, encoding

    async def _write(
        self, scope: Any, send: Send, answer: v2_json.WireAnswer, response: InferResponse, encoding: str
    ) -> None:
        cycle = cycle_of(scope)
        if cycle is None or self._dataplane.exiting:
            headers = _answer_headers(answer.header_length, encoding, response)
            if self._settings.server_timing and response.timings is not None:
                headers.append((b"server-timing", response.timings.header().encode()))
            if self._dataplane.exiting:
                headers.append((b"connection", b"close"))
            await _send(send, 200, answer.body, headers)
        else:
            await answer_whole(cycle, self._head(answer, encoding, response), answer.body)

    def _head(self, answer: v2_json.WireAnswer, encoding: str, response: InferResponse) -> bytes:
        head = _answer_head(answer.header_length, encoding, response, len(answer.body))
        if self._settings.server_timing and response.timings is not None:
            return b"%bserver-timing: %b\r\n" % (head, response.timings.header().encode())
        return head

    def _error_headers(self, error: ServingError) -> Headers:
        headers: Headers = []
        if error.answered_by is not None:
            headers += _encoded(answer_facts(*error.answered_by))
        headers += _encoded(error_headers(error))
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


def facts_of(headers: Headers) -> dict[str, str]:
    """What a rollout may look at: lower-case names, values byte for byte, the gateway's own names left out."""
    facts: dict[str, str] = {}
    for name, value in headers:
        if not name.startswith(RESERVED_PREFIX):
            key, text = name.decode("latin-1"), value.decode("latin-1")
            facts[key] = f"{facts[key]},{text}" if key in facts else text
    return facts


def _answer_headers(header_length: int | None, encoding: str, response: InferResponse) -> Headers:
    headers: Headers = []
    if header_length is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((_HEADER_LENGTH, b"%d" % header_length))
    if encoding:
        headers.append((b"content-encoding", encoding.encode()))
    return headers + _encoded(response.facts())


def _answer_head(header_length: int | None, encoding: str, response: InferResponse, size_bytes: int) -> bytes:
    """Status line and header lines of a good answer."""
    route = response.route
    lines = _steady_lines(header_length, encoding, route.version, route.rule, response.provenance)
    if route.bucket is None:
        return b"%bcontent-length: %d\r\n" % (lines, size_bytes)
    return b"%bx-pg-bucket: %04d\r\ncontent-length: %d\r\n" % (lines, route.bucket, size_bytes)


@lru_cache(maxsize=4096)
def _steady_lines(
    header_length: int | None, encoding: str, version: int, rule: str, provenance: Provenance
) -> bytes:
    """The lines that do not change from request to request: all but the bucket and the length."""
    response = InferResponse("", version, [], Route(version, rule), provenance)
    headers = _answer_headers(header_length, encoding, response)
    return b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in headers)


def _encoded(facts: Iterable[tuple[str, str]]) -> Headers:
    return [(name.encode(), value.encode("ascii", "backslashreplace")) for name, value in facts]


async def _send(send: Send, status: int, body: bytes, headers: Headers) -> None:
    if status != 200:
        headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
