"""Queues and batches of one version: who runs next, with whom, and what everybody gets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient import grpc as grpcclient

from paritygate.converter.types import Array, Feeds
from paritygate.serving.backends.base import EmbeddedBackend
from paritygate.serving.errors import Exhausted, InferenceFailed, InvalidArgument, Unavailable
from paritygate.serving.placement import Runner
from paritygate.serving.publish.triton_config import parse_config
from paritygate.serving.scheduling import BatchingExecution, BatchingPolicy, batching_policy
from paritygate.serving.scheduling.gain import BatchGain
from paritygate.serving.scheduling.policy import QueuePolicy
from paritygate.serving.scheduling.queue import NEVER, BatchQueue, Waiting
from paritygate.serving.types import InferRequest, RequestedOutput
from paritygate.serving.validation import CheckedRequest
from support.gateway import running_gateway
from support.onnx_models import slow_model, write_model

# --- the queue, at any time one likes ---


def queue_of(*items: Waiting, **policy: Any) -> BatchQueue:
    queue = BatchQueue(BatchingPolicy(**{"max_batch_size": 8, **policy}))
    for item in items:
        queue.put(item)
    return queue


def item(
    name: str = "", batch: int = 1, kind: str = "a", level: int = 1, since: float = 0, **more: Any
) -> Waiting:
    return Waiting(batch, kind, level, since, payload=name, **more)


def names(items: Sequence[Waiting]) -> str:
    return "".join(entry.payload for entry in items)


def test_what_waits_runs_together_up_to_the_largest_batch() -> None:
    queue = queue_of(*(item(name, 3) for name in "abcd"))
    assert [names(queue.take(0).batch) for _ in range(3)] == ["ab", "cd", ""]
    assert len(queue) == 0


def test_only_equal_shapes_run_together_and_nobody_overtakes() -> None:
    queue = queue_of(item("a"), item("b", kind="other"), item("c"))
    assert [names(queue.take(0).batch) for _ in range(3)] == ["a", "b", "c"]


def test_a_batch_waits_for_more_until_its_oldest_request_has_waited_enough() -> None:
    queue = queue_of(item("a", since=10), item("b", since=50), delay_us=100)
    found = queue.take(60)
    assert (found.batch, found.look_again_us) == ([], 110)
    assert names(queue.take(110).batch) == "ab"


def test_a_full_batch_and_one_that_cannot_grow_do_not_wait() -> None:
    assert names(queue_of(item("a", 4), item("b", 4), delay_us=100).take(0).batch) == "ab"
    assert names(queue_of(item("a", 5), item("b", 4), delay_us=100).take(0).batch) == "a"
    assert names(queue_of(item("a"), item("b", kind="other"), delay_us=100).take(0).batch) == "a"


def test_a_preferred_size_runs_at_once_and_any_size_after_the_delay() -> None:
    preferred = {"preferred": (2, 4), "delay_us": 100}
    assert names(queue_of(*map(item, "abc"), **preferred).take(0).batch) == "ab"
    assert names(queue_of(*map(item, "abcde"), **preferred).take(0).batch) == "abcd"
    assert names(queue_of(item("a"), **preferred).take(0).batch) == ""
    assert names(queue_of(*map(item, "abc"), **preferred).take(100).batch) == "abc"


def test_a_higher_priority_runs_first() -> None:
    queue = queue_of(item("a", level=3), item("b", level=1), item("c", level=2), max_batch_size=1, levels=3)
    assert [names(queue.take(0).batch) for _ in range(3)] == ["b", "c", "a"]


def test_who_waited_too_long_is_refused_or_runs_after_all_others() -> None:
    late = item("late", until_us=10)
    refusing = queue_of(late, item("b"))
    assert refusing.next_end_us() == 10
    assert refusing.expire(9) == []
    assert refusing.expire(10) == [late]
    assert len(refusing) == 1
    delaying = queue_of(item("x", until_us=10), item("b"), max_batch_size=1, policy=QueuePolicy(delays=True))
    assert delaying.expire(10) == []
    assert [names(delaying.take(11).batch) for _ in range(2)] == ["b", "x"]


def test_as_many_wait_as_their_priority_allows() -> None:
    queue = queue_of(levels=2, level_policies={2: QueuePolicy(max_size=1)})
    queue.put(item(level=2))
    with pytest.raises(Exhausted, match="Exceeds maximum queue size: 1 requests of priority 2"):
        queue.put(item(level=2))
    queue.put(item(level=1))
    queue.put(item(level=1))


def test_one_by_one_nobody_waits_for_others() -> None:
    queue = queue_of(item("a"), item("b"), delay_us=1000)
    assert names(queue.take(0, together=False).batch) == "a"


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(1, 8), st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 40)
        ),
        st.tuples(st.just("take"), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(0, 30)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(
    actions=ACTIONS, delays=st.booleans(), delay_us=st.integers(0, 20), preferred=st.sets(st.integers(1, 8))
)
def test_everyone_leaves_the_queue_once_however_they_come_and_go(
    actions: list[Any], delays: bool, delay_us: int, preferred: set[int]
) -> None:
    policy = QueuePolicy(delays=delays)
    queue = queue_of(levels=3, delay_us=delay_us, preferred=tuple(sorted(preferred)), policy=policy)
    now, put, left = 0.0, [], []
    for action, *details in actions:
        if action == "put":
            batch, kind, level, wait = details
            put.append(item(str(len(put)), batch, kind, level, now, until_us=now + wait if wait else NEVER))
            queue.put(put[-1])
        elif action == "take":
            batch_taken = queue.take(now, together=details[0]).batch
            assert sum(entry.batch_size for entry in batch_taken) <= 8
            assert len({entry.kind for entry in batch_taken}) <= 1
            left += batch_taken
        elif action == "remove" and details[0] < len(put) and queue.remove(put[details[0]]):
            left.append(put[details[0]])
        elif action == "wait":
            now += details[0]
            left += queue.expire(now)
    now += 1_000
    left += queue.expire(now)
    while found := queue.take(now).batch:
        left += found
    assert sorted(map(id, left)) == sorted(map(id, put))
    assert len(queue) == 0


# --- what a config asks for ---


def policy_of(text: str) -> BatchingPolicy | None:
    return batching_policy(parse_config(f'name: "m" backend: "onnxruntime" max_batch_size: 8 {text}'))


def test_a_config_that_asks_for_nothing_needs_no_queue() -> None:
    assert policy_of("") is None


def test_a_config_is_read_as_triton_reads_it() -> None:
    policy = policy_of(
        """
        instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_CPU } ]
        dynamic_batching {
          preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 50 preserve_ordering: true
          priority_levels: 3 default_priority_level: 2
          default_queue_policy { max_queue_size: 7 }
          priority_queue_policy { key: 1 value {
            timeout_action: DELAY default_timeout_microseconds: 100 allow_timeout_override: true } }
        }"""
    )
    assert policy == BatchingPolicy(
        8, (4, 8), 50, True, 3, 2, QueuePolicy(max_size=7), {1: QueuePolicy(True, 100, True)}, 3
    )
    assert [policy.level_of({"priority": n}) for n in (0, 1, 3, 4)] == [2, 1, 3, 2]
    assert policy.level_of({}) == 2
    assert [policy.timeout_us_of(1, {"timeout": n}) for n in (0, 20, 200)] == [100, 20, 100]
    assert policy.timeout_us_of(2, {"timeout": 20}) == 0, "as for Triton: that level sets no limit to shorten"
    for name in ("priority", "timeout"):
        for wrong in (-1, "high", True, 1.5):
            with pytest.raises(InvalidArgument, match=f"parameter '{name}' is .* whole number"):
                policy.timeout_us_of(policy.level_of({name: wrong}), {name: wrong})


# --- whether it pays ---


def test_requests_run_together_as_long_as_it_takes_no_longer() -> None:
    gain = BatchGain()
    for _ in range(8):
        assert not gain.wants_together, "first it is to be known what one takes alone"
        gain.saw(1, 1, 100)
    for _ in range(8):
        assert gain.wants_together
        gain.saw(4, 4, 440)
    assert not gain.wants_together
    for _ in range(1_100):
        if gain.wants_together:
            gain.saw(4, 4, 200)  # the machine has changed, and that is noticed
        else:
            gain.saw(1, 1, 100)
    assert gain.pays
    assert gain.wants_together


# --- the execution ---


class Doubling(EmbeddedBackend):
    """`y = 2 x`; what else it does is told by what it is given."""

    computes_here = True

    def __init__(
        self, gate: threading.Event | None = None, *, leak: float = 0.0, rows: int | None = None
    ) -> None:
        self.gate = gate
        self.leak = leak
        self.rows = rows
        self.runs: list[list[float]] = []

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
        x = feeds["x"]
        self.runs.append(x.ravel().tolist())
        if self.gate is not None:
            self.gate.wait(20)
        if (x < 0).any():
            raise RuntimeError("negative")
        y = 2 * x + self.leak * (len(x) - 1)
        return {"y": y[: self.rows] if self.rows and len(x) > 1 else y, "z": -x}

    @classmethod
    def open(cls, source: Any) -> EmbeddedBackend:
        raise NotImplementedError

    signature = runtime = property(lambda self: None)

    def attest(self, bundle: Any, certificate: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to let go of."""


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner(threads=2, max_queue=1_000)
    yield made
    made.close()


