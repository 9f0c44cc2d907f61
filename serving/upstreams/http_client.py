"""A small HTTP/1.1 client for one server: kept connections, and the knowledge what was sent when something failed.

Of the clients at hand none is this: a retry is safe or not by whether the request went out, which pools hide, and
they cost four to ten times the CPU of what they carry here (docs/upstreams.md, "Speed").
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httptools

from paritygate.serving.upstreams.config import Upstream
from paritygate.serving.upstreams.faults import BadAnswer, Lost, NotReached, TimedOut, UpstreamFault

Part = bytes | memoryview

_MAX_IDLE = 64
_MAX_HEAD_BYTES = 64 * 1024
_JOINED_BELOW_BYTES = 64 * 1024
"""Parts of a small request are copied into one write; those of a large one are handed over as they are."""


class Call:
    """A request under way, which its owner may end.

    Attributes:
        repeatable: Whether sending it twice changes nothing; a member of a sequence is not.
        abort: Ends it at once; nothing while it waits for a connection.
        aborted: Whether its owner ended it.
    """

    __slots__ = ("abort", "aborted", "repeatable")

    def __init__(self, *, repeatable: bool = True) -> None:
        self.repeatable = repeatable
        self.abort: Callable[[], object] | None = None
        self.aborted = False

    def end(self) -> None:
        """End it."""
        self.aborted = True
        if self.abort is not None:
            self.abort()


@dataclass(slots=True)
class HttpAnswer:
    """A whole answer.

    Attributes:
        status: Its code.
        headers: Lower-case names; of repeated ones the last.
        body: All of it.
    """

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class HttpClient:
    """Kept connections to one server; one request at a time on each."""

    def __init__(self, upstream: Upstream, *, max_body_bytes: int) -> None:
        self._upstream = upstream
        self._max_body_bytes = max_body_bytes
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._tls = _tls(upstream)
        self.authority = f"{_bracketed(upstream.host)}:{upstream.port}".encode()

    async def request(self, parts: Sequence[Part], call: Call, timeout_s: float) -> HttpAnswer:
        """Send one request and wait for its whole answer.

        Args:
            parts: Head and body, in order.
            call: Lets the owner end it.
            timeout_s: Until when the whole answer must have come.

        Raises:
            UpstreamFault: `NotReached`, `Lost`, `TimedOut` or `BadAnswer`.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            try:
                return await self._ask(connection, parts, call, timeout_s)
            except Lost:
                # A server ends idle connections when it likes: nobody answers on them, and nothing was computed.
                if call.aborted or connection.heard or not call.repeatable:
                    raise
        return await self._ask(await self._connect(timeout_s), parts, call, timeout_s)

    async def _ask(
        self, connection: _Connection, parts: Sequence[Part], call: Call, timeout_s: float
    ) -> HttpAnswer:
        call.abort = connection.end
        if call.aborted:
            connection.end()
            raise Lost("the request was ended")
        timer = asyncio.get_running_loop().call_later(timeout_s, connection.late, timeout_s)
        try:
            answer = await connection.ask(parts)
        except BaseException:
            connection.end()
            raise
        finally:
            timer.cancel()
            call.abort = None
        if connection.keep and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.end()
        return answer

    async def _connect(self, timeout_s: float) -> _Connection:
        upstream, loop = self._upstream, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(upstream.connect_timeout_s, timeout_s)):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._max_body_bytes, self._all),
                    upstream.host,
                    upstream.port,
                    ssl=self._tls,
                )
        except TimeoutError:
            raise NotReached(f"no connection within {upstream.connect_timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise NotReached(f"no connection: {error.strerror or error}") from error
        return connection

    def close(self) -> None:
        """End all connections."""
        for connection in list(self._all):
            connection.end()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection.

    Attributes:
        heard: Whether any byte of the present answer has come.
        keep: Whether it may carry another request.
        closed: Whether it ended.
    """

    def __init__(self, max_body_bytes: int, register: set[_Connection]) -> None:
        self._max_body_bytes = max_body_bytes
        self._register = register
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._answer = HttpAnswer()
        self._chunks: list[bytes] = []
        self._size = self._head_size = 0
        self.heard = self.keep = self.closed = False

    def ask(self, parts: Sequence[Part]) -> asyncio.Future[HttpAnswer]:
        """Send a request; the future gets its answer or an `UpstreamFault`."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        self.heard = self.keep = False
        if self.closed or self._transport is None:
            waiter.set_exception(Lost("the connection was closed before the answer came"))
            return waiter
        if sum(map(len, parts)) <= _JOINED_BELOW_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        return waiter

    def end(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(Lost("the connection was ended"))

    def late(self, timeout_s: float) -> None:
        """The answer did not come in time."""
        self._fail(TimedOut(f"no whole answer within {timeout_s:g} s"))
        self.end()

    def _fail(self, fault: UpstreamFault) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(fault)

    # --- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._waiter is None:
            self.end()  # nobody asked
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(BadAnswer(f"its answer is no HTTP: {error}"))
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side, or this one, ended it."""
        self.closed = True
        self._register.discard(self)
        why = f": {getattr(exc, 'strerror', None) or exc}" if exc is not None else ""
        self._fail(Lost(f"the connection was closed before the answer came{why}"))

    # --- httptools ----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._answer = HttpAnswer()
        self._chunks = []
        self._size = self._head_size = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line came."""
        self._head_size += len(name) + len(value)
        if self._head_size > _MAX_HEAD_BYTES:
            self._fail(BadAnswer(f"the head of its answer has more than {_MAX_HEAD_BYTES} bytes"))
            self.end()
            return
        self._answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._answer.status = self._parser.get_status_code()
        self.keep = self._parser.should_keep_alive()

    def on_body(self, chunk: bytes) -> None:
        """A part of the body came."""
        self._size += len(chunk)
        if self._size > self._max_body_bytes:
            self._fail(BadAnswer(f"its answer has more than {self._max_body_bytes} bytes"))
            self.end()
            return
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The answer is whole; interim ones (1xx) are passed over."""
        if self._answer.status < 200:
            return
        self._answer.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(self._answer)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _tls(upstream: Upstream) -> ssl.SSLContext | None:
    if upstream.scheme != "https":
        return None
    return ssl.create_default_context(cafile=upstream.ca_file or None)
