"""Requests whose head came before, byte for byte: what it means is known, and parsing it again is half their cost.

A client sends the same head with each request of one shape over a connection that stays open. A head is taken up
only after the HTTP parser has read the whole request and found it ordinary, and only the second time it comes, so
that heads which never come again (an id in each) cost next to nothing. The same bytes at the start of a message
always parse alike, so nothing is answered by them that the parser would refuse or read otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Meaning = TypeVar("Meaning")

_MAX_HEAD_BYTES = 4096
_MAX_HEADS = 1024
_MAX_SEEN_ONCE = 1024


class KnownHeads(Generic[Meaning]):
    """What heads mean, by their bytes; of many the oldest is forgotten.

    Args:
        read: Gives what a head means from the ASGI scope that the parser made of it, or None where requests with
            such heads are to go the ordinary way.
    """

    def __init__(self, read: Callable[[Any], Meaning | None]) -> None:
        self._read = read
        self._known: OrderedDict[bytes, Meaning] = OrderedDict()
        self._seen_once: OrderedDict[bytes, None] = OrderedDict()
        self.get = self._known.get

    def offer(self, head: bytes, scope: Any) -> None:
        """Take note of a head that the parser found ordinary.

        Args:
            head: From the first byte of the request to the empty line, both included.
            scope: What the parser made of it.
        """
        if len(head) > _MAX_HEAD_BYTES or head in self._known:
            return
        if head not in self._seen_once:
            self._seen_once[head] = None
            if len(self._seen_once) > _MAX_SEEN_ONCE:
                self._seen_once.popitem(last=False)
            return
        del self._seen_once[head]
        meaning = self._read(scope)
        if meaning is None:
            return
        self._known[head] = meaning
        if len(self._known) > _MAX_HEADS:
            self._known.popitem(last=False)
