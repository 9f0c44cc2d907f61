"""How errors look on the wire: a status for each kind, one form of body, and nothing of what went wrong inside."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping

from paritygate.serving.errors import Exhausted, Kind, ServingError

log = logging.getLogger("paritygate.serving")

STATUS: Mapping[Kind, int] = {
    Kind.INVALID_ARGUMENT: 400,
    Kind.TOO_LARGE: 413,
    Kind.TIMEOUT: 408,
    Kind.NOT_FOUND: 404,
    Kind.UNAVAILABLE: 503,
    Kind.EXHAUSTED: 429,
    Kind.UNSUPPORTED: 501,
    Kind.INTERNAL: 500,
}
"""The HTTP status of each kind of error; a full queue, which Triton calls unavailable, has a status of its own, so
that clients and proxies know that a later try is worth while.

Source: triton-inference-server/server, src/http_server.cc; RFC 6585, section 4.
"""


def error_headers(error: ServingError) -> list[tuple[str, str]]:
    """Headers that belong to an error, beside those that tell which version it reached."""
    return [("retry-after", str(error.retry_after_s))] if isinstance(error, Exhausted) else []


def error_body(text: str) -> bytes:
    """The one form of every error. Source: kserve/open-inference-protocol, inference_rest.md."""
    return json.dumps({"error": text}).encode()


def log_internal_error() -> str:
    """Log the exception under way, and give the client a text that leads to it but tells nothing of it."""
    request_id = uuid.uuid4().hex[:12]
    log.exception("unexpected error, request id %s", request_id)
    return f"internal error; the gateway's log has it under request id {request_id}."
