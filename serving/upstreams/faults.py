"""What may go wrong between the gateway and an upstream, and what follows from it.

UpstreamFault
├── NotReached    no connection came about: nothing was sent
├── Lost          the connection ended before the answer was whole: it may or may not have been computed
├── TimedOut      no whole answer in time
├── Busy          it says that it takes no more now (429, 503, RESOURCE_EXHAUSTED, UNAVAILABLE)
├── Absent        it says that it has no such model or version
├── Failed        it says that it failed (any other 5xx, INTERNAL, UNKNOWN)
└── BadAnswer     what it sent is no answer to what was asked

What an upstream says of the request itself (400, INVALID_ARGUMENT) is no fault of its own: it is raised as
`InvalidArgument` with its text.
"""

from __future__ import annotations


class UpstreamFault(Exception):
    """A fault of an upstream.

    Attributes:
        text: What it said, or what was seen.
        computed: Whether the request may have been computed, so that sending it again computes it twice.
        elsewhere: Whether another upstream may do better with the same request.
    """

    computed = False
    elsewhere = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class NotReached(UpstreamFault):
    """No connection came about."""


class Lost(UpstreamFault):
    """The connection ended before the answer was whole."""

    computed = True


class TimedOut(UpstreamFault):
    """No whole answer came in time; whoever waited so long is not made to wait as long again."""

    computed = True
    elsewhere = False


class Busy(UpstreamFault):
    """It takes no more now.

    Attributes:
        retry_after_s: When it is worth while to ask again.
    """

    def __init__(self, text: str, retry_after_s: int = 1) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Absent(UpstreamFault):
    """It has no such model or version."""


class Failed(UpstreamFault):
    """It failed while it computed."""

    computed = True


class BadAnswer(UpstreamFault):
    """What it sent is no answer to what was asked."""

    computed = True
