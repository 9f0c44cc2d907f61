"""Errors of the serving package: each has a kind and one sentence, never a status code.

ServingError
├── InvalidArgument   what the client sent does not fit: names the input, what was given, what was expected
├── PayloadTooLarge   a body, or what it decompresses to, exceeds the limit
├── RequestTimeout    the rest of the body did not arrive in time
├── NotFound          no such model or version
├── Unavailable       it exists but does not answer now: loading, unloading, draining, mode forbids
├── Exhausted         more waits or is held than the limits allow: the same request may be well a little later
├── Unsupported       this gateway does not do that
├── LoadFailed        a version could not be loaded; the old one, if any, keeps serving
└── InferenceFailed   the runtime failed while it computed

Each facade maps kinds to its own codes (facades/v2_rest.py, facades/v2_grpc.py).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paritygate.serving.types import Provenance, Route


class Kind(enum.Enum):
    """What went wrong, in the words of no protocol."""

    INVALID_ARGUMENT = "invalid_argument"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    NOT_FOUND = "not_found"
    UNAVAILABLE = "unavailable"
    EXHAUSTED = "exhausted"
    UNSUPPORTED = "unsupported"
    INTERNAL = "internal"


class ServingError(Exception):
    """Base of all errors of this package.

    Attributes:
        kind: What a facade maps to its code.
        answered_by: The route and version that the request had reached, which an error's answer tells too; None if
            it reached none.
    """

    kind = Kind.INTERNAL
    answered_by: tuple[Route, Provenance] | None = None

    def __init__(self, text: str) -> None:
        # Texts name what clients send and upstreams say; neither may break a line of a log or of an answer.
        super().__init__(text if text.isprintable() else "".join(map(_visible, text)))


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()


class InvalidArgument(ServingError):
    """What the client sent does not fit the model or the protocol."""

    kind = Kind.INVALID_ARGUMENT


class PayloadTooLarge(ServingError):
    """A body, or what it decompresses to, is larger than the gateway accepts."""

    kind = Kind.TOO_LARGE


class RequestTimeout(ServingError):
    """The rest of a body did not arrive in time."""

    kind = Kind.TIMEOUT


class NotFound(ServingError):
    """There is no such model or version."""

    kind = Kind.NOT_FOUND


class Unavailable(ServingError):
    """It exists, but does not answer now."""

    kind = Kind.UNAVAILABLE


class Exhausted(ServingError):
    """A limit on what waits or is held at one moment is reached.

    Attributes:
        retry_after_s: Whole seconds, at least 1, after which it is worth while to ask again.
    """

    kind = Kind.EXHAUSTED

    def __init__(self, text: str, *, retry_after_s: int = 1) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Unsupported(ServingError):
    """This gateway does not do that."""

    kind = Kind.UNSUPPORTED


class LoadFailed(ServingError):
    """A model or version could not be loaded; what was live keeps serving."""

    kind = Kind.INVALID_ARGUMENT


class InferenceFailed(ServingError):
    """The runtime failed while it computed an answer."""

    kind = Kind.INTERNAL