def execution(runner: Runner, backend: EmbeddedBackend, **policy: Any) -> BatchingExecution:
    policy = {"max_batch_size": 8, "instances": 1, **policy}
    return BatchingExecution(
        backend, runner.lane(0), runner, BatchingPolicy(**policy), "version 1 of model 'm'"
    )


def checked(*values: float) -> CheckedRequest:
    x = np.array(values, np.float32).reshape(-1, 1)
    return CheckedRequest({"x": x}, [RequestedOutput("y")], len(values), x.nbytes)


async def ask(
    execution: BatchingExecution, *values: float, outputs: Sequence[str] = ("y",), **parameters: int
) -> list[Any]:
    request = InferRequest("m", "", [], parameters=parameters)
    timed = await execution.run(checked(*values), list(outputs), request)
    return [array.ravel().tolist() for array in timed.result]


async def trust(execution: BatchingExecution) -> None:
    """Have it learn what one takes alone, and compare its first batches."""
    for _ in range(8):
        await ask(execution, 1.0)
    for _ in range(8):
        await asyncio.gather(*(ask(execution, float(n)) for n in range(3)))


async def test_everyone_gets_the_own_part_of_a_batch(runner: Runner) -> None:
    backend = Doubling()
    batching = execution(runner, backend)
    await trust(batching)
    backend.runs.clear()
    answers = await asyncio.gather(
        ask(batching, 1.0),
        ask(batching, 2.0, 3.0),
        ask(batching, 4.0, outputs=("z", "y")),
        ask(batching, 5.0, outputs=("z",)),
    )
    assert answers == [[[2.0]], [[4.0, 6.0]], [[-4.0], [8.0]], [[-5.0]]]
    assert backend.runs == [[1.0], [2.0, 3.0, 4.0, 5.0]]
    assert runner.pending == 0


