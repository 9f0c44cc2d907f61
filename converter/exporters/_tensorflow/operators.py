"""ONNX forms of TensorFlow operators that tf2onnx 1.17 does not know, or writes so that they differ.

tf2onnx writes the floor division of integers as ONNX `Div`, which truncates, and the modulo that follows from it:
wrong for every pair of unlike signs with a remainder. The truncating division of floats it does not truncate.
It writes maxima and minima of integers through float32, and onnxruntime sums int64 in float64. Only nodes are
used here that onnxruntime's CPU kernels compute in integers: `Div`, which truncates, and `Mod` without fmod, which
takes the divisor's sign; other widths are computed in int64.

A divisor of zero is an error in both; one of -1, for which the processor may trap, is guarded in every graph
(`graph.whole_numbers`). It compares integers through float32 as well, for which two timestamps of one minute are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from paritygate.converter.exporters import near_zero

_WHOLE = (
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
_HALF = 2**32
_COMPARISONS = {
    "Greater": "Greater", "Less": "Less", "GreaterEqual": "GreaterOrEqual", "LessEqual": "LessOrEqual",
}  # fmt: skip

Rule = Callable[["Nodes", Any, Any], Any]


def custom_handlers() -> dict[str, tuple[Callable[..., None], list[Any]]]:
    """Operator -> its handler, in the form that `custom_op_handlers` of tf2onnx takes."""
    handlers: dict[str, Callable[..., None]] = {
        "Erfc": _write_erfc,
        "Log": _write_log,
        "Log1p": _near_zero(near_zero.log1p),
        "Expm1": _near_zero(near_zero.expm1),
        "FloorDiv": _divide(_floored, whole_only=True),
        "Div": _divide(_truncated, whole_only=True),
        "TruncateDiv": _divide(_truncated, _float_truncated),
        "FloorMod": _divide(_remainder, _float_remainder),
        "Mod": _divide(_truncated_rest, _float_rest),
        "TruncateMod": _divide(_truncated_rest, _float_rest),
        **{operator: _compare(form) for operator, form in _COMPARISONS.items()},
        "Maximum": _extreme("Max"),
        "Minimum": _extreme("Min"),
        "Sum": _write_sum,
        "StringLower": _refuse_case,
        "StringUpper": _refuse_case,
    }
    return {operator: (handler, []) for operator, handler in handlers.items()}


class Nodes:
    """Writes nodes into a tf2onnx graph one after another, with the dtype of each result."""

    def __init__(self, graph: Any, node: Any) -> None:
        self._graph = graph
        self._scope = node.name

    def add(self, operator: str, *inputs: str, dtype: int, **attributes: Any) -> str:
        """Add one node; gives the name of its output."""
        node = self._graph.make_node(
            operator, list(inputs), attr=attributes, dtypes=[dtype], op_name_scope=self._scope
        )
        return str(node.output[0])

    def whole(self, number: int) -> str:
        """An int64 constant."""
        return self._constant(np.array(number, dtype=np.int64))

    def like(self, number: float, dtype: int) -> str:
        """A constant of a floating dtype."""
        from tf2onnx import utils

        return self._constant(np.array(number, dtype=utils.map_onnx_to_numpy_type(dtype)))

    def _constant(self, value: Any) -> str:
        from tf2onnx import utils

        return str(self._graph.make_const(utils.make_name(f"{self._scope}_const"), value).output[0])

    def cast(self, value: str, dtype: int) -> str:
        """A value in another dtype."""
        return self.add("Cast", value, dtype=dtype, to=dtype)


def _divide(
    rule: Rule, floating: Callable[[Nodes, str, str, int], str] | None = None, *, whole_only: bool = False
) -> Callable[..., None]:
    """A handler of a binary operator: one rule for integers, in int64, and one for floats."""

    def handler(graph: Any, node: Any, _name: str, _args: Any) -> None:
        dtype = graph.get_dtype(node.input[0])
        if dtype not in _WHOLE and (whole_only or floating is None):
            _as_tf2onnx_does(graph, node)
            return
        nodes = Nodes(graph, node)
        left, right = node.input
        if dtype not in _WHOLE:
            assert floating is not None
            result = floating(nodes, left, right, dtype)
        elif dtype == TensorProto.INT64:
            result = rule(nodes, left, right)
        else:
            wide = (nodes.cast(value, TensorProto.INT64) for value in (left, right))
            result = nodes.cast(rule(nodes, *wide), dtype)
        _replace(graph, node, result)

    return handler


def _compare(form: str) -> Callable[..., None]:
    """A handler of a comparison, which is made in int64."""

    def handler(graph: Any, node: Any, _name: str, _args: Any) -> None:
        dtype = graph.get_dtype(node.input[0])
        if dtype not in _WHOLE:
            _as_tf2onnx_does(graph, node)
            return
        nodes, values = Nodes(graph, node), list(node.input)
        if dtype != TensorProto.INT64:  # int32 too: tf2onnx turns the counters of loops into int64 later on
            values = [nodes.cast(value, TensorProto.INT64) for value in values]
        if dtype == TensorProto.UINT64:  # the upper half came out negative; moved by 2**63 the order is right
            lowest = nodes.whole(np.iinfo(np.int64).min)
            values = [nodes.add("Add", value, lowest, dtype=TensorProto.INT64) for value in values]
        _replace(graph, node, nodes.add(form, *values, dtype=TensorProto.BOOL))

    return handler


def _extreme(operator: str) -> Callable[..., None]:
    """A handler of `Maximum` and `Minimum`, which ONNX has for the wider integers since opset 12."""

    def handler(graph: Any, node: Any, _name: str, _args: Any) -> None:
        dtype = graph.get_dtype(node.input[0])
        if dtype not in _WHOLE:
            _as_tf2onnx_does(graph, node)
            return
        nodes = Nodes(graph, node)
        kernel = dtype if dtype in (TensorProto.INT32, TensorProto.INT64) else TensorProto.INT64
        values = [nodes.cast(v, kernel) if kernel != dtype else v for v in node.input]
        result = nodes.add(operator, *values, dtype=kernel)
        _replace(graph, node, nodes.cast(result, dtype) if kernel != dtype else result)

    return handler


def _write_sum(graph: Any, node: Any, _name: str, _args: Any) -> None:
    """Sum int64 in halves of 32 bits, each exact in float64 for up to 2**21 numbers; the total wraps."""
    if graph.get_dtype(node.input[0]) != TensorProto.INT64:
        _as_tf2onnx_does(graph, node)
        return
    nodes, (value, axes) = Nodes(graph, node), node.input
    if graph.get_dtype(axes) != TensorProto.INT64:
        axes = nodes.cast(axes, TensorProto.INT64)
    axes = nodes.add(
        "Reshape", axes, nodes.add("Unsqueeze", nodes.whole(-1), nodes.whole(0), dtype=7), dtype=7
    )
    keep = int(bool(node.get_attr_value("keep_dims", 0)))

    def total(part: str) -> str:
        return nodes.add(
            "ReduceSum", part, axes, dtype=TensorProto.INT64, keepdims=keep, noop_with_empty_axes=1
        )

    low = nodes.add("Mod", value, nodes.whole(_HALF), dtype=7)
    high = nodes.add("Div", nodes.add("Sub", value, low, dtype=7), nodes.whole(_HALF), dtype=7)
    result = nodes.add("Add", nodes.add("Mul", total(high), nodes.whole(_HALF), dtype=7), total(low), dtype=7)
    _replace(graph, node, result)


def _write_log(graph: Any, node: Any, _name: str, _args: Any) -> None:
    """Compute the logarithm of float32 in float64.

    onnxruntime's kernel gives the last elements of an array another last bit than the first. A model that divides
    by the spread of its logarithms (as spectrograms are normalised) makes noise of that where the framework has 0.
    """
    nodes, dtype = Nodes(graph, node), graph.get_dtype(node.input[0])
    if dtype != TensorProto.FLOAT:
        _as_tf2onnx_does(graph, node)
        return
    wide = nodes.cast(node.input[0], TensorProto.DOUBLE)
    _replace(graph, node, nodes.cast(nodes.add("Log", wide, dtype=TensorProto.DOUBLE), dtype))


class _InFloats:
    """See `near_zero.Writer`: nodes of a tf2onnx graph, in one floating dtype."""

    def __init__(self, nodes: Nodes, dtype: int) -> None:
        self._nodes = nodes
        self._dtype = dtype
        self.eps = 2.0**-52 if dtype == TensorProto.DOUBLE else 2.0**-23

    def op(self, operator: str, *inputs: str) -> str:
        return self._nodes.add(operator, *inputs, dtype=_BOOL if operator == "Less" else self._dtype)

    def number(self, value: float) -> str:
        return self._nodes.like(value, self._dtype)


def _near_zero(form: Callable[..., str]) -> Callable[..., None]:
    """A handler of `Log1p` or `Expm1`, which tf2onnx writes not at all or as log(1 + x) and exp(x) - 1."""

    def handler(graph: Any, node: Any, _name: str, _args: Any) -> None:
        nodes, dtype, (value,) = Nodes(graph, node), graph.get_dtype(node.input[0]), node.input
        if dtype in (TensorProto.FLOAT, TensorProto.DOUBLE):
            _replace(graph, node, form(_InFloats(nodes, dtype), value))
            return
        wide = form(_InFloats(nodes, TensorProto.FLOAT), nodes.cast(value, TensorProto.FLOAT))
        _replace(graph, node, nodes.cast(wide, dtype))

    return handler


def _refuse_case(_graph: Any, node: Any, _name: str, _args: Any) -> None:
    """Refuse it: TensorFlow knows ASCII; onnxruntime asks a locale, and loads no model where that is missing."""
    raise ValueError(
        f"{node.type} has no ONNX form that computes the same on every machine. Change the case before the model"
    )


def _write_erfc(graph: Any, node: Any, _name: str, _args: Any) -> None:
    """Write Erfc, in which TensorFlow 2.21 computes gelu and which tf2onnx 1.17 does not know, as 1 - Erf."""
    nodes, dtype = Nodes(graph, node), graph.get_dtype(node.output[0])
    erf = nodes.add("Erf", node.input[0], dtype=dtype)
    _replace(graph, node, nodes.add("Sub", nodes.like(1, dtype), erf, dtype=dtype))


def _replace(graph: Any, node: Any, result: str) -> None:
    """Let a value stand in the place of a node's only output, under its name."""
    (output,), (shape,), (dtype,) = node.output, node.output_shapes, node.output_dtypes
    graph.remove_node(node.name)
    graph.make_node("Identity", [result], name=node.name, outputs=[output], shapes=[shape], dtypes=[dtype])


