"""Where a run happens: on the event loop if it is known to be short, else on a bounded pool of threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from paritygate.serving.errors import Exhausted

T = TypeVar("T")

_TRUST_AFTER = 16
_FAST_AGAIN_AFTER = 64
_LONG_RUN_STRIKES = 8
_STRIKES_ALLOWED = 24
_LONG_AT_ONCE = 50
_DOUBTS = 64
_NEWEST_COUNTS = 0.05
_LONGEST_RETRY_S = 60


class Timed(Generic[T]):
    """A result, when its computation began and ended, and what it cost.

    Attributes:
        result: What was computed.
        started_ns: In nanoseconds of `time.perf_counter_ns`.
        ended_ns: The same.
        cpu_ns: CPU time of the thread that ran it, in nanoseconds; None if it was not asked for.
    """

    __slots__ = ("cpu_ns", "ended_ns", "result", "started_ns")

    def __init__(self, result: T, started_ns: int, ended_ns: int, cpu_ns: int | None) -> None:
        self.result = result
        self.started_ns = started_ns
        self.ended_ns = ended_ns
        self.cpu_ns = cpu_ns


class RunTimes:
    """What is known about the length of one version's runs, by the size of their input.

    A run is expected to be short once enough runs were short, one of them at least as large, and none that was at
    most as large is known to be long. What counts is the CPU time of the thread: on a busy machine the clock on
    the wall makes every model look long now and then. A size is long after a few long runs in short succession,
    because one may be the garbage collector's; it is long at once if it would have held the loop for very long.

    Asking for a thread's CPU time is a system call, twice a run. What is short on the wall is short: only after a
    run that was long there are the next ones measured.
    """

    __slots__ = ("_below_ns", "_doubts", "_fast_bytes", "_fast_streak", "_slow_bytes", "_strikes")

    def __init__(self, below_us: float) -> None:
        self._below_ns = int(below_us * 1000)
        self._fast_bytes = -1
        self._slow_bytes: int | None = None
        self._fast_streak = 0
        self._strikes = 0
        self._doubts = 0

    @property
    def in_doubt(self) -> bool:
        """Whether the CPU time of the next run is wanted."""
        return self._doubts > 0

    def is_short(self, size_bytes: int) -> bool:
        """Whether a run with this much input is expected to be short."""
        if size_bytes > self._fast_bytes or self._fast_streak < _TRUST_AFTER:
            return False
        return self._slow_bytes is None or size_bytes < self._slow_bytes

    def saw(self, size_bytes: int, wall_ns: int, cpu_ns: int | None) -> None:
        """Take note of a finished run; without its CPU time a long one only makes the next ones be measured."""
        if cpu_ns is not None:
            self._doubts = max(0, self._doubts - 1)
            self._saw(size_bytes, cpu_ns)
        elif wall_ns <= self._below_ns:
            self._saw(size_bytes, wall_ns)
        else:
            self._doubts = _DOUBTS

    def _saw(self, size_bytes: int, cpu_ns: int) -> None:
        if cpu_ns > self._below_ns:
            self._saw_long(size_bytes, cpu_ns)
            return
        self._strikes = max(0, self._strikes - 1)
        self._fast_streak += 1
        self._fast_bytes = max(self._fast_bytes, size_bytes)
        # A size that was long in a bad moment must not take the long way for good.
        again = self._slow_bytes is not None and size_bytes >= self._slow_bytes
        if again and self._fast_streak >= _FAST_AGAIN_AFTER:
            self._slow_bytes = None

    def _saw_long(self, size_bytes: int, cpu_ns: int) -> None:
        self._strikes += _LONG_RUN_STRIKES
        if self._strikes >= _STRIKES_ALLOWED or cpu_ns > _LONG_AT_ONCE * self._below_ns:
            self._slow_bytes = size_bytes if self._slow_bytes is None else min(self._slow_bytes, size_bytes)
            self._fast_streak = self._strikes = 0


class Runner:
    """Runs models for all versions; nothing here knows what a model is."""

    def __init__(self, *, threads: int, max_queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="paritygate-infer")
        self._limit = threads + max_queue
        self._lock = threading.Lock()
        self._pending = 0
        self._threads = threads
        self._mean_ns = 0.0

    @property
    def pending(self) -> int:
        """Runs that wait for a thread or are on one."""
        return self._pending

    async def run(self, times: RunTimes, size_bytes: int, work: Callable[[], T]) -> Timed[T]:
        """Run `work` where it belongs; if the caller is cancelled while it waits, it never runs.

        Raises:
            Exhausted: If too many wait already.
        """
        if times.is_short(size_bytes):
            return self.run_here(times, size_bytes, work)
        timed = await asyncio.wrap_future(self._submit(work))
        times.saw(size_bytes, timed.ended_ns - timed.started_ns, timed.cpu_ns)
        return timed

    def run_here(self, times: RunTimes, size_bytes: int, work: Callable[[], T]) -> Timed[T]:
        """Run `work` on the calling thread, which is for what is known to be short."""
        timed = _timed(work) if times.in_doubt else _clocked(work)
        times.saw(size_bytes, timed.ended_ns - timed.started_ns, timed.cpu_ns)
        return timed

    def _submit(self, work: Callable[[], T]) -> Future[Timed[T]]:
        with self._lock:
            if self._pending >= self._limit:
                raise Exhausted(
                    f"{self._pending} requests are running or waiting, which is the limit; try again later.",
                    retry_after_s=self._retry_after_s(),
                )
            self._pending += 1
        future = self._pool.submit(_timed, work)
        future.add_done_callback(self._finished)
        return future

    def _finished(self, future: Future[Timed[T]]) -> None:
        with self._lock:
            self._pending -= 1
            if not future.cancelled() and future.exception() is None:
                timed = future.result()
                self._mean_ns += _NEWEST_COUNTS * (timed.ended_ns - timed.started_ns - self._mean_ns)

    def _retry_after_s(self) -> int:
        """When about half of what waits now will be done, in whole seconds."""
        seconds = 0.5 * self._pending * self._mean_ns / 1e9 / self._threads
        return min(_LONGEST_RETRY_S, max(1, round(seconds)))

    def close(self) -> None:
        """Let waiting work go and wait for the runs under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _timed(work: Callable[[], T]) -> Timed[T]:
    started_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    result = work()
    return Timed(result, started_ns, time.perf_counter_ns(), time.thread_time_ns() - cpu_ns)


def _clocked(work: Callable[[], T]) -> Timed[T]:
    started_ns = time.perf_counter_ns()
    result = work()
    return Timed(result, started_ns, time.perf_counter_ns(), None)
