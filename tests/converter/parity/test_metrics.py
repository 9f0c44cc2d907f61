"""Each figure on NaN, infinities, empty and 0-d arrays, whole numbers, bools, and values that overflow."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter.parity import metrics
from paritygate.converter.parity.metrics import ShapeMismatch
from paritygate.converter.types import Array

INF, NAN = math.inf, math.nan
MAX16 = 65504.0


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        pytest.param(f32(1, 2), f32(1, 2.5), 0.5, id="float"),
        pytest.param(f32(NAN), f32(NAN), 0.0, id="nan_on_both_sides"),
        pytest.param(f32(NAN, 1), f32(0, 1), INF, id="nan_in_reference"),
        pytest.param(f32(0, 1), f32(NAN, 1), INF, id="nan_in_candidate"),
        pytest.param(f32(INF, -INF), f32(INF, -INF), 0.0, id="same_infinities"),
        pytest.param(f32(INF), f32(-INF), INF, id="opposite_infinities"),
        pytest.param(f32(INF), f32(1), INF, id="infinity_in_reference"),
        pytest.param(f32(1), f32(-INF), INF, id="infinity_in_candidate"),
        pytest.param(f32(), f32(), 0, id="empty"),
        pytest.param(np.float32(3).reshape(()), np.float32(1).reshape(()), 2.0, id="0d"),
        pytest.param(
            np.array([MAX16], np.float16), np.array([-MAX16], np.float16), 2 * MAX16, id="float16_overflow"
        ),
        pytest.param(np.array([1e308]), np.array([-1e308]), INF, id="float64_overflow"),
        pytest.param(
            np.array([1.5], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16), 0.5, id="bfloat16"
        ),
        pytest.param(np.array([2**63 - 1]), np.array([2**63 - 2]), 1, id="int64_beyond_2_53"),
        pytest.param(np.array([2**63 - 1]), np.array([-(2**63)]), 2**64 - 1, id="whole_range_of_int64"),
        pytest.param(np.array([2**64 - 1], np.uint64), np.array([0], np.uint64), 2**64 - 1, id="uint64"),
        pytest.param(np.array([-128], np.int8), np.array([127], np.int8), 255, id="int8_overflow"),
        pytest.param(np.array([True, False]), np.array([True, True]), 1, id="bool"),
        pytest.param(np.array([], np.int64), np.array([], np.int64), 0, id="empty_int"),
    ],
)
def test_max_abs_diff(reference: Array, candidate: Array, expected: float) -> None:
    found = metrics.max_abs_diff(reference, candidate)
    assert found == expected
    assert isinstance(found, int) == (reference.dtype.kind in "iub" or not reference.size)


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        pytest.param(f32(2), f32(3), 0.5, id="float"),
        pytest.param(f32(0), f32(0), 0.0, id="zero_equals_zero"),
        pytest.param(f32(NAN), f32(NAN), 0.0, id="nan_on_both_sides"),
        pytest.param(f32(NAN), f32(1), INF, id="nan_on_one_side"),
        pytest.param(f32(INF), f32(1), INF, id="infinity_on_one_side"),
        pytest.param(f32(), f32(), 0.0, id="empty"),
        pytest.param(np.array([4]), np.array([5]), 0.25, id="int"),
        pytest.param(np.array([0]), np.array([5]), 5.0, id="int_zero"),
        pytest.param(np.array([True]), np.array([False]), 1.0, id="bool"),
        pytest.param(np.float32(2).reshape(()), np.float32(1).reshape(()), 0.5, id="0d"),
    ],
)
def test_max_rel_diff(reference: Array, candidate: Array, expected: float) -> None:
    assert metrics.max_rel_diff(reference, candidate) == expected


def test_a_zero_in_the_reference_gives_a_large_relative_difference_and_no_warning() -> None:
    found = metrics.max_rel_diff(f32(0), f32(1))
    assert math.isfinite(found)
    assert found > 1e37


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_the_relative_difference_knows_every_float(dtype: type) -> None:
    assert metrics.max_rel_diff(np.array([2], dtype), np.array([1], dtype)) == 0.5


def test_rmse_leaves_out_what_is_not_finite_on_both_sides() -> None:
    assert metrics.rmse(f32(0, NAN, 1), f32(3, 5, INF)) == 3.0
    assert metrics.rmse(f32(NAN), f32(1)) == 0.0
    assert metrics.rmse(f32(), f32()) == 0.0


def test_rmse_is_divided_by_the_scale_of_each_channel() -> None:
    reference = np.zeros((1, 2), np.float32)
    candidate = np.array([[10, 1]], np.float32)
    assert metrics.rmse(reference, candidate, np.array([10.0, 1.0])) == 1.0


def test_specials_are_counted_on_both_sides_and_where_they_differ() -> None:
    found = metrics.specials(f32(NAN, INF, -INF, 1, NAN), f32(NAN, -INF, -INF, NAN, 0))
    assert found.nan == (2, 2)
    assert found.positive_infinity == (1, 0)
    assert found.negative_infinity == (1, 2)
    assert found.differing == 3


@pytest.mark.parametrize(
    "metric", [metrics.max_abs_diff, metrics.max_rel_diff, metrics.rmse, metrics.specials]
)
def test_shapes_are_never_broadcast(metric: object) -> None:
    with pytest.raises(ShapeMismatch, match=r"reference \[1, 3\], candidate \[3\]"):
        metric(np.zeros((1, 3)), np.zeros(3))  # type: ignore[operator]


def test_channel_scale_is_one_number_a_channel_over_all_cases() -> None:
    small, large = np.array([[3.0, 100.0]]), np.array([[3.0, 100.0], [3.0, 100.0]])
    assert metrics.channel_scale([small, large], 1).tolist() == [[3.0, 100.0]]


def test_a_scale_of_boxes_does_not_hide_scores_beside_them() -> None:
    """A scale over the whole tensor would let scores be off by 0.03."""
    found = metrics.channel_scale([np.array([[640.0, 640.0, 0.5]] * 4)], 1)
    assert found[0, 2] < 1.0


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        pytest.param(np.zeros(3), 1.0, id="zero_everywhere"),
        pytest.param(np.zeros((0,)), 1.0, id="empty"),
        pytest.param(np.array(2.0), 2.0, id="0d"),
        pytest.param(np.array([NAN, 2.0, INF]), 2.0, id="only_finite_values_count"),
        pytest.param(np.array([NAN]), 1.0, id="nothing_finite"),
        pytest.param(np.array([3.0], np.float16), 3.0, id="float16"),
    ],
)
def test_scale_of_one_channel(array: Array, expected: float) -> None:
    assert float(metrics.channel_scale([array], None)) == expected


def test_a_channel_that_is_nearly_zero_has_a_share_of_the_whole_as_scale() -> None:
    found = metrics.channel_scale([np.array([[1.0, 1e-12]])], 1)
    assert found[0, 1] == pytest.approx(metrics.SMALLEST_SCALE * np.sqrt(0.5))