def _as_tf2onnx_does(graph: Any, node: Any) -> None:
    """Hand a node to tf2onnx's own handler."""
    from tf2onnx.handler import tf_op

    operator = node.type
    found = tf_op.create_mapping(graph.opset, graph.extra_opset).get(operator)
    if found is None:
        raise ValueError(f"no form of {operator} for this dtype")
    handler, options = found
    options = dict(options)
    if options.get("onnx_op"):
        node.type, options["tf_op"] = options["onnx_op"], operator
    handler(graph, node, **options, initialized_tables={}, dequantize=False)


# --- rules for int64 ----------------------------------------------------------------------------------------

_INT64, _BOOL = TensorProto.INT64, TensorProto.BOOL


def _truncated(nodes: Nodes, left: str, right: str) -> str:
    return nodes.add("Div", left, right, dtype=_INT64)


def _remainder(nodes: Nodes, left: str, right: str) -> str:
    return nodes.add("Mod", left, right, dtype=_INT64)


def _truncated_rest(nodes: Nodes, left: str, right: str) -> str:
    return _rest_of(nodes, left, right, _truncated(nodes, left, right))


def _rest_of(nodes: Nodes, left: str, right: str, quotient: str) -> str:
    return nodes.add("Sub", left, nodes.add("Mul", quotient, right, dtype=_INT64), dtype=_INT64)


