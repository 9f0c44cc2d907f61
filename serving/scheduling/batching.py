"""Runs the requests of one version from a queue: together where that is right and pays, else one by one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from paritygate.converter.parity import compare_outputs
from paritygate.converter.types import Array
from paritygate.serving.errors import ServingError, Unavailable
from paritygate.serving.execution import Execution
from paritygate.serving.placement import Lane, Runner, Timed
from paritygate.serving.scheduling.gain import BatchGain
from paritygate.serving.scheduling.policy import BatchingPolicy
from paritygate.serving.scheduling.queue import NEVER, BatchQueue, Waiting
from paritygate.serving.types import InferRequest, Parameter
from paritygate.serving.validation import CheckedRequest

if TYPE_CHECKING:
    from paritygate.serving.backends.base import EmbeddedBackend

log = logging.getLogger("paritygate.serving")

_COMPARED_RUNS = 8
"""Runs of several requests whose answers are compared with those of each alone, before batches are trusted."""

Outcome = list[Array] | Exception


@dataclass(eq=False, slots=True)
class _Request:
    """What a request in the queue asks for, and where its answer goes."""

    checked: CheckedRequest
    outputs: Sequence[str]
    answer: asyncio.Future[Timed[list[Array]]]


@dataclass(slots=True)
class _Run:
    """What came of a run: an outcome for each request, whether they ran together, and what speaks against that."""

    outcomes: list[Outcome]
    together: bool = False
    fault: str = ""


class BatchingExecution(Execution):
    """The requests of one version wait in a queue; so many run at a moment as the config has instances."""

    def __init__(
        self, backend: EmbeddedBackend, lane: Lane, runner: Runner, policy: BatchingPolicy, name: str
    ) -> None:
        self._backend = backend
        self._lane = lane
        self._runner = runner
        self._policy = policy
        self._name = name
        self._queue = BatchQueue(policy)
        self._gain = BatchGain()
        self._free = policy.instances or runner.threads
        self._batches = policy.max_batch_size > 1
        self._compared = 0
        self._busy: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._before: asyncio.Event | None = None

    @property
    def puts_together(self) -> bool:  # type: ignore[override]
        """Whether requests run together now: the config asks for it, answers stay the same, and it pays."""
        return self._batches and self._gain.pays

    def run_at_once(self, checked: CheckedRequest, outputs: Sequence[str]) -> Timed[list[Array]] | None:
        """Run a short request here if none waits before it: a queue would take longer than the run."""
        if self._busy or len(self._queue) or not self._lane.is_short(checked.size_bytes):
            return None
        return self._lane.run_here(checked.size_bytes, lambda: self._backend.infer(checked.feeds, outputs))

    async def run(
        self, checked: CheckedRequest, outputs: Sequence[str], request: InferRequest
    ) -> Timed[list[Array]]:
        """Wait in the queue and for the run; whoever is cancelled while it waits never runs."""
        item = self._waiting(checked, outputs, request.parameters)
        self._runner.take_place()
        run_ns = None
        try:
            self._queue.put(item)
            self._go_on()
            timed: Timed[list[Array]] = await item.payload.answer
        except asyncio.CancelledError:
            self._queue.remove(item)
            raise
        else:
            run_ns = timed.ended_ns - timed.started_ns
            return timed
        finally:
            self._runner.leave_place(run_ns)

    def _waiting(
        self, checked: CheckedRequest, outputs: Sequence[str], parameters: Mapping[str, Parameter]
    ) -> Waiting:
        level = self._policy.level_of(parameters)
        timeout_us = self._policy.timeout_us_of(level, parameters)
        now_us = _now_us()
        return Waiting(
            checked.batch_size,
            tuple((name, array.dtype, array.shape[1:]) for name, array in sorted(checked.feeds.items())),
            level,
            now_us,
            now_us + timeout_us if timeout_us else NEVER,
            _Request(checked, outputs, asyncio.get_running_loop().create_future()),
        )

    def _go_on(self) -> None:
        """Begin the runs that may begin now, refuse what waited too long, and look again in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_us = _now_us()
        for late in self._queue.expire(now_us):
            _refuse(late, now_us)
        look_again_us = self._queue.next_end_us()
        while self._free:
            found = self._queue.take(now_us, together=self._batches and self._gain.wants_together)
            if not found.batch:
                look_again_us = min(look_again_us, found.look_again_us)
                break
            self._begin([item.payload for item in found.batch])
        if look_again_us < NEVER and len(self._queue):
            delay_s = max(0.0, look_again_us - now_us) / 1e6
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    def _begin(self, requests: list[_Request]) -> None:
        self._free -= 1
        before, done = self._before, asyncio.Event()
        if self._policy.keeps_order:
            self._before = done
        task = asyncio.get_running_loop().create_task(self._run(requests, before, done))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _run(self, requests: list[_Request], before: asyncio.Event | None, done: asyncio.Event) -> None:
        compare = len(requests) > 1 and self._compared < _COMPARED_RUNS
        try:
            timed = await self._lane.run_placed(lambda: _compute(self._backend, requests, compare=compare))
            self._take_note(requests, timed, compared=compare)
            if before is not None:
                await before.wait()
            _hand_out(requests, timed)
        except Exception as error:  # noqa: BLE001 - each request gets it, where it is told or logged
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
        finally:
            done.set()
            self._free += 1
            self._go_on()

    def _take_note(self, requests: list[_Request], timed: Timed[_Run], *, compared: bool) -> None:
        if timed.result.fault and self._batches:
            self._batches = False
            log.warning("%s runs its requests one by one from now on: %s", self._name, timed.result.fault)
        if compared:
            self._compared += 1
            return  # it ran everything twice
        if len(requests) == 1:
            self._lane.saw(requests[0].checked.size_bytes, timed)
        before = self._gain.pays
        num_items = sum(request.checked.batch_size for request in requests)
        self._gain.saw(len(requests), num_items, timed.ended_ns - timed.started_ns)
        if self._batches and before != self._gain.pays:
            pays = "less time an item, so they do" if self._gain.pays else "more time an item, so they do not"
            log.info("%s: requests that run together take %s", self._name, pays)

    async def close(self) -> None:
        """End the threads; nothing waits any more when this is called."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.to_thread(self._lane.close)


def _now_us() -> float:
    return time.perf_counter_ns() / 1000


def _refuse(item: Waiting, now_us: float) -> None:
    """A wait that ended: Triton's own words come first, as clients look for them."""
    if not item.payload.answer.done():
        waited_us = now_us - item.since_us
        item.payload.answer.set_exception(
            Unavailable(
                f"Request timeout expired: it waited {waited_us:.0f} us, more than its priority allows."
            )
        )


