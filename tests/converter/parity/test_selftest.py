"""The comparator's own test: every kind of output gets wrong copies, and a blind comparator is found out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter.errors import ParityError
from paritygate.converter.parity.compare import Context
from paritygate.converter.parity.metrics import channel_scale
from paritygate.converter.parity.selftest import self_test
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.types import Array, DType

STRINGS = np.empty(2, object)
STRINGS[:] = ["a", ""]

OUTPUTS = [
    pytest.param(np.ones((2, 3), np.float32), id="float32"),
    pytest.param(np.full(2000, 65504, np.float16), id="float16"),
    pytest.param(np.ones(5000, ml_dtypes.bfloat16), id="bfloat16"),
    pytest.param(np.array([1e300]), id="float64"),
    pytest.param(np.array([np.nan, np.inf], np.float32), id="specials"),
    pytest.param(np.zeros((), np.float32), id="0d_zero"),
    pytest.param(np.zeros((0, 3), np.float32), id="empty"),
    pytest.param(np.array([2**63 - 1]), id="int64"),
    pytest.param(np.array([0], np.uint8), id="uint8"),
    pytest.param(np.array([True, False]), id="bool"),
    pytest.param(STRINGS, id="strings"),
]


def context(array: Array) -> Context:
    if array.dtype.kind in "iubO":
        return Context(np.ones(()))
    return Context(channel_scale([array], None))


@pytest.mark.parametrize("array", OUTPUTS)
def test_every_kind_of_output_gets_wrong_copies_and_all_are_caught(array: Array) -> None:
    result = self_test({"y": array}, {"y": context(array)}, ToleranceConfig(), None)
    assert result.ok
    assert result.caught == result.perturbations >= 3


@pytest.mark.parametrize("weights", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_noise_at_its_cap_leaves_the_comparator_sharp_enough(weights: DType) -> None:
    array = np.ones((100, 100), np.float32)
    noisy = Context(np.ones(()), noise=1e9, float64=array.astype(np.float64))
    assert self_test({"y": array}, {"y": noisy}, ToleranceConfig(), weights).ok


def test_a_blind_comparator_is_found_out() -> None:
    array = np.ones(3, np.float32)
    blind = ToleranceConfig().changed("float32", atol=1e9, noise_floor=1e9)
    with pytest.raises(ParityError, match="wrong copies were caught"):
        self_test({"y": array}, {"y": Context(np.ones(()))}, blind, None)


def test_a_comparator_that_fails_what_is_equal_is_found_out() -> None:
    array = np.ones(3, np.float32)
    truth = {"y": Context(np.ones(()), noise=1e-9, float64=np.full(3, 2.0))}
    with pytest.raises(ParityError, match="does not tell right from wrong"):
        self_test({"y": array}, truth, ToleranceConfig(), None)
