"""Probe inputs: the same for the same signature and seed, inside their ranges, and of the asked shape."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter._tensors import encode_tensor
from paritygate.converter.parity.feeds import Case, is_wide, make_feeds, plan_cases
from paritygate.converter.types import DType, Signature, TensorSpec

OUT = (TensorSpec("y", DType.FLOAT32, ("batch",)),)


def signature(*inputs: TensorSpec) -> Signature:
    return Signature(inputs, OUT)


IMAGE = signature(TensorSpec("x", DType.FLOAT32, ("batch", 3, "size")))


def test_the_base_case_comes_first_then_sweeps_then_extremes() -> None:
    names = [case.name for case in plan_cases(IMAGE, trace_dims={"batch": 2, "size": 8})]
    assert names == [
        "base",
        *(f"sweep:batch={n}" for n in (1, 3, 7, 17)),
        *(f"sweep:size={n}" for n in (1, 2, 3, 7, 17)),
        "joint:batch=3,size=7",
        "joint:batch=5,size=2",
        *(f"extreme:{name}" for name in ("zeros", "ones", "negative", "small", "large")),
    ]


def test_each_case_has_a_stream_of_its_own() -> None:
    cases = plan_cases(IMAGE, trace_dims={"batch": 2, "size": 8}, seed=5)
    assert [case.seed for case in cases] == list(range(5, 5 + len(cases)))


def test_a_dim_without_a_trace_size_is_refused() -> None:
    with pytest.raises(ValueError, match="no trace size is given for the dynamic dims size"):
        plan_cases(IMAGE, trace_dims={"batch": 2})


def test_models_without_floats_skip_the_float_extremes() -> None:
    names = [case.name for case in plan_cases(signature(TensorSpec("ids", DType.INT64, (4,))), trace_dims={})]
    assert names == ["base", "extreme:zeros", "extreme:ones"]


def test_a_model_without_inputs_has_one_case() -> None:
    assert [case.name for case in plan_cases(signature(), trace_dims={})] == ["base"]


def test_the_bytes_of_a_case_never_change() -> None:
    """Pinned: a change here makes every sealed probe's recipe mean something else."""
    every = signature(*(TensorSpec(dtype.value, dtype, (3, 2)) for dtype in DType))
    digest = hashlib.sha256()
    for case in plan_cases(every, trace_dims={}, seed=1):
        for name, array in make_feeds(every, case).items():
            digest.update(encode_tensor(array, name))
    assert digest.hexdigest() == "3a0887f5298a322ff9f1e455b7fcfd9f3f36ae74f1c32375c1ec572313699ae6"


def test_an_input_keeps_its_values_when_another_is_added() -> None:
    alone = signature(TensorSpec("x", DType.FLOAT32, (4,)))
    both = signature(TensorSpec("a", DType.INT64, (4,)), TensorSpec("x", DType.FLOAT32, (4,)))
    case = Case("base", {}, "random", 1)
    assert make_feeds(alone, case)["x"].tolist() == make_feeds(both, case)["x"].tolist()


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("recipe", ["random", "zeros", "ones", "negative", "small", "large"])
def test_every_dtype_has_every_recipe(dtype: DType, recipe: str) -> None:
    spec = TensorSpec("x", dtype, ("n", 2))
    array = make_feeds(signature(spec), Case("c", {"n": 3}, recipe, 1))["x"]
    assert array.dtype == dtype.numpy
    assert array.shape == (3, 2)
    if dtype.is_floating:
        assert np.isfinite(array.astype(np.float64)).all()
    if dtype is DType.STRING:
        assert all(isinstance(value, str) for value in array.flat)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_scalars_and_empty_tensors_are_made_too(dtype: DType, shape: tuple[int, ...]) -> None:
    array = make_feeds(signature(TensorSpec("x", dtype, shape)), Case("c", {}, "random", 1))["x"]
    assert array.shape == shape


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [
        (DType.INT64, (5, 9)),
        (DType.INT32, (-3, -3)),
        (DType.UINT8, (250, 255)),
        (DType.INT64, (-(2**63), 2**63 - 1)),
        (DType.UINT64, (0, 2**64 - 1)),
        (DType.FLOAT32, (-1.0, 1.0)),
        (DType.BFLOAT16, (0.0, 4.0)),
    ],
)
@pytest.mark.parametrize("recipe", ["random", "zeros", "ones", "large"])
def test_declared_ranges_hold(dtype: DType, limits: tuple[float, float], recipe: str) -> None:
    spec = TensorSpec("x", dtype, (200,))
    array = make_feeds(signature(spec), Case("c", {}, recipe, 1), ranges={"x": limits})["x"]
    values = [int(v) if dtype.is_integer else float(v) for v in array]
    assert min(values) >= limits[0]
    assert max(values) <= limits[1]


