"""Small parts of the gateway by themselves: settings, placement, statistics, classification, encodings, config."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.serving.classification import best_classes
from paritygate.serving.config import Settings
from paritygate.serving.errors import Exhausted, InvalidArgument
from paritygate.serving.facades.bodies import Budget, accepted_encoding, compress, decompress
from paritygate.serving.facades.v2_infer import check_no_reserved_headers, header_length_of
from paritygate.serving.placement import Runner, RunTimes
from paritygate.serving.statistics import BUCKETS_US, Timings, VersionStatistics
from paritygate.serving.types import InferTensor, Provenance, Route, answer_facts

# --- settings ---


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"http_port": -1}, "http_port is -1; give a port from 1 to 65535, or 0"),
        ({"http_port": 9000, "grpc_port": 9000}, "grpc_port and http_port are both 9000"),
        ({"poll_interval_s": 0.0}, "poll_interval_s is 0.0; give at least 0.01"),
        ({"poll_interval_s": float("nan")}, "poll_interval_s is nan"),
        ({"max_body_bytes": 10}, "max_body_bytes is 10; give at least 1024"),
        ({"default_version": "newest"}, "default_version is 'newest'; give one of routed, latest"),
        ({"reserved_headers": "keep"}, "reserved_headers is 'keep'; give one of refuse, strip"),
        ({"load_models": ("a",)}, "load_models is given but model_control_mode is none"),
    ],
)
def test_setting_out_of_range_is_told_by_name(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Settings(Path(), **given)


def test_free_ports_may_be_asked_for_several_times() -> None:
    assert Settings(Path(), http_port=0, grpc_port=0, metrics_port=0, admin_port=0).http_port == 0


# --- placement ---


def seen(times: RunTimes, size: int, microseconds: int, count: int = 1) -> None:
    for _ in range(count):
        times.saw(size, 0, microseconds * 1000)


def test_model_that_nothing_is_known_of_takes_a_thread() -> None:
    assert not RunTimes(200).is_short(0)


def test_model_seen_to_be_short_needs_no_thread() -> None:
    times = RunTimes(200)
    seen(times, 100, 50, count=20)
    assert times.is_short(100)
    assert not times.is_short(101), "a larger input than was ever tried"


@pytest.mark.parametrize(("microseconds", "count"), [(5_000, 3), (20_000, 1)], ids=["repeatedly", "very"])
def test_long_runs_send_their_size_back_to_the_threads(microseconds: int, count: int) -> None:
    times = RunTimes(200)
    seen(times, 100, 50, count=20)
    seen(times, 80, microseconds, count=count)
    assert not times.is_short(80)
    assert not times.is_short(40)
    seen(times, 40, 50, count=20)
    assert times.is_short(40)
    assert not times.is_short(80)


def test_one_long_run_may_be_the_garbage_collectors() -> None:
    times = RunTimes(200)
    seen(times, 100, 50, count=20)
    for _ in range(5):
        seen(times, 100, 5_000)
        seen(times, 100, 50, count=8)
    assert times.is_short(100)


def test_many_short_runs_after_long_ones_are_trusted_again() -> None:
    times = RunTimes(200)
    seen(times, 100, 20_000)
    seen(times, 100, 50, count=63)
    assert not times.is_short(100)
    seen(times, 100, 50)
    assert times.is_short(100)


def test_cpu_time_is_asked_for_after_a_run_that_was_long_on_the_wall_only() -> None:
    times = RunTimes(200)
    seen(times, 100, 50, count=20)
    times.saw(100, 150_000, None)
    assert not times.in_doubt, "what is short on the wall is short"
    times.saw(100, 5_000_000, None)
    assert times.in_doubt
    assert times.is_short(100), "the machine may have been busy"
    times.saw(100, 5_000_000, 50_000)
    assert times.is_short(100), "it was"
    times.saw(100, 20_000_000, 20_000_000)
    assert not times.is_short(100)


def test_doubts_end_with_the_runs_that_were_measured() -> None:
    times = RunTimes(200)
    times.saw(100, 5_000_000, None)
    for _ in range(64):
        assert times.in_doubt
        times.saw(100, 5_000_000, 50_000)
    assert not times.in_doubt


def test_zero_microseconds_always_takes_a_thread() -> None:
    times = RunTimes(0)
    seen(times, 0, 1, count=100)
    assert not times.is_short(0)


async def test_runs_beyond_the_limit_are_refused_and_counted_down_again() -> None:
    runner = Runner(threads=1, max_queue=1)
    gate = threading.Event()
    lane = runner.lane(0)
    waiting = [asyncio.ensure_future(lane.run(0, gate.wait)) for _ in range(2)]
    await asyncio.sleep(0.02)
    with pytest.raises(Exhausted, match="2 requests are running or waiting"):
        await lane.run(0, gate.wait)
    gate.set()
    assert [timed.result for timed in await asyncio.gather(*waiting)] == [True, True]
    assert runner.pending == 0
    runner.close()


async def test_cancelled_run_that_still_waits_never_runs() -> None:
    runner = Runner(threads=1, max_queue=5)
    gate = threading.Event()
    ran: list[int] = []
    lane = runner.lane(0)
    first = asyncio.ensure_future(lane.run(0, gate.wait))
    second = asyncio.ensure_future(lane.run(0, lambda: ran.append(1)))
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.sleep(0.02)
    assert runner.pending == 1
    gate.set()
    await first
    runner.close()
    assert ran == []


async def test_a_slow_version_does_not_stand_before_a_fast_one() -> None:
    runner = Runner(threads=1, max_queue=50)
    gate = threading.Event()
    slow, fast = runner.lane(0), runner.lane(0)
    waiting = [asyncio.ensure_future(slow.run(0, gate.wait)) for _ in range(20)]
    await asyncio.sleep(0.02)
    timed = await asyncio.wait_for(fast.run(0, lambda: "answer"), 10)
    assert timed.result == "answer"
    assert runner.pending == 20
    gate.set()
    await asyncio.gather(*waiting)
    runner.close()


async def test_no_thread_is_left_of_a_closed_lane() -> None:
    runner = Runner(threads=3, max_queue=50)
    before = threading.active_count()
    lane = runner.lane(0)
    await asyncio.gather(*(lane.run(0, lambda: time.sleep(0.01)) for _ in range(9)))
    assert threading.active_count() > before
    lane.close()
    assert threading.active_count() == before
    runner.close()


# --- statistics ---


def test_statistics_add_up() -> None:
    statistics = VersionStatistics()
    statistics.succeeded(3, Timings(queue=1, compute_input=2, compute_infer=3, compute_output=4))
    statistics.succeeded(1, Timings(queue=10, compute_input=20, compute_infer=30, compute_output=40))
    statistics.failed("BACKEND", 7)
    assert (statistics.inference_count, statistics.execution_count) == (4, 2)
    assert (statistics.success.count, statistics.success.ns) == (2, 110)
    assert (statistics.fail.count, statistics.failures) == (1, {"BACKEND": 1})
    assert {size: batch.compute_infer.ns for size, batch in statistics.batches.items()} == {3: 3, 1: 30}
    assert sum(statistics.buckets) == 2


@pytest.mark.parametrize(
    ("microseconds", "bucket"), [(100, 0), (100.1, 1), (250, 1), (10**9, len(BUCKETS_US))]
)
def test_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed(
    microseconds: float, bucket: int
) -> None:
    statistics = VersionStatistics()
    statistics.succeeded(1, Timings(0, 0, int(microseconds * 1000), 0))
    assert statistics.buckets.index(1) == bucket


# --- classification ---


def classes(array: np.ndarray, datatype: str, count: int, *, batched: bool = False) -> list[Any]:
    return best_classes(InferTensor("y", datatype, array), count, labels=(), batched=batched).array.tolist()


@pytest.mark.parametrize(
    ("datatype", "values", "want"),
    [
        ("UINT8", np.array([0, 255, 7], np.uint8), ["255.000000:1", "7.000000:2"]),
        ("INT64", np.array([-(2**63), 5, 2**62]), [f"{float(2**62):f}:2", "5.000000:1"]),
        ("BOOL", np.array([False, True, False]), ["1.000000:1", "0.000000:0"]),
        ("FP16", np.array([1, np.nan, 2], np.float16), ["2.000000:2", "1.000000:0"]),
        ("FP32", np.array([-np.inf, np.inf, np.nan], np.float32), ["inf:1", "-inf:0"]),
    ],
)
def test_best_classes_of_every_kind_of_number(datatype: str, values: np.ndarray, want: list[str]) -> None:
    assert classes(values, datatype, 2) == want


def test_best_classes_count_through_the_whole_row() -> None:
    grid = np.array([[[1, 5], [10, 4]], [[4, 3], [2, 1]]], np.float32)
    assert classes(grid, "FP32", 1, batched=True) == [["10.000000:2"], ["4.000000:0"]]


@pytest.mark.parametrize(
    ("array", "datatype", "match"),
    [
        (np.array(["a"], dtype=object), "BYTES", "is BYTES"),
        (np.zeros((0, 4), np.float32), "FP32", "no values to classify"),
    ],
)
def test_what_cannot_be_classified_is_refused(array: np.ndarray, datatype: str, match: str) -> None:
    with pytest.raises(InvalidArgument, match=f"output 'y'.*{match}"):
        classes(array, datatype, 1)


# --- headers and bodies ---


@pytest.mark.parametrize(
    ("header", "want"),
    [
        (None, ""),
        (b"", ""),
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate", "gzip"),
        (b"gzip;q=0.2, deflate;q=0.8", "deflate"),
        (b"gzip;q=0, deflate;q=0", ""),
        (b"identity, gzip;q=0.5", ""),
        (b"br", ""),
        (b"*", "gzip"),
        (b"GZIP;q=0.5", "gzip"),
        (b"gzip;q=odd", ""),
    ],
)
def test_answer_takes_the_encoding_that_the_client_likes_best(header: bytes | None, want: str) -> None:
    assert accepted_encoding(header) == want


@pytest.mark.parametrize("size", [10, 5_000, 200_000])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_answer_is_read_back(encoding: str, size: int) -> None:
    body = np.random.default_rng(0).bytes(size)
    packed, used = await compress(body, encoding)
    assert used == ("" if size < 1024 else encoding)
    assert (decompress(packed, used, size) if used else packed) == body


def test_bodies_of_all_requests_together_are_bounded() -> None:
    budget = Budget(100)
    budget.take(60)
    with pytest.raises(Exhausted, match="hold 60 bytes of at most 100"):
        budget.take(41)
    budget.give_back(60)
    budget.take(100)


@pytest.mark.parametrize(("value", "want"), [(None, None), (b"0", 0), (b" 7 ", 7), (b"10", 10)])
def test_header_length_is_read(value: bytes | None, want: int | None) -> None:
    assert header_length_of(value, 10) == want


@pytest.mark.parametrize("value", [b"11", b"-1", b"+1", b"1.0", b"\xb2", b"9" * 19])
def test_header_length_that_does_not_fit_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match="Inference-Header-Content-Length is"):
        header_length_of(value, 10)


def test_reserved_header_is_refused_by_name() -> None:
    check_no_reserved_headers([b"x-pgx", b"content-type"])
    with pytest.raises(InvalidArgument, match="header 'x-pg-anything' is reserved"):
        check_no_reserved_headers([b"accept", b"x-pg-anything"])


def test_facts_about_an_answer() -> None:
    facts = dict(answer_facts(Route(7, "everyone", 42), Provenance("proven", "sha256:ab")))
    assert facts == {
        "x-pg-model-version": "7",
        "x-pg-rule": "everyone",
        "x-pg-bucket": "0042",
        "x-pg-proof": "proven",
        "x-pg-bundle": "sha256:ab",
    }
    assert "x-pg-bucket" not in dict(answer_facts(Route(1, "default"), Provenance("unproven")))


async def test_event_loop_is_free_while_a_run_is_on_a_thread() -> None:
    runner = Runner(threads=1, max_queue=1)
    running = asyncio.ensure_future(runner.lane(0).run(0, lambda: time.sleep(0.2)))
    ticks = 0
    while not running.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks >= 5
    runner.close()
