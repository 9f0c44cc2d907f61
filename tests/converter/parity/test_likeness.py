"""Cases on the scale of the example: its mean and deviation by feature, never its rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter.parity.feeds import SWEEP_SIZES, make_feeds
from paritygate.converter.parity.likeness import LIKE_ROWS, Moments, as_example, example_moments, like_cases
from paritygate.converter.types import Array, DType, Signature, TensorSpec

TABLE = TensorSpec("x", DType.FLOAT32, ("batch", 2))
IMAGE = TensorSpec("x", DType.FLOAT32, ("batch", 3, 8, 8))


def example_of(shape: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Array:
    return np.random.RandomState(0).standard_normal(shape).astype(dtype.numpy)


def test_each_feature_of_a_table_keeps_its_own_mean_and_deviation() -> None:
    example = (example_of((64, 2)) * [10, 1.5e4] + [2000, 5e4]).astype(np.float32)
    spec = TensorSpec("x", DType.FLOAT32, (4000, 2))
    (case,) = like_cases([spec], {}, 1)
    feeds = make_feeds(Signature((spec,), ()), case)
    asked = as_example([spec], feeds, {"x": Moments.of(TABLE, example)})["x"]
    assert asked.dtype == np.float32
    np.testing.assert_allclose(asked.mean(axis=0), example.mean(axis=0), rtol=0.05)
    np.testing.assert_allclose(asked.std(axis=0), example.std(axis=0), rtol=0.05)
    assert not (example[:, None] == asked).all(axis=-1).any()


@pytest.mark.parametrize(
    ("shape", "of_example", "expected"),
    [
        (("batch", 2), (9, 2), (1, 2)),
        (("batch", "time", 5), (9, 4, 5), (1, 1, 5)),
        (("batch", 3, 8, 8), (9, 3, 8, 8), (1, 3, 1, 1)),
        (("batch",), (9,), (1,)),
        (("batch", "time"), (9, 4), (1, 1)),
        ((), (), ()),
    ],
    ids=str,
)
def test_features_stand_on_the_last_axis_and_on_axis_1_of_images(
    shape: tuple[int | str, ...], of_example: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert Moments.of(TensorSpec("x", DType.FLOAT32, shape), example_of(of_example)).mean.shape == expected


@pytest.mark.parametrize(
    ("example", "varies"),
    [
        (np.zeros((4, 2), np.float32), False),
        (np.full((7, 2), 0.1, np.float32), False),
        (np.array([[2000, 5e4]], np.float32), False),
        (np.array([[1, 5], [2, 5]], np.float32), True),
        (np.array([[np.nan, 5], [np.nan, 6], [np.inf, 6]], np.float32), True),
        (np.full((4, 2), np.nan, np.float32), False),
    ],
    ids=["zeros", "constant", "one_row", "one_feature", "holes", "only_nan"],
)
def test_a_constant_example_says_nothing(example: Array, varies: bool) -> None:
    moments = Moments.of(TABLE, example)
    assert moments.varies is varies
    assert np.isfinite(moments.mean).all()
    assert np.isfinite(moments.deviation).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64], ids=str)
def test_no_draw_leaves_the_range_of_its_dtype(dtype: DType) -> None:
    limit = float(ml_dtypes.finfo(dtype.numpy).max)
    moments = Moments(np.array([[limit]]), np.array([[limit / 4]]), np.array([[False]]), np.array([[0.0]]))
    asked = moments.applied(example_of((50, 1), dtype), dtype)
    assert asked.dtype == dtype.numpy
    assert np.isfinite(asked.astype(np.float64)).all()


def test_features_of_whole_numbers_are_asked_whole_numbers() -> None:
    """Fractions do not tell `x > 3` from `x >= 4`."""
    example = np.column_stack([np.arange(40) % 5, np.linspace(0, 5, 40)]).astype(np.float32)
    asked = Moments.of(TABLE, example).applied(example_of((200, 2)), DType.FLOAT32)
    assert (asked[:, 0] == np.rint(asked[:, 0])).all()
    assert len(np.unique(asked[:, 0])) > 5
    assert (asked[:, 1] != np.rint(asked[:, 1])).all()


def test_missing_values_are_asked_as_often_as_in_the_example() -> None:
    example = example_of((400, 2))
    example[::4, 1] = np.nan
    asked = Moments.of(TABLE, example).applied(example_of((4000, 2)), DType.FLOAT32)
    assert not np.isnan(asked[:, 0]).any()
    assert 0.2 < np.isnan(asked[:, 1]).mean() < 0.3


def test_integers_and_masks_are_left_as_they_are() -> None:
    ids = TensorSpec("ids", DType.INT64, ("batch",))
    feeds = {"x": example_of((2, 2)), "ids": np.array([1, 0])}
    moments = example_moments([TABLE, ids], {"x": example_of((9, 2)), "ids": np.arange(9)})
    assert list(moments) == ["x"]
    assert as_example([TABLE, ids], feeds, moments)["ids"] is feeds["ids"]


def test_the_larger_case_has_a_size_that_the_sweep_asks_too() -> None:
    assert LIKE_ROWS in SWEEP_SIZES


@pytest.mark.parametrize(
    ("spec", "trace", "names"),
    [
        (TABLE, {"batch": 2}, ["like_example", "like_example:batch=17"]),
        (TABLE, {"batch": 32}, ["like_example"]),
        (TensorSpec("x", DType.FLOAT32, (4, 2)), {}, ["like_example"]),
        (TensorSpec("x", DType.FLOAT32, (4, "time", 2)), {"time": 3}, ["like_example"]),
    ],
    ids=["small_batch", "large_batch", "fixed", "fixed_batch"],
)
def test_a_batch_that_may_vary_is_asked_with_more_rows(
    spec: TensorSpec, trace: dict[str, int], names: list[str]
) -> None:
    assert [case.name for case in like_cases([spec], trace, 1)] == names
