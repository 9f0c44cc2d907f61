"""Forms that keep their digits near zero: within a few units in the last place, over all magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from paritygate.converter.exporters import near_zero
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array

WIDE = np.longdouble
SCALE, ALPHA = 1.0507009873554804934, 1.6732632423543772848
UNITS = 8


class Written:
    """Nodes of a model in one type; `near_zero.Writer`."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.eps = float(np.finfo(dtype).eps)
        self.nodes: list[onnx.NodeProto] = []
        self.numbers: list[onnx.TensorProto] = []

    def op(self, operator: str, *inputs: str) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name]))
        return name

    def number(self, value: float) -> str:
        name = f"c{len(self.numbers)}"
        self.numbers.append(onnx.numpy_helper.from_array(np.array(value, self.dtype), name))
        return name


def answer(form: Callable[..., str], *values: Array) -> Array:
    """What a form gives for some values in onnxruntime."""
    write = Written(values[0].dtype)
    element = onnx.helper.np_dtype_to_tensor_dtype(write.dtype)
    names = ["x", "y"][: len(values)]
    last = form(write, *names)
    given = [onnx.helper.make_tensor_value_info(name, element, ["n"]) for name in names]
    taken = onnx.helper.make_tensor_value_info(last, element, ["n"])
    graph = onnx.helper.make_graph(write.nodes, "g", given, [taken], write.numbers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return open_session(model.SerializeToString()).run(dict(zip(names, values, strict=True)))[last]


def selu(write: near_zero.Writer, x: str) -> str:
    return str(near_zero.elu(write, x, alpha=ALPHA, scale=SCALE))


def celu(write: near_zero.Writer, x: str) -> str:
    return str(near_zero.elu(write, x, alpha=2.0, input_scale=0.5))


def exponential_unit(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * input_scale))


FORMS: dict[str, tuple[Callable[..., str], Callable[[Any], Any]]] = {
    "log1p": (near_zero.log1p, np.log1p),
    "expm1": (near_zero.expm1, np.expm1),
    "sinh": (near_zero.sinh, np.sinh),
    "elu": (near_zero.elu, lambda x: exponential_unit(x, 1.0, 1.0, 1.0)),
    "selu": (selu, lambda x: exponential_unit(x, ALPHA, SCALE, 1.0)),
    "celu": (celu, lambda x: exponential_unit(x, 2.0, 1.0, 0.5)),
    "log_sigmoid": (near_zero.log_sigmoid, lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))),
}


def magnitudes(dtype: Any, count: int) -> Array:
    """Numbers of both signs over all normal magnitudes, half of them where the functions bend."""
    random = np.random.RandomState(7)
    limits = np.finfo(dtype)
    far = random.uniform(np.log10(limits.tiny), np.log10(limits.max), count // 2)
    near = random.uniform(np.log10(limits.eps) - 2, 3, count - count // 2)
    sizes = 10.0 ** np.concatenate([far, near]).astype(WIDE)
    return np.clip(np.where(random.rand(count) < 0.5, sizes, -sizes), limits.min, limits.max).astype(dtype)


def units_apart(given: Array, exact: Any) -> Array:
    """Distance in units in the last place of the exact answer, at least those of the smallest normal number."""
    dtype = given.dtype
    rounded = exact.astype(dtype)
    unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(dtype).tiny)).astype(WIDE)
    same = (given == rounded) | (np.isnan(given) & np.isnan(rounded))
    return np.where(same, 0.0, np.abs(given.astype(WIDE) - exact) / unit).astype(float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_within_a_few_units_over_all_magnitudes(name: str, dtype: Any) -> None:
    form, exact = FORMS[name]
    x = magnitudes(dtype, 200_000)
    with np.errstate(all="ignore"):
        apart = units_apart(answer(form, x), exact(x.astype(WIDE)))
    worst = int(np.argmax(np.nan_to_num(apart, nan=np.inf)))
    assert apart[worst] <= UNITS, f"{apart[worst]} units at {x[worst]!r}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_what_the_function_gives_at_its_edges(name: str, dtype: Any) -> None:
    form, exact = FORMS[name]
    limits = np.finfo(dtype)
    x = np.array(
        [np.inf, -np.inf, np.nan, 0.0, -0.0, -1.0, -1.5, 1.0, limits.max, limits.min, limits.tiny, limits.eps,
         np.nextafter(dtype(-1), dtype(0)), np.nextafter(dtype(-1), dtype(-2)), -200.0, -1000.0,
         limits.smallest_subnormal],
        dtype,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        apart = units_apart(answer(form, x), exact(x.astype(WIDE)))
    assert apart.max() <= UNITS, dict(zip(x.tolist(), apart.tolist(), strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("form", "exact"),
    [(near_zero.log_add_exp, np.logaddexp), (near_zero.log_add_exp2, np.logaddexp2)],
    ids=["natural", "base_2"],
)
def test_logarithms_of_sums_neither_overflow_nor_lose_the_smaller_part(
    form: Callable[..., str], exact: Any, dtype: Any
) -> None:
    x, y = magnitudes(dtype, 200_000), magnitudes(dtype, 200_000)[::-1].copy()
    y[::2] = 0.0
    edges = np.array([np.inf, -np.inf, np.nan, 0.0, 1000.0, -1000.0], dtype)
    x = np.concatenate([x, np.repeat(edges, edges.size)])
    y = np.concatenate([y, np.tile(edges, edges.size)])
    with np.errstate(all="ignore"):
        given, wanted = answer(form, x, y), exact(x.astype(WIDE), y.astype(WIDE))
        scale = np.maximum(np.abs(wanted), np.maximum(np.abs(x), np.abs(y)))  # of opposite signs they cancel
        apart = np.abs(given - wanted) / (np.finfo(dtype).eps * np.maximum(scale, np.finfo(dtype).tiny))
    special = ~np.isfinite(wanted.astype(dtype))
    np.testing.assert_array_equal(given[special], wanted[special].astype(dtype))
    assert float(apart[~special].max()) <= UNITS