def _hand_out(requests: list[_Request], timed: Timed[_Run]) -> None:
    """Give each request its own part of the run; the first one stands for the run in the statistics."""
    run_items = sum(request.checked.batch_size for request in requests) if timed.result.together else None
    for request, outcome in zip(requests, timed.result.outcomes, strict=True):
        if request.answer.done():
            continue  # its client is gone
        if isinstance(outcome, Exception):
            request.answer.set_exception(outcome)
        else:
            own = Timed(outcome, timed.started_ns, timed.ended_ns, timed.cpu_ns, run_items)
            request.answer.set_result(own)
            run_items = None if run_items is None else 0


def _compute(backend: EmbeddedBackend, requests: list[_Request], *, compare: bool) -> _Run:
    """Run requests together, or each alone where that fails or its answers are to be compared."""
    if len(requests) == 1:
        return _Run([_alone(backend, requests[0])])
    try:
        together = _together(backend, requests)
    except _NotBatched as error:
        return _Run([_alone(backend, request) for request in requests], fault=str(error))
    except ServingError:
        # One of them may be at fault; the others are not to fail with it.
        return _Run([_alone(backend, request) for request in requests])
    if not compare:
        return _Run(list(together), together=True)
    alone = [_alone(backend, request) for request in requests]
    return _Run(alone, fault=_difference(requests, alone, together))


def _alone(backend: EmbeddedBackend, request: _Request) -> Outcome:
    try:
        return backend.infer(request.checked.feeds, request.outputs)
    except ServingError as error:
        return error


class _NotBatched(Exception):
    """An output of a batch does not have one row for each item."""


def _together(backend: EmbeddedBackend, requests: list[_Request]) -> list[list[Array]]:
    names = list(dict.fromkeys(name for request in requests for name in request.outputs))
    feeds = {
        name: np.concatenate([request.checked.feeds[name] for request in requests])
        for name in requests[0].checked.feeds
    }
    results = dict(zip(names, backend.infer(feeds, names), strict=True))
    ends = list(accumulate((request.checked.batch_size for request in requests), initial=0))
    for name, array in results.items():
        if not array.ndim or array.shape[0] != ends[-1]:
            raise _NotBatched(f"output '{name}' has shape {list(array.shape)} for {ends[-1]} items")
    return [
        [results[name][begin:end] for name in request.outputs]
        for request, (begin, end) in zip(requests, pairwise(ends), strict=True)
    ]


def _difference(requests: list[_Request], alone: list[Outcome], together: list[list[Array]]) -> str:
    """How an answer in a batch differs from the same alone by more than rounding; empty if none does."""
    for request, single, batched in zip(requests, alone, together, strict=True):
        if isinstance(single, Exception):
            return f"a request fails alone and not in a batch: {single}"
        names = list(request.outputs)
        figures = compare_outputs(
            dict(zip(names, single, strict=True)), dict(zip(names, batched, strict=True)), optimized=True
        )
        for figure in figures:
            if figure.verdict != "pass":
                return f"output '{figure.output}' is another in a batch than alone ({figure.reason})"
    return ""