def _floored(nodes: Nodes, left: str, right: str) -> str:
    """The truncated quotient, one less where the remainder with the divisor's sign is another one."""
    truncated = _truncated(nodes, left, right)
    same = nodes.add(
        "Equal", _remainder(nodes, left, right), _rest_of(nodes, left, right, truncated), dtype=_BOOL
    )
    below = nodes.cast(nodes.add("Not", same, dtype=_BOOL), _INT64)
    return nodes.add("Sub", truncated, below, dtype=_INT64)


# --- rules for floats ---------------------------------------------------------------------------------------


def _float_rest(nodes: Nodes, left: str, right: str, dtype: int) -> str:
    """C's fmod, which TensorFlow computes; tf2onnx's x - floor(x/y) * y loses every digit of a large quotient."""
    return nodes.add("Mod", left, right, dtype=dtype, fmod=1)


def _float_truncated(nodes: Nodes, left: str, right: str, dtype: int) -> str:
    """The quotient cut towards zero, which tf2onnx leaves as it is."""
    quotient = nodes.add("Div", left, right, dtype=dtype)
    below = nodes.add("Less", quotient, nodes.like(0, dtype), dtype=_BOOL)
    ceiling, floor = (nodes.add(operator, quotient, dtype=dtype) for operator in ("Ceil", "Floor"))
    return nodes.add("Where", below, ceiling, floor, dtype=dtype)


def _float_remainder(nodes: Nodes, left: str, right: str, dtype: int) -> str:
    zero = nodes.like(0, dtype)
    rest = _float_rest(nodes, left, right, dtype)
    signs = (nodes.add("Less", value, zero, dtype=_BOOL) for value in (rest, right))
    differ = nodes.add("Xor", *signs, dtype=_BOOL)
    some = nodes.add("Not", nodes.add("Equal", rest, zero, dtype=_BOOL), dtype=_BOOL)
    shifted = nodes.add("Add", rest, right, dtype=dtype)
    return nodes.add("Where", nodes.add("And", differ, some, dtype=_BOOL), shifted, rest, dtype=dtype)
