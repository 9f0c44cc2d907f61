"""HTTP bodies within limits: how much, how fast, and what is in them once decompressed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from paritygate.serving.config import Settings
from paritygate.serving.errors import (
    Exhausted,
    InvalidArgument,
    PayloadTooLarge,
    RequestTimeout,
    Unsupported,
)
from paritygate.serving.facades.steps import Started

_COMPRESS_FROM_BYTES = 1024
_OFF_LOOP_FROM_BYTES = 64 * 1024
_INFLATE_SLICE_BYTES = 16 * 1024
_MAX_MEMBERS = 4096
"""More than blocked gzip needs for the largest body by default; without a bound, empty ones cost time."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete; nobody is left to answer."""


class UnsupportedEncoding(Unsupported):
    """A body came in an encoding that is not known here."""


class Budget:
    """How many body bytes all requests together hold."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes that came.

        Raises:
            Exhausted: If all requests together hold too much.
        """
        if self.held_bytes + size_bytes > self.limit_bytes:
            raise Exhausted(
                f"requests under way hold {self.held_bytes} bytes of at most {self.limit_bytes}; try again later."
            )
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes that are let go."""
        self.held_bytes -= size_bytes


class Body:
    """One request's body, and what it holds of the common budget; use it in a `with` block."""

    def __init__(self, budget: Budget, settings: Settings) -> None:
        self._budget = budget
        self._settings = settings
        self._held = 0

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.give_back(self._held)
        self._held = 0

    def hold(self, size_bytes: int) -> None:
        """Count a body that was read elsewhere.

        Raises:
            Exhausted: If all requests together hold too much.
        """
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._budget.take(size_bytes)
        self._held += size_bytes

    async def read(self, headers: Mapping[bytes, bytes], receive: Callable[[], Any]) -> bytes:
        """The whole body, decompressed.

        Raises:
            PayloadTooLarge: If it, or what it decompresses to, exceeds the limit.
            RequestTimeout: If it does not arrive in time.
            UnsupportedEncoding: If its Content-Encoding is not known.
            ClientGone: If the client goes away.
        """
        self._check_claim(headers.get(b"content-length"))
        message = await self._first(receive)
        raw: bytes = message.get("body", b"")
        self._take(len(raw))
        self._check_size(len(raw))
        if message.get("more_body"):
            raw = await self._rest(raw, receive)
        encoding = headers.get(b"content-encoding")
        return raw if encoding is None else await self._decompress(raw, encoding)

    def _check_claim(self, claim: bytes | None) -> None:
        """Refuse a body that is too large by its own word, before any of it is read."""
        if claim is not None and claim.isdigit():
            self._check_size(int(claim))

    def _check_size(self, size_bytes: int) -> None:
        limit = self._settings.max_body_bytes
        if size_bytes > limit:
            raise PayloadTooLarge(
                f"the request body has {size_bytes} bytes or more; at most {limit} are accepted."
            )

    async def _first(self, receive: Callable[[], Any]) -> Mapping[str, Any]:
        begun: Started[Mapping[str, Any]] = Started(receive())
        try:
            if begun.done:  # a small body comes in one piece with its head
                message = await begun
            else:
                async with asyncio.timeout(self._settings.body_timeout_s):
                    message = await begun
        except TimeoutError:
            raise self._late() from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    async def _rest(self, first: bytes, receive: Callable[[], Any]) -> bytes:
        parts, size = [first], len(first)
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    self._check_size(size)
                    self._take(len(part))
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise self._late() from None
        return b"".join(parts)

    def _late(self) -> RequestTimeout:
        return RequestTimeout(f"the request body did not arrive within {self._settings.body_timeout_s:g} s.")

    async def _decompress(self, raw: bytes, encoding: bytes) -> bytes:
        name = encoding.decode("latin-1").strip().lower()
        if name in ("", "identity"):
            return raw
        if name not in ("gzip", "deflate"):
            raise UnsupportedEncoding(
                f"Content-Encoding '{name[:40]}' is not known; send gzip, deflate or none."
            )
        limit = self._settings.max_body_bytes
        if len(raw) >= _OFF_LOOP_FROM_BYTES:
            plain = await asyncio.to_thread(decompress, raw, name, limit)
        else:
            plain = decompress(raw, name, limit)
        self._take(len(plain))
        return plain


def decompress(raw: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The plain bytes of a gzip or deflate body; never more than `limit_bytes` are made.

    Raises:
        InvalidArgument: If the body is not what its encoding says.
        PayloadTooLarge: If more than `limit_bytes` come out.
    """
    try:
        return _inflate(raw, _window_bits(raw, encoding), encoding, limit_bytes)
    except zlib.error as error:
        raise InvalidArgument(f"the request body is not valid {encoding}: {error}.") from None


def _window_bits(raw: bytes, encoding: str) -> int:
    """How zlib is to read it: gzip, zlib, or (what some clients call deflate) a bare stream."""
    if encoding == "gzip":
        return 16 + zlib.MAX_WBITS
    has_header = len(raw) >= 2 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS


def _inflate(raw: bytes, window_bits: int, encoding: str, limit_bytes: int) -> bytes:
    """All members of a body one after another.

    What a member leaves over is copied by zlib each time, so it is fed slices: the cost stays linear in the body.
    """
    plain, view = bytearray(), memoryview(raw)
    offset = num_members = 0
    while offset < len(raw):
        num_members += 1
        if num_members > _MAX_MEMBERS:
            raise InvalidArgument(
                f"the request body has more than {_MAX_MEMBERS} {encoding} members; compress it in one go."
            )
        stream = zlib.decompressobj(window_bits)
        while not stream.eof:
            piece = view[offset : offset + _INFLATE_SLICE_BYTES]
            if not piece:
                raise InvalidArgument(f"the request body is {encoding} that breaks off.")
            plain += stream.decompress(piece, limit_bytes - len(plain) + 1)
            if len(plain) > limit_bytes:
                raise PayloadTooLarge(
                    f"the request body decompresses to more than the {limit_bytes} bytes that are accepted."
                )
            offset += len(piece) - len(stream.unused_data)
    return bytes(plain)


def accepted_encoding(header: bytes | None) -> str:
    """The encoding of an answer that the client likes best: `gzip`, `deflate` or nothing."""
    if header is None:
        return ""
    weights = {"gzip": 0.0, "deflate": 0.0, "identity": 1e-9}
    for item in header.decode("latin-1").lower().split(","):
        name, _, parameters = item.partition(";")
        name = name.strip()
        for known in weights if name == "*" else (name,):
            if known in weights:
                weights[known] = _quality(parameters)
    best = max(weights, key=lambda name: weights[name])
    return "" if best == "identity" or weights[best] <= 0 else best


def _quality(parameters: str) -> float:
    text = parameters.strip().removeprefix("q=")
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0


def is_worth_compressing(body: bytes) -> bool:
    """Whether a body is large enough for compression to make it smaller."""
    return len(body) >= _COMPRESS_FROM_BYTES


async def compress(body: bytes, encoding: str) -> tuple[bytes, str]:
    """The body in that encoding, and the encoding it really has; small ones stay as they are."""
    if not encoding or not is_worth_compressing(body):
        return body, ""
    window_bits = 16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    if len(body) >= _OFF_LOOP_FROM_BYTES:
        return await asyncio.to_thread(_deflate, body, window_bits), encoding
    return _deflate(body, window_bits), encoding


def _deflate(body: bytes, window_bits: int) -> bytes:
    stream = zlib.compressobj(level=1, wbits=window_bits)
    return stream.compress(body) + stream.flush()