async def test_one_bad_request_does_not_fail_the_others_of_its_batch(runner: Runner) -> None:
    batching = execution(runner, Doubling())
    await trust(batching)
    answers = await asyncio.gather(
        *(ask(batching, value) for value in (1.0, 2.0, -3.0, 4.0)), return_exceptions=True
    )
    assert answers[:2] + answers[3:] == [[[2.0]], [[4.0]], [[8.0]]]
    assert isinstance(answers[2], InferenceFailed)
    assert batching.puts_together


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        (Doubling(leak=0.5), "another in a batch than alone"),
        (Doubling(rows=1), r"shape \[1, 1\] for . items"),
    ],
    ids=["answers depend on neighbours", "no row for each item"],
)
async def test_a_model_that_answers_otherwise_in_a_batch_never_batches(
    runner: Runner, caplog: pytest.LogCaptureFixture, backend: Doubling, fault: str
) -> None:
    batching = execution(runner, backend)
    for _ in range(8):
        await ask(batching, 1.0)
    for _ in range(5):
        answers = await asyncio.gather(*(ask(batching, float(n)) for n in range(4)))
        assert answers == [[[2.0 * n]] for n in range(4)], "what was compared is answered as it is alone"
    assert not batching.puts_together
    (record,) = [r for r in caplog.records if "one by one" in r.message]
    assert record.message.startswith("version 1 of model 'm' runs")
    assert __import__("re").search(fault, record.message)


