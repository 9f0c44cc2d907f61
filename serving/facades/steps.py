"""The first step of a coroutine, taken at once: most requests never wait, and what waiting needs is not free."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Started(Generic[T]):
    """A coroutine that has run until it had to wait for the first time, or to its end.

    Await it in the same task and nothing else before it: it has told that task already what it waits for.

    Attributes:
        done: Whether it came to its end; awaiting it then waits for nothing.
    """

    __slots__ = ("_coroutine", "_result", "_waits_for", "done")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Take the first step; raises what the coroutine raises in it."""
        self._coroutine = coroutine
        try:
            self._waits_for = coroutine.send(None)
        except StopIteration as stop:
            self.done = True
            self._result: T = stop.value
        else:
            self.done = False

    def __await__(self) -> Generator[Any, Any, T]:
        """The rest of the coroutine."""
        if self.done:
            return self._result
        waits_for = self._waits_for
        resume: Callable[[], Any]
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation is the coroutine's to meet
                resume = partial(self._coroutine.throw, error)
            else:
                resume = partial(self._coroutine.send, sent)
            try:
                waits_for = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