def test_the_ends_of_a_range_are_reached() -> None:
    spec = TensorSpec("x", DType.INT64, (200,))
    array = make_feeds(signature(spec), Case("c", {}, "random", 1), ranges={"x": (5, 9)})["x"]
    assert set(array.tolist()) == {5, 6, 7, 8, 9}


def test_undeclared_ids_are_safe_for_any_vocabulary() -> None:
    array = make_feeds(signature(TensorSpec("ids", DType.INT64, (100,))), Case("c", {}, "random", 1))["ids"]
    assert set(array.tolist()) == {0, 1}


def test_strings_come_from_the_declared_ones() -> None:
    spec = TensorSpec("x", DType.STRING, (50,))
    array = make_feeds(signature(spec), Case("c", {}, "random", 1), ranges={"x": ["red", "blue"]})["x"]
    assert set(array.tolist()) == {"red", "blue"}


@pytest.mark.parametrize(
    ("dtype", "limits", "message"),
    [
        (DType.INT64, (3, 1), "is empty; expected low <= high"),
        (DType.INT8, (0, 300), "does not fit int8"),
        (DType.INT64, ["a", "b"], r"must be \(low, high\)"),
        (DType.STRING, (0, 1), "must be a list of texts"),
        (DType.STRING, [], "must be a list of texts"),
    ],
)
def test_a_range_that_does_not_fit_is_refused(dtype: DType, limits: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_feeds(signature(TensorSpec("x", dtype, (2,))), Case("c", {}, "random", 1), ranges={"x": limits})  # type: ignore[dict-item]


def test_a_range_of_an_unknown_input_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown inputs z"):
        make_feeds(IMAGE, Case("c", {"batch": 1, "size": 1}, "random", 1), ranges={"z": (0, 1)})


def test_bfloat16_inputs_are_real_bfloat16() -> None:
    array = make_feeds(signature(TensorSpec("x", DType.BFLOAT16, (2,))), Case("c", {}, "random", 1))["x"]
    assert array.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("limits", "expected"), [((1, 1), {True}), ((0, 0), {False}), ((0, 1), {True, False})]
)
def test_a_mask_keeps_to_its_range(limits: tuple[int, int], expected: set[bool]) -> None:
    """A mask without any True in a row is a question that some attention layers have no answer to."""
    signature = Signature((TensorSpec("mask", DType.BOOL, (4, 8)),), ())
    asked: set[bool] = set()
    for case in plan_cases(signature, trace_dims={}):
        asked |= set(make_feeds(signature, case, ranges={"mask": limits})["mask"].ravel().tolist())
    assert asked == expected


@pytest.mark.parametrize(("size", "draws"), [(1, 8), (2, 8), (5, 4), (16, 1), (100, 1)])
def test_few_wide_integers_are_drawn_several_times(size: int, draws: int) -> None:
    signature = Signature((TensorSpec("n", DType.INT64, (size,)),), ())
    names = [case.name for case in plan_cases(signature, trace_dims={}, wide=True) if is_wide(case.name)]
    assert len(names) == len(set(names)) == 2 * draws
    assert {"extreme:wide", "extreme:half"} <= set(names)


def test_only_the_extreme_of_zeros_leaves_nothing_of_a_row() -> None:
    """Attention over nothing is NaN in many a sound model; the extreme asks for it."""
    signature = Signature((TensorSpec("mask", DType.INT64, ("batch", "seq")),), ())
    for case in plan_cases(signature, trace_dims={"batch": 4, "seq": 3}):
        rows = make_feeds(signature, case)["mask"].any(axis=-1)
        assert rows.all() if case.recipe != "zeros" else not rows.any()
