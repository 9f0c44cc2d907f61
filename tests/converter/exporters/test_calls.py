"""Names of inputs: parameters by keyword, new names by position, and mistyped ones neither."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.calls import CallPlan, CallPlanner, Parameters
from paritygate.converter.types import Array, DType, TensorSpec


def _scaled(left: Any, right: Any, scale: float = 2.0) -> Any:
    return left, right, scale


def _one(batch: Any) -> Any:
    return batch


def _planner(function: Callable[..., Any]) -> CallPlanner[Array]:
    def as_tensor(value: Any) -> Array | None:
        return value if isinstance(value, np.ndarray) else None

    return CallPlanner(Parameters(inspect.signature(function)), as_tensor, "forward")


def _plan(function: Callable[..., Any], names: list[str], *, declared: bool) -> CallPlan[Array]:
    planner = _planner(function)
    if declared:
        return planner.declared([TensorSpec(name, DType.FLOAT32, (2,)) for name in names])
    return planner.plans({name: np.zeros(2) for name in names})[0]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "names",
    [["right", "lft"], ["left", "rigth"], ["lft", "right"], ["rigth", "lefd"], ["right", "other"]],
    ids=" ".join,
)
def test_a_mistyped_name_does_not_go_in_by_position(names: list[str], declared: bool) -> None:
    with pytest.raises(ExportError, match=r"forward takes \['left', 'right', 'scale'\], and none "):
        _plan(_scaled, names, declared=declared)


@pytest.mark.parametrize("declared", [True, False])
def test_the_name_that_is_meant_is_said(declared: bool) -> None:
    with pytest.raises(ExportError, match="none 'rigth': is 'right' meant"):
        _plan(_scaled, ["left", "rigth"], declared=declared)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("names", [["right", "left"], ["left", "right"]], ids=" ".join)
def test_parameters_go_in_by_keyword_in_any_order(names: list[str], declared: bool) -> None:
    plan = _plan(_scaled, names, declared=declared)
    assert plan.call(_scaled, names) == ("left", "right", 2.0)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("names", [["query", "passage"], ["left_image", "right_image"]], ids=" ".join)
def test_new_names_go_in_by_position(names: list[str], declared: bool) -> None:
    plan = _plan(_scaled, names, declared=declared)
    assert plan.call(_scaled, names) == (*names, 2.0)


def test_a_dict_for_the_one_parameter_goes_in_whole() -> None:
    plan = _plan(_one, ["batch", "mask"], declared=False)
    assert plan.call(_one, [1, 2]) == {"batch": 1, "mask": 2}
