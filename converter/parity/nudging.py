"""Move what a model is given, or what it has learnt, by one unit in the last place.

Every rounding inside a model is a relative change of some intermediate value by half such a unit. How far the
answers go when inputs and weights move by one tells how far rounding alone may carry them, layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from paritygate.converter.graph.external import extent
from paritygate.converter.graph.inspect import external_location, is_external, parse_model, subgraphs
from paritygate.converter.types import Array, DType, Feeds

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "PRelu"})
_PRODUCTS = frozenset(
    {
        "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Gather",
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
    }
)  # fmt: skip
_CARRIERS = frozenset(
    {"Concat", "Expand", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_TAKE_WEIGHTS = _ELEMENTWISE | _PRODUCTS | _CARRIERS
"""Operators of ONNX's own domain whose answer moves a little when a weight does. What else takes a constant may
jump at it (a threshold, the factors of Resize, the step of a quantiser), so it is left as it is."""

_ML_FACTORS = {
    "LinearClassifier": ("coefficients", "intercepts"),
    "LinearRegressor": ("coefficients", "intercepts"),
    "Scaler": ("offset", "scale"),
    "SVMClassifier": ("coefficients", "rho", "support_vectors"),
    "SVMRegressor": ("coefficients", "rho", "support_vectors"),
}
"""By operator of ai.onnx.ml, the attributes by which its answer moves a little. Trees jump at theirs."""


def nudge(feeds: Feeds, seed: int = 0) -> dict[str, Array]:
    """The same inputs with every float moved up or down by one unit in the last place, the same way each time.

    An array of one repeated value moves as a whole: what is computed of equal values rounds equally everywhere.
    """
    rng = np.random.RandomState(seed)
    return {name: _nudged(array, rng, as_one=is_uniform(array)) for name, array in feeds.items()}


def redraw(feeds: Feeds, seed: int) -> dict[str, Array]:
    """The same inputs with every array of one repeated value scaled a little, so that all its roundings fall anew.

    One unit in the last place changes few of the bits that are rounded away; `REDRAWN` of a value changes all.
    """
    rng = np.random.RandomState(seed)
    return {name: _redrawn(array, rng) if is_uniform(array) else array for name, array in feeds.items()}


REDRAWN = 2.0**-12
"""The largest part of a value by which `redraw` moves it."""


def _redrawn(array: Array, rng: np.random.RandomState) -> Array:
    moved = array.astype(np.float64) * (1.0 + REDRAWN * rng.uniform(-1.0, 1.0))
    with np.errstate(over="ignore"):
        narrow: Array = moved.astype(array.dtype)
    return narrow if np.isfinite(narrow.astype(np.float64)).all() else array


def is_uniform(array: Array) -> bool:
    """Whether an array of floats repeats a single value."""
    if array.size < 2 or not DType.from_numpy(array.dtype).is_floating:
        return False
    return bool((array == array.flat[0]).all())


def nudge_weights(
    model: bytes, external_data: Mapping[str, bytes] | None = None, *, seed: int = 0
) -> tuple[bytes, dict[str, bytes]] | None:
    """The same model with every learnt float moved up or down by one unit in the last place.

    Zeros stay: what was pruned has no rounding. So do the sentinels of masks, which have no finite neighbour.

    Args:
        model: A serialised ONNX model.
        external_data: Bytes of its external files by name.
        seed: Which way each weight goes.

    Returns:
        The model and its external files, or None if it has no weight that may be moved.

    Raises:
        ModelInvalid: If the model cannot be parsed or points outside its files.
    """
    parsed = parse_model(model)
    rng = np.random.RandomState(seed)
    files = {name: bytearray(data) for name, data in (external_data or {}).items()}
    weights = list(_weights(parsed.graph))
    factors = [attribute for node in _all_nodes(parsed.graph) for attribute in _factors(node)]
    for attribute in factors:
        attribute.floats[:] = _moved(np.array(attribute.floats, np.float32), rng)
    for tensor in weights:
        if is_external(tensor):
            _nudge_in(files[external_location(tensor)], tensor, rng)
        else:
            tensor.CopyFrom(numpy_helper.from_array(_moved(numpy_helper.to_array(tensor), rng), tensor.name))
    if not weights and not factors:
        return None
    return parsed.SerializeToString(), {name: bytes(data) for name, data in files.items()}


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    users: dict[str, set[str]] = {}
    for node in _all_nodes(graph):
        for name in node.input:
            users.setdefault(name, set()).add(node.op_type if node.domain in ("", "ai.onnx") else "")
    for tensor in graph.initializer:
        if tensor.data_type not in _FLOATS or tensor.name not in users:
            continue
        alone = np.prod(tensor.dims, dtype=np.int64) < 2  # a factor or an epsilon, not learnt
        if not alone and users[tensor.name] <= _TAKE_WEIGHTS:
            yield tensor


def _factors(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """The learnt numbers that an operator of ai.onnx.ml carries itself."""
    names = _ML_FACTORS.get(node.op_type, ()) if node.domain == "ai.onnx.ml" else ()
    return [entry for entry in node.attribute if entry.name in names and entry.floats]


_FLOATS = frozenset(dtype.onnx for dtype in DType if dtype.is_floating)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _all_nodes(inner)


def _nudge_in(data: bytearray, tensor: onnx.TensorProto, rng: np.random.RandomState) -> None:
    offset, length = extent(tensor, len(data))
    values = np.frombuffer(data, DType.from_onnx(tensor.data_type).numpy, length // _width(tensor), offset)
    values[...] = _moved(values, rng)


def _width(tensor: onnx.TensorProto) -> int:
    return DType.from_onnx(tensor.data_type).numpy.itemsize


def _moved(array: Array, rng: np.random.RandomState) -> Array:
    moved = _nudged(array, rng)
    return np.where((array != 0) & np.isfinite(moved.astype(np.float64)), moved, array).astype(array.dtype)


def _nudged(array: Array, rng: np.random.RandomState, *, as_one: bool = False) -> Array:
    if not DType.from_numpy(array.dtype).is_floating:
        return array
    up = rng.randint(2, size=() if as_one else array.shape, dtype=np.int8) == 1
    if array.dtype == ml_dtypes.bfloat16:
        # The neighbours of a bfloat16 are those of its bits; zero is left alone, as it has none that matters.
        bits = array.view(np.uint16).astype(np.int32)
        stepped = np.where((bits & 0x7FFF) == 0, bits, bits + np.where(up, 1, -1))
        moved: Array = stepped.astype(np.uint16).view(ml_dtypes.bfloat16)
    else:
        with np.errstate(over="ignore", under="ignore"):
            moved = np.nextafter(array, np.where(up, np.inf, -np.inf).astype(array.dtype))
    return np.where(np.isfinite(array.astype(np.float64)), moved, array).astype(array.dtype)
