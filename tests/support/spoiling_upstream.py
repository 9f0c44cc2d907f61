"""A server between a gateway and its upstream that hands everything on, until it is told what to spoil.

It is a plain pipe of HTTP messages: what it spoils is spoilt on the wire, and what it does not is the real thing.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Spoiler:
    """What the server does with inference requests; everything else is handed on.

    Attributes:
        port: Where it listens.
        mode: `pass`, a status, `hang`, `cut` (answers half, then closes), `close` (closes without an answer),
            `noise` (no HTTP), `wrong` (one byte of the tensors is another), `empty` (no tensor bytes).
        text: What errors say.
        seen: Inference requests by mode.
        paths: The paths that inference was asked on.
        plain: Whether it says that it takes no binary tensors, and takes none.
        headers: Those of each inference request.
        bodies: The same.
    """

    port: int = 0
    mode: str = "pass"
    text: str = "Stub process 'linear_0_0' is not healthy."
    seen: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    plain: bool = False
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def spoiling_upstream(target: str) -> Iterator[Spoiler]:
    """A spoiling server before the server at `target` (`host:port`), for the length of a `with` block."""
    spoiler = Spoiler()

    class Handler(_Handler):
        state = spoiler
        upstream = target

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    spoiler.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield spoiler
    finally:
        spoiler.mode = "close"
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Spoiler
    upstream: str

    def do_GET(self) -> None:
        self._hand_on(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        mode = self.state.mode
        self.state.seen[mode] += 1
        self.state.paths[self.path] += 1
        self.state.headers.append({k.lower(): v for k, v in self.headers.items()})
        self.state.bodies.append(body)
        if mode.isdigit():
            self._answer(int(mode), {}, json.dumps({"error": self.state.text}).encode())
        elif mode == "hang":
            while self.state.mode == "hang":
                time.sleep(0.02)
            self.close_connection = True
        elif mode == "close":
            self.close_connection = True
        elif mode == "noise":
            self.wfile.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            self.close_connection = True
        else:
            self._hand_on(body, mode)

    def _hand_on(self, body: bytes, mode: str = "pass") -> None:
        connection = http.client.HTTPConnection(self.upstream, timeout=10)
        try:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            connection.request(self.command, self.path, body or None, kept)
            response = connection.getresponse()
            data = response.read()
            headers = {
                k: v for k, v in response.getheaders() if k.lower() not in ("content-length", "connection")
            }
        except OSError:
            self.close_connection = True
            return
        finally:
            connection.close()
        if self.state.plain and self.path == "/v2":
            data = data.replace(b"binary_tensor_data", b"something_else")
        if mode == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 0x40])
        if mode == "empty":
            length = int(headers["inference-header-content-length"])
            data = data[:length]
        if mode == "cut":
            self.send_response(response.status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._answer(response.status, headers, data)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
