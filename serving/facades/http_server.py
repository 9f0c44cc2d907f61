"""A uvicorn server for one ASGI app: our own socket, our own signals, and bounds that uvicorn leaves open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from paritygate.serving.config import Settings
from paritygate.serving.facades.base import PortInUse
from paritygate.serving.facades.known_heads import KnownHeads

AsgiApp: TypeAlias = "Callable[[Any, Any, Any], Any]"
_BACKLOG = 2048

CYCLE = "paritygate.cycle"
"""Key of the ASGI extension that holds what `answer_whole` takes."""

BEGUN = "paritygate.begun"
"""Key of the ASGI extension that holds what a shortcut has begun and the app is to finish."""

_JOIN_BELOW_BYTES = 64 * 1024
"""A larger body is not copied to stand behind its head."""


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        PortInUse: If the address cannot be had; one sentence that names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise PortInUse(
            f"cannot listen on {host}:{port}: {reason}. Stop what listens there, or choose another port."
        ) from error
    listener.setblocking(False)
    return listener


class KnownRequest(Protocol):
    """What a known head means."""

    @property
    def body_bytes(self) -> int:
        """Length of the body that follows it."""


class Shortcut(Protocol):
    """Answers requests that came whole and begin with a known head, without ASGI's messages and tasks."""

    def read_head(self, scope: Any) -> KnownRequest | None:
        """What a head means; None where such requests are to go to the app."""

    def answer(self, known: Any, body: bytes) -> tuple[bytes, bytes] | object | None:
        """Answer at once, which is for what takes less than a millisecond.

        Returns:
            Status line with header lines, and the body; or what was begun and has to wait, which the app gets as
            the scope's extension `BEGUN`; or None if nothing was done.
        """

    def give_up(self, begun: Any) -> None:
        """Let go of what was begun: no app will finish it."""


