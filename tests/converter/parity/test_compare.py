"""Every way in which outputs can differ must be a failing figure; equal ones must pass."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter.errors import ParityError
from paritygate.converter.parity.compare import Context, compare_outputs
from paritygate.converter.parity.report import Figure
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.types import Array, DType


def texts(*values: str) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def compared(reference: Array, candidate: Array, **options: object) -> Figure:
    (figure,) = compare_outputs({"y": reference}, {"y": candidate}, **options)  # type: ignore[arg-type]
    return figure


ONES = np.ones((4, 5), np.float32)


def moved(array: Array, value: object, index: tuple[int, ...] = (1, 2)) -> Array:
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    ("reference", "candidate", "fault", "reason"),
    [
        pytest.param(ONES, moved(ONES, 1.001), "numbers", "1 of 20 values are further off", id="one_element"),
        pytest.param(
            ONES, moved(ONES, np.nan), "numbers", "NaN or infinite on one side", id="nan_in_candidate"
        ),
        pytest.param(
            moved(ONES, np.nan), ONES, "numbers", "NaN or infinite on one side", id="nan_in_reference"
        ),
        pytest.param(
            moved(ONES, np.inf), moved(ONES, -np.inf), "numbers", "one side only", id="signs_of_infinity"
        ),
        pytest.param(
            ONES, ONES.astype(np.float64), "form", "dtype is float64, the source has float32", id="dtype"
        ),
        pytest.param(ONES, ONES[:3], "shape", r"shape is \[3, 5\], the source has \[4, 5\]", id="shape"),
        pytest.param(ONES[:1], ONES[0], "shape", r"shape is \[5\]", id="no_broadcasting"),
        pytest.param(np.array([2**53]), np.array([2**53 + 1]), "numbers", "1 of 1 values differ", id="int64"),
        pytest.param(np.array([True]), np.array([False]), "numbers", "must be equal", id="bool"),
        pytest.param(texts("a", "b"), texts("a", "B"), "numbers", "1 of 2 values differ", id="string"),
        pytest.param(texts("1"), np.array([1]), "form", "dtype is int64", id="string_against_number"),
    ],
)
def test_a_difference_is_a_failing_figure(
    reference: Array, candidate: Array, fault: str, reason: str
) -> None:
    import re

    figure = compared(reference, candidate)
    assert figure.verdict == "fail"
    assert figure.fault == fault
    assert figure.reason is not None
    assert re.search(reason, figure.reason)
    assert not figure.scaled_error <= 1
    assert figure.max_abs_diff > 0


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(ONES, id="float32"),
        pytest.param(np.array([np.nan, np.inf, -np.inf, 0.0], np.float32), id="specials"),
        pytest.param(np.zeros((0, 3), np.float32), id="empty"),
        pytest.param(np.array(1.5, np.float32), id="0d"),
        pytest.param(np.array([65504, -65504], np.float16), id="float16_extremes"),
        pytest.param(np.array([1e38, 1.5], ml_dtypes.bfloat16), id="bfloat16"),
        pytest.param(np.array([1e308, -1e308]), id="float64_extremes"),
        pytest.param(np.array([2**63 - 1, -(2**63)]), id="int64_extremes"),
        pytest.param(np.array([2**64 - 1], np.uint64), id="uint64"),
        pytest.param(np.array(True), id="0d_bool"),
        pytest.param(np.zeros(0, np.int8), id="empty_int"),
        pytest.param(texts("", "日本語"), id="strings"),
        pytest.param(texts(), id="no_strings"),
    ],
)
def test_an_array_equals_itself(array: Array) -> None:
    figure = compared(array, array.copy())
    assert figure.verdict == "pass"
    assert figure.max_abs_diff == 0
    assert figure.scaled_error == 0
    assert (figure.worst is None) == (array.size == 0)


def test_the_worst_element_is_told_with_its_index_and_both_values() -> None:
    figure = compared(ONES, moved(ONES, 3.5))
    assert figure.worst is not None
    assert figure.worst.index == (1, 2)
    assert (figure.worst.reference, figure.worst.candidate) == ("1.0", "3.5")
    assert figure.max_abs_diff == 2.5


def test_whole_numbers_are_told_without_loss() -> None:
    figure = compared(np.array([2**60 + 1]), np.array([2**60 + 2]))
    assert figure.max_abs_diff == 1
    assert figure.worst is not None
    assert figure.worst.reference == str(2**60 + 1)


def test_a_missing_output_fails() -> None:
    figures = compare_outputs({"y": ONES, "z": ONES}, {"y": ONES})
    assert [(figure.output, figure.verdict) for figure in figures] == [("y", "pass"), ("z", "fail")]
    assert figures[1].reason == "the candidate does not give this output"


def test_an_output_too_many_fails() -> None:
    figures = compare_outputs({"y": ONES}, {"y": ONES, "z": ONES})
    assert [(figure.output, figure.verdict) for figure in figures] == [("y", "pass"), ("z", "fail")]


def test_zero_outputs_are_an_error_and_never_a_pass() -> None:
    with pytest.raises(ParityError, match="nothing is proven by comparing nothing"):
        compare_outputs({}, {})


def test_the_bound_follows_the_channel_and_not_the_whole_tensor() -> None:
    boxes = np.array([[640.0, 0.5]] * 4, np.float32)
    assert compared(boxes, moved(boxes, 640.001, (0, 0))).verdict == "pass"
    assert compared(boxes, moved(boxes, 0.501, (0, 1))).verdict == "fail"


def test_a_small_output_is_held_to_its_own_size() -> None:
    """An absolute tolerance of 1e-5 would pass an error of one percent here."""
    small = np.full((4, 5), 1e-4, np.float32)
    assert compared(small, moved(small, 1.01e-4)).verdict == "fail"


def test_optimised_sessions_are_given_more_room() -> None:
    assert compared(ONES, moved(ONES, 1.0005), optimized=True).verdict == "pass"
    assert compared(ONES, moved(ONES, 1.0005), optimized=False).verdict == "fail"


def test_a_source_that_computes_in_float64_shows_no_rounding_so_the_floor_is_atol() -> None:
    truth = np.linspace(1, 2, 20).reshape(4, 5)
    context = {"y": Context(np.full((), 1.5), noise=1e-8, float64=truth)}
    rounded = truth.astype(np.float32)
    assert compared(rounded, (truth * (1 + 8e-6)).astype(np.float32), contexts=context).verdict == "pass"
    assert compared(rounded, (truth * (1 + 2e-5)).astype(np.float32), contexts=context).verdict == "fail"


def test_the_noise_key_speaks_of_the_float64_form() -> None:
    truth = np.linspace(1, 2, 20).reshape(4, 5)
    reference = (truth * (1 + 1e-6)).astype(np.float32)
    context = {"y": Context(np.full((), 1.5), noise=1e-6, float64=truth)}
    assert compared(reference, truth.astype(np.float32), contexts=context).verdict == "pass"
    figure = compared(reference, (truth * (1 + 2e-5)).astype(np.float32), contexts=context)
    assert figure.verdict == "fail"
    assert figure.reason is not None
    assert "times what rounding explains" in figure.reason
    assert figure.scaled_error < 1


def test_one_bad_element_in_many_fails_although_the_mean_error_is_small() -> None:
    """The mean alone would let one element in a million be off."""
    many = np.ones((1000, 1000), np.float32)
    figure = compared(many, moved(many, 1.001), contexts={"y": Context(np.ones(()), noise=1e-6)})
    assert figure.verdict == "fail"
    assert figure.noise_error is not None
    assert figure.noise_error < 1
    assert figure.mismatches == 1


def test_noise_widens_the_bound_but_only_up_to_its_cap() -> None:
    context = {"y": Context(np.ones(()), noise=1e9)}
    assert compared(ONES, moved(ONES, 1.0003), contexts=context).verdict == "pass"
    assert compared(ONES, moved(ONES, 1.01), contexts=context).verdict == "fail"


@pytest.mark.parametrize(
    ("off", "wide_off", "verdict"),
    [(5e-4, 5e-4, "pass"), (5e-4, 0.0, "fail"), (5e-3, 5e-3, "fail")],
    ids=["agrees_with_float64", "agrees_with_neither", "too_far_from_the_source"],
)
def test_an_element_may_agree_with_the_float64_form_instead(
    off: float, wide_off: float, verdict: str
) -> None:
    reference = np.ones((2, 1000), np.float32)
    wide = moved(reference.astype(np.float64), 1.0 + wide_off)
    context = Context(np.ones(()), noise=1e-6, float64=wide)
    loose = ToleranceConfig().changed("float32", noise_factor=1e9)  # the elements alone are asked here
    figure = compared(reference, moved(reference, 1.0 + off), contexts={"y": context}, tolerance=loose)
    assert figure.verdict == verdict


def test_half_precision_has_a_budget_of_few_elements_and_never_far_off() -> None:
    many = np.ones((100, 100), np.float16)
    assert compared(many, moved(many, 1.05)).verdict == "pass"
    assert compared(many, moved(many, 1.5)).verdict == "fail"
    wrong = many.copy()
    wrong[:, 0] = 1.05
    assert compared(many, wrong).verdict == "fail"


def test_float16_overflow_to_infinity_fails() -> None:
    reference = np.array([65504], np.float16)
    assert compared(reference, np.array([np.inf], np.float16)).verdict == "fail"


def test_outputs_of_half_precision_weights_are_judged_as_half_precision() -> None:
    assert compared(ONES, ONES, weights=DType.FLOAT16).rung == "float16"
    assert compared(ONES, ONES, weights=DType.FLOAT32).rung == "float32"
    assert compared(ONES.astype(np.float64), ONES.astype(np.float64), weights=DType.FLOAT32).rung == "float32"


def test_figures_carry_counts_and_the_noise() -> None:
    figure = compared(ONES, ONES, contexts={"y": Context(np.ones(()), noise=1e-7)}, case="base")
    assert figure.case == "base"
    assert figure.noise == 1e-7
    assert figure.noise_error == 0
    assert figure.rmse == 0
    assert math.isfinite(figure.max_rel_diff)
