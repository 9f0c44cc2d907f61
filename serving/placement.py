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
        run_items: Items of all requests that ran together, in the answer that stands for the run; 0 in the others
            of that run, and None where the request ran by itself.
    """

    __slots__ = ("cpu_ns", "ended_ns", "result", "run_items", "started_ns")

    def __init__(
        self,
        result: T,
        started_ns: int,
        ended_ns: int,
        cpu_ns: int | None,
        run_items: int | None = None,
    ) -> None:
        self.result = result
        self.started_ns = started_ns
        self.ended_ns = ended_ns
        self.cpu_ns = cpu_ns
        self.run_items = run_items


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

    def saw_short(self, size_bytes: int, wall_ns: int) -> bool:
        """Take note of a run as short as all before it of its size; False, with nothing noted, if it was not."""
        if wall_ns > self._below_ns or self._slow_bytes is not None or self._strikes or self._doubts:
            return False
        self._fast_streak += 1
        if size_bytes > self._fast_bytes:
            self._fast_bytes = size_bytes
        return True

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
    """Runs models for all versions; nothing here knows what a model is.

    Every version has a lane with threads of its own, so that the runs of a slow one never stand before those of a
    fast one; how many requests wait is counted over all lanes together.
    """

    def __init__(self, *, threads: int, max_queue: int) -> None:
        self.threads = threads
        self._limit = threads + max_queue
        self._lock = threading.Lock()
        self._pending = 0
        self._mean_ns = 0.0
        self._lanes: set[Lane] = set()

    @property
    def pending(self) -> int:
        """Requests that wait for a thread or are on one."""
        return self._pending

    def lane(self, below_us: float) -> Lane:
        """Threads for one version, none of them started yet.

        Args:
            below_us: Runs known to be shorter than this, in microseconds, need no thread; 0 always takes one.
        """
        lane = Lane(self, below_us)
        self._lanes.add(lane)
        return lane

    def take_place(self) -> None:
        """Count one more request that waits or runs.

        Raises:
            Exhausted: If too many do already.
        """
        with self._lock:
            if self._pending >= self._limit:
                raise Exhausted(
                    f"{self._pending} requests are running or waiting, which is the limit; try again later.",
                    retry_after_s=self._retry_after_s(),
                )
            self._pending += 1

    def leave_place(self, run_ns: int | None = None) -> None:
        """Count one less, after a run of so many nanoseconds or without one."""
        with self._lock:
            self._pending -= 1
            if run_ns is not None:
                self._mean_ns += _NEWEST_COUNTS * (run_ns - self._mean_ns)

    def _retry_after_s(self) -> int:
        """When about half of what waits now will be done, in whole seconds."""
        seconds = 0.5 * self._pending * self._mean_ns / 1e9 / self.threads
        return min(_LONGEST_RETRY_S, max(1, round(seconds)))

    def forget(self, lane: Lane) -> None:
        """A lane is closed."""
        self._lanes.discard(lane)

    def close(self) -> None:
        """Let waiting work go and wait for the runs under way."""
        for lane in list(self._lanes):
            lane.close()


class Lane:
    """The threads of one version, and what is known about the length of its runs.

    Attributes:
        is_short: Whether a run with so many bytes of input is expected to be short.
    """

    def __init__(self, runner: Runner, below_us: float) -> None:
        self._runner = runner
        self._times = RunTimes(below_us)
        self.is_short = self._times.is_short
        self._pool = ThreadPoolExecutor(runner.threads, thread_name_prefix="paritygate-infer")

    def run_here(self, size_bytes: int, work: Callable[[], T]) -> Timed[T]:
        """Run `work` on the calling thread, which is for what is known to be short."""
        times = self._times
        if times.in_doubt:
            timed = _timed(work)
        else:
            started_ns = time.perf_counter_ns()
            result = work()
            timed = Timed(result, started_ns, time.perf_counter_ns(), None)
        wall_ns = timed.ended_ns - timed.started_ns
        if not times.saw_short(size_bytes, wall_ns):
            times.saw(size_bytes, wall_ns, timed.cpu_ns)
        return timed

    async def run(self, size_bytes: int, work: Callable[[], T]) -> Timed[T]:
        """Run `work` on a thread; if the caller is cancelled while it waits, it never runs.

        Raises:
            Exhausted: If too many wait already.
        """
        self._runner.take_place()
        future = self._pool.submit(_timed, work)
        future.add_done_callback(self._left)
        timed = await asyncio.wrap_future(future)
        self._times.saw(size_bytes, timed.ended_ns - timed.started_ns, timed.cpu_ns)
        return timed

    async def run_placed(self, work: Callable[[], T]) -> Timed[T]:
        """Run `work` on a thread for requests that have their places already."""
        return await asyncio.wrap_future(self._pool.submit(_timed, work))

    def saw(self, size_bytes: int, timed: Timed[T]) -> None:
        """Take note of the length of a run that was one request's alone."""
        self._times.saw(size_bytes, timed.ended_ns - timed.started_ns, timed.cpu_ns)

    def _left(self, future: Future[Timed[T]]) -> None:
        well = not future.cancelled() and future.exception() is None
        self._runner.leave_place(future.result().ended_ns - future.result().started_ns if well else None)

    def close(self) -> None:
        """Let waiting work go and wait for the runs under way; no thread is left."""
        self._runner.forget(self)
        self._pool.shutdown(wait=True, cancel_futures=True)


def _timed(work: Callable[[], T]) -> Timed[T]:
    started_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    result = work()
    return Timed(result, started_ns, time.perf_counter_ns(), time.thread_time_ns() - cpu_ns)