class HttpServer:
    """Serves one ASGI app on one socket until it is told to stop."""

    def __init__(self, app: AsgiApp, settings: Settings, shortcut: Shortcut | None = None) -> None:
        self._app = app
        self._settings = settings
        self._shortcut = shortcut
        self._socket: socket.socket | None = None
        self._server: _QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    def bind(self, host: str, port: int) -> int:
        """Take the port; see `Facade.bind`."""
        self._socket = bind_socket(host, port)
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Answer requests from now on."""
        assert self._socket is not None  # bind comes first
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=_bounded_protocol(self._settings, self._shortcut),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(max(1, self._settings.keep_alive_timeout_s)),
        )
        self._server = _QuietServer(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()

    async def stop(self, grace_s: float) -> None:
        """Stop as `Facade.stop` says."""
        if self._server is None or self._task is None:
            if self._socket is not None:
                self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = int(grace_s) + 1
        self._server.should_exit = True
        await self._task


def cycle_of(scope: Any) -> RequestResponseCycle | None:
    """What `answer_whole` takes; None where another server runs the app."""
    found = scope.get("extensions", {}).get(CYCLE)
    return None if found is None else found["cycle"]


async def answer_whole(cycle: RequestResponseCycle, head: bytes, body: bytes) -> None:
    """Answer a request with bytes that are ready, and not header by header through ASGI's messages.

    uvicorn looks at every header of every answer with two regular expressions, which is a sixth of what a small
    model's request costs. Only headers that this gateway itself makes may come this way.

    Args:
        cycle: The request's own, from `cycle_of`.
        head: Status line and header lines, Content-Length among them, each with its line end.
        body: All of the body.
    """
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    end = _lines(cycle.default_headers) + (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    _write(cycle.transport, head + end, body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def _write(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
    if len(body) < _JOIN_BELOW_BYTES:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


class _QuietServer(uvicorn.Server):
    """Leaves signals alone: the gateway handles them once for all its ports."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounded_protocol(settings: Settings, shortcut: Shortcut | None) -> type[HttpToolsProtocol]:
    """The protocol class with this gateway's limits; uvicorn makes the instances itself."""
    taken = shortcut
    known = None if taken is None else KnownHeads(taken.read_head)

    class Bounded(BoundedProtocol):
        max_header_bytes = settings.max_header_bytes
        head_timeout_s = settings.body_timeout_s
        shortcut = taken
        known_heads = known

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """Adds to uvicorn's parser what it lacks: a limit and a deadline for a request's head, and errors in JSON.

    Whole requests with a known head go to a shortcut instead of the parser, if there is one (`known_heads`).
    """

    max_header_bytes: int
    head_timeout_s: float
    shortcut: Shortcut | None = None
    known_heads: KnownHeads[KnownRequest] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._began_in_chunk = False
        self._chunk_bytes = 0
        self._line_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._between_messages = True
        self._messages_begun = 0
        self._body_bytes = 0
        self._begun: object | None = None
        self._answered_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection on which nothing comes is idle from the start."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both clocks."""
        self._stop_clock()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle all the while; answers by the shortcut do not set the clock anew."""
        left_s = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left_s > 0 and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Answer a whole request with a known head, or parse."""
        heads = self.known_heads
        if heads is None or not self._between_messages or not self._is_idle():
            self._parse(data)
            return
        end = data.find(b"\r\n\r\n") + 4
        known = heads.get(data[:end])
        if known is None:
            self._parse_and_learn(heads, data, end)
        elif len(data) - end != known.body_bytes or not self._answer(known, data[end:]):
            self._parse(data)

    def _is_idle(self) -> bool:
        """Whether every request on this connection is answered and the client reads what it is sent."""
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and not (
            self.pipeline or self.flow.write_paused or self.transport.is_closing()
        )

    def _answer(self, known: KnownRequest, body: bytes) -> bool:
        """Have the shortcut answer; False if it did not, and what it begun is then kept for the app."""
        assert self.shortcut is not None  # there are no known heads without one
        answer = self.shortcut.answer(known, body)
        if type(answer) is not tuple:
            self._begun = answer
            return False
        head, payload = answer
        _write(self.transport, head + _lines(self.server_state.default_headers) + b"\r\n", payload)
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        return True

    def _parse_and_learn(self, heads: KnownHeads[KnownRequest], data: bytes, end: int) -> None:
        """Parse, and take note of the head if this was one whole ordinary request and nothing else."""
        begun_before, self._body_bytes = self._messages_begun, 0
        self._parse(data)
        whole = self._between_messages and self._messages_begun == begun_before + 1
        # Had the parser seen the head end elsewhere, the body would have another length.
        ordinary = whole and end > 3 and self._body_bytes == len(data) - end
        cycle: RequestResponseCycle | None = self.cycle
        if ordinary and cycle is not None and cycle.keep_alive:
            heads.offer(data[:end], self.scope)

    def _parse(self, data: bytes) -> None:
        """Parse, and refuse a head that grows or lasts too long."""
        self._began_in_chunk = False
        super().data_received(data)
        if self._begun is not None and self.shortcut is not None:  # the parser took no request from it
            self.shortcut.give_up(self._begun)
            self._begun = None
        if self.transport.is_closing():
            return
        if not self._in_head:
            self._stop_clock()
            return
        # What else a chunk held before this head began is not counted.
        self._chunk_bytes = 0 if self._began_in_chunk else self._chunk_bytes + len(data)
        if self._chunk_bytes > self.max_header_bytes:
            self._refuse_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = self._began_in_chunk = True
        self._between_messages = False
        self._messages_begun += 1
        self._line_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header line."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over; one that was refused starts no request."""
        self._in_head = False
        if not self.transport.is_closing():
            super().on_headers_complete()
            extensions: dict[str, dict[object, object]] = {CYCLE: {"cycle": self.cycle}}
            if self._begun is not None:
                extensions[BEGUN] = {"begun": self._begun}
                self._begun = None
            self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        """Pass on a body that belongs to a request."""
        self._body_bytes += len(body)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass on the end of a body that belongs to a request."""
        self._between_messages = True
        if not self.transport.is_closing():
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self._line_bytes += size
        if self._line_bytes > self.max_header_bytes and not self.transport.is_closing():
            self._refuse_head()

    def _refuse_head(self) -> None:
        self._respond(431, f"the request's header lines have more than {self.max_header_bytes} bytes.")

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._respond(408, f"the request's header lines did not arrive within {self.head_timeout_s:g} s.")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the form of every other error."""
        self._respond(400, msg)

    def _respond(self, status: int, text: str) -> None:
        body = json.dumps({"error": text}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