async def test_a_cancelled_request_leaves_the_queue_and_never_runs(runner: Runner) -> None:
    gate = threading.Event()
    backend = Doubling(gate)
    batching = execution(runner, backend)
    asked = [asyncio.ensure_future(ask(batching, float(n))) for n in range(3)]
    await asyncio.sleep(0.05)
    asked[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await asked[0] == [[0.0]]
    assert await asked[2] == [[4.0]]
    assert backend.runs == [[0.0], [2.0]]
    assert runner.pending == 0


async def test_who_waits_too_long_is_told_while_the_run_before_goes_on(runner: Runner) -> None:
    gate = threading.Event()
    policy = QueuePolicy(timeout_us=20_000, override=True)
    batching = execution(runner, Doubling(gate), policy=policy)
    first = asyncio.ensure_future(ask(batching, 1.0))
    await asyncio.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="Request timeout expired: it waited"):
        await ask(batching, 2.0, timeout=5_000)
    assert time.monotonic() - began < 10
    assert not first.done()
    gate.set()
    assert await first == [[2.0]]


async def test_instances_bound_how_many_run_at_a_moment(runner: Runner) -> None:
    gate = threading.Event()
    backend = Doubling(gate)
    batching = execution(runner, backend, instances=2, max_batch_size=1)
    asked = [asyncio.ensure_future(ask(batching, float(n))) for n in range(5)]
    await asyncio.sleep(0.1)
    assert len(backend.runs) == 2
    gate.set()
    assert await asyncio.gather(*asked) == [[[2.0 * n]] for n in range(5)]


async def test_answers_keep_their_order_where_the_config_asks_for_it(runner: Runner) -> None:
    class Slower(Doubling):
        def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
            time.sleep(0.2 if feeds["x"][0, 0] == 0 else 0.0)
            return super().run(feeds, outputs)

    for keeps_order, expected in ((False, [1, 2, 0]), (True, [0, 1, 2])):
        batching = execution(runner, Slower(), instances=2, max_batch_size=1, keeps_order=keeps_order)
        order: list[int] = []

        async def one(n: int, batching: BatchingExecution = batching, order: list[int] = order) -> None:
            await ask(batching, float(n))
            order.append(n)

        await asyncio.gather(*(one(n) for n in range(3)))
        assert order == expected


async def test_many_requests_of_all_kinds_each_get_their_own_answer(runner: Runner) -> None:
    batching = execution(runner, Doubling(), instances=2, levels=2, delay_us=200, preferred=(4,))
    rng = np.random.default_rng(0)

    async def one(n: int) -> None:
        values = [float(n + k) for k in range(rng.integers(1, 4))]
        asked = asyncio.ensure_future(ask(batching, *values, priority=int(rng.integers(0, 3))))
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait((asked,))
        else:
            assert await asked == [[2 * value for value in values]]

    for _ in range(20):
        await asyncio.gather(*(one(n) for n in range(40)))
    assert runner.pending == 0


# --- through the gateway, asked by Triton's own client ---


def test_a_priority_reorders_the_queue_and_statistics_count_batches(repository: Path, tmp_path: Path) -> None:
    batching = (
        "instance_group [ { count: 1 } ] dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    )
    write_model(repository, "slow", slow_model(300), extra=batching)
    x = np.eye(256, dtype=np.float32)
    order: list[int] = []
    with (
        running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway,
        grpcclient.InferenceServerClient(gateway.grpc) as client,
    ):
        tensor = grpcclient.InferInput("x", [256, 256], "FP32")
        tensor.set_data_from_numpy(x)

        def asked(number: int, priority: int) -> None:
            def done(result: Any, error: Any) -> None:
                assert error is None, error
                np.testing.assert_array_equal(result.as_numpy("y"), x)
                order.append(number)

            client.async_infer("slow", [tensor], done, priority=priority)

        for number in range(6):
            asked(number, priority=2)
        gateway.wait(lambda: len(order) >= 1)
        asked(99, priority=1)
        gateway.wait(lambda: len(order) == 7)
        assert order.index(99) < 6, order
        (stats,) = gateway.ask("GET", "/v2/models/slow/stats").json["model_stats"]
        assert stats["inference_count"] == 7
