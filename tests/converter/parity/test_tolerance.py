"""The table: which rung judges what, and numbers that are refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from paritygate.converter.parity.tolerance import EXACT, TABLE, Tolerance, ToleranceConfig, rung_of
from paritygate.converter.types import DType


@pytest.mark.parametrize(
    ("output", "weights", "optimized", "rung"),
    [
        (DType.FLOAT32, DType.FLOAT32, False, "float32"),
        (DType.FLOAT32, DType.FLOAT32, True, "float32-optimized"),
        (DType.FLOAT32, None, False, "float32"),
        (DType.FLOAT64, DType.FLOAT64, True, "float64"),
        (DType.FLOAT64, DType.FLOAT32, True, "float32-optimized"),
        (DType.FLOAT32, DType.FLOAT64, False, "float32"),
        (DType.FLOAT16, DType.FLOAT32, True, "float16"),
        (DType.FLOAT32, DType.FLOAT16, True, "float16"),
        (DType.BFLOAT16, DType.FLOAT16, False, "bfloat16"),
        (DType.INT64, DType.FLOAT16, True, EXACT),
        (DType.BOOL, None, False, EXACT),
        (DType.STRING, None, False, EXACT),
    ],
)
def test_the_coarser_precision_chooses_the_rung(
    output: DType, weights: DType | None, optimized: bool, rung: str
) -> None:
    assert rung_of(output, weights, optimized=optimized) == rung


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "1"], ids=str)
def test_a_tolerance_must_be_a_finite_number_of_at_least_zero(value: float) -> None:
    with pytest.raises(ValueError, match="tolerance rtol must be a finite number of at least 0"):
        ToleranceConfig().changed("float32", rtol=value)


def test_an_unknown_rung_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown rung 'float8'; known are float64"):
        ToleranceConfig().changed("float8", rtol=1.0)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="a tolerance has no rtoll"):
        ToleranceConfig().changed("float32", rtoll=1.0)


def test_a_table_needs_all_rungs() -> None:
    with pytest.raises(ValueError, match="needs exactly the rungs"):
        ToleranceConfig({"float32": TABLE["float32"]})


def test_a_change_is_seen_and_leaves_the_table_alone() -> None:
    changed = ToleranceConfig().changed("float32", atol=1e-3)
    assert not changed.is_default
    assert ToleranceConfig().is_default
    assert TABLE["float32"].atol == 1e-5


@pytest.mark.parametrize("rung", TABLE)
def test_noise_is_never_believed_beyond_what_the_rung_can_resolve(rung: str) -> None:
    tolerance: Tolerance = TABLE[rung]
    assert tolerance.noise_cap <= 10 * max(tolerance.atol, tolerance.noise_floor)
    assert tolerance.noise_floor <= tolerance.atol


def test_a_configuration_goes_to_json_and_back_without_loss() -> None:
    config = ToleranceConfig().changed("float16", rtol=0.1 + 0.2, budget=1 / 3)
    assert ToleranceConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ({"float32": {"rtol": 1.0}}, "tolerance 'float32' needs exactly the numbers atol, budget"),
        ({}, "needs exactly the rungs float64, float32"),
    ],
    ids=["number missing", "rung missing"],
)
def test_json_that_is_no_full_table_is_refused(rungs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToleranceConfig.from_json({"default": True, "rungs": rungs})


@pytest.mark.parametrize("name", [entry.name for entry in fields(Tolerance)])
def test_whatever_allows_more_is_told_and_what_allows_less_is_not(name: str) -> None:
    ours = getattr(TABLE["float16"], name)
    looser = ToleranceConfig().changed("float16", **{name: ours * 2})
    assert [phrase.split(",")[0] for phrase in looser.loosened] == [f"float16 {name} {ours * 2:g}"]
    assert ToleranceConfig().changed("float16", **{name: ours / 2}).loosened == ()


def test_the_flag_in_json_does_not_hide_what_was_loosened() -> None:
    value = ToleranceConfig().changed("float32", rtol=1e-3).to_json() | {"default": True}
    assert ToleranceConfig.from_json(value).loosened == ("float32 rtol 0.001, ours is 0.0001",)
