"""The queue of one version: priorities, waits that end, and which requests run together next.

Nothing here knows a clock, a thread or an event loop: every call is told the time, so that a test may tell any.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paritygate.serving.errors import Exhausted
from paritygate.serving.scheduling.policy import BatchingPolicy

NEVER = math.inf


@dataclass(eq=False, slots=True)
class Waiting:
    """One request in the queue.

    Attributes:
        batch_size: How many items it has.
        kind: Requests run together only if theirs are equal: shapes and types beside the first dimension.
        level: Its priority, 1 the highest.
        since_us: When it came, in microseconds.
        until_us: When its wait ends; `NEVER` without a limit.
        payload: What belongs to it.
    """

    batch_size: int
    kind: Hashable
    level: int
    since_us: float
    until_us: float = NEVER
    payload: Any = None


@dataclass
class _Level:
    """Requests of one priority: those in their time, and after all of these those that waited too long."""

    waiting: deque[Waiting] = field(default_factory=deque)
    late: deque[Waiting] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.late)

    def in_order(self) -> Iterator[Waiting]:
        yield from self.waiting
        yield from self.late


@dataclass(frozen=True)
class Next:
    """What is to be done now.

    Attributes:
        batch: The requests that run together; empty if none is to run now.
        look_again_us: When to ask again at the latest if nothing else happens; `NEVER` if nothing would change.
    """

    batch: list[Waiting]
    look_again_us: float = NEVER


class BatchQueue:
    """Requests of one version that wait for a run."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._levels = {level: _Level() for level in range(1, policy.levels + 1)}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, item: Waiting) -> None:
        """Have a request wait.

        Raises:
            Exhausted: If as many of its priority wait as the config allows.
        """
        level = self._levels[item.level]
        most = self._policy.policy_of(item.level).max_size
        if most and len(level) >= most:
            raise Exhausted(
                f"Exceeds maximum queue size: {len(level)} requests of priority {item.level} wait, which is the "
                "model's limit; try again later."
            )
        level.waiting.append(item)
        self._size += 1

    def remove(self, item: Waiting) -> bool:
        """Take a request out that is not wanted any more; False if it waits no longer."""
        level = self._levels[item.level]
        for queue in (level.waiting, level.late):
            if item in queue:
                queue.remove(item)
                self._size -= 1
                return True
        return False

    def expire(self, now_us: float) -> list[Waiting]:
        """Take out those whose wait has ended; where the policy delays them they stay, behind all others."""
        ended: list[Waiting] = []
        for number, level in self._levels.items():
            late = [item for item in level.waiting if item.until_us <= now_us]
            if not late:
                continue
            level.waiting = deque(item for item in level.waiting if item.until_us > now_us)
            if self._policy.policy_of(number).delays:
                level.late.extend(late)
            else:
                ended += late
                self._size -= len(late)
        return ended

    def take(self, now_us: float, *, together: bool = True) -> Next:
        """The requests that run next, if any are to run now; they are out of the queue then.

        A batch of a preferred size runs at once. Any other waits for more until its oldest request has waited as
        long as the config says, unless it cannot grow.

        Args:
            now_us: The time.
            together: Whether requests may be put together at all.
        """
        batch, preferred, closed = self._candidates(together=together)
        if not batch:
            return Next([])
        ready_us = min(item.since_us for item in batch) + self._policy.delay_us
        size = sum(item.batch_size for item in batch)
        full = closed or size >= (max(self._policy.preferred, default=self._policy.max_batch_size))
        if preferred and now_us < ready_us:
            batch = batch[:preferred]
        elif now_us < ready_us and not full and together:
            return Next([], min(ready_us, self.next_end_us()))
        for item in batch:
            self.remove(item)
        return Next(batch)

    def _candidates(self, *, together: bool) -> tuple[list[Waiting], int, bool]:
        """The longest run of requests that fit together, how many of them make a preferred size, and whether the
        next one in the queue does not fit."""
        policy, size, preferred = self._policy, 0, 0
        batch: list[Waiting] = []
        for item in self._in_order():
            fits = together and (not batch or item.kind == batch[0].kind)
            if batch and (not fits or size + item.batch_size > policy.max_batch_size):
                return batch, preferred, True
            batch.append(item)
            size += item.batch_size
            if size in policy.preferred:
                preferred = len(batch)
        return batch, preferred, size >= policy.max_batch_size

    def _in_order(self) -> Iterator[Waiting]:
        for level in self._levels.values():
            yield from level.in_order()

    def next_end_us(self) -> float:
        """When the first wait ends; `NEVER` if none does."""
        waiting = (item.until_us for level in self._levels.values() for item in level.waiting)
        return min(waiting, default=NEVER)
