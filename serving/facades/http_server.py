"""A uvicorn server for one ASGI app: our own socket, our own signals, and bounds that uvicorn leaves open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from paritygate.serving.config import Settings
from paritygate.serving.facades.base import PortInUse

AsgiApp: TypeAlias = "Callable[[Any, Any, Any], Any]"
_BACKLOG = 2048

CYCLE = "paritygate.cycle"
"""Key of the ASGI extension that holds what `answer_whole` takes."""

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


class HttpServer:
    """Serves one ASGI app on one socket until it is told to stop."""

    def __init__(self, app: AsgiApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
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
            http=_bounded_protocol(self._settings),
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
    more = b"".join(b"%b: %b\r\n" % header for header in cycle.default_headers)
    end = more + (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    if len(body) < _JOIN_BELOW_BYTES:
        cycle.transport.write(b"".join((head, end, body)))
    else:
        cycle.transport.write(head + end)
        cycle.transport.write(body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class _QuietServer(uvicorn.Server):
    """Leaves signals alone: the gateway handles them once for all its ports."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounded_protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """The protocol class with this gateway's limits; uvicorn makes the instances itself."""

    class Bounded(BoundedProtocol):
        max_header_bytes = settings.max_header_bytes
        head_timeout_s = settings.body_timeout_s

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """Adds to uvicorn's parser what it lacks: a limit and a deadline for a request's head, and errors in JSON."""

    max_header_bytes: int
    head_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._began_in_chunk = False
        self._chunk_bytes = 0
        self._line_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

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

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse a head that grows or lasts too long."""
        self._began_in_chunk = False
        super().data_received(data)
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
            self.scope["extensions"] = {CYCLE: {"cycle": self.cycle}}

    def on_body(self, body: bytes) -> None:
        """Pass on a body that belongs to a request."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass on the end of a body that belongs to a request."""
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
