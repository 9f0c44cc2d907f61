"""Sums, means, extremes and running sums along axes."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore import integers
from paritygate.converter.exporters._mindspore.emitter import Call
from paritygate.converter.exporters._mindspore.operators.table import Handler, Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()

_BOOL = np.dtype(bool)
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def axes_of(call: Call, index: int) -> tuple[int, ...]:
    """The axes that an argument names; empty for all."""
    axes = call.static(index, ())
    if isinstance(axes, np.ndarray):
        return tuple(int(axis) for axis in axes.ravel())
    return tuple(axes) if isinstance(axes, tuple) else (int(axes),)


def reduce(call: Call, op: str, name: str, axes: tuple[int, ...], *, keep: bool) -> str:
    """A value reduced over axes; over all where none is named."""
    options = {"keepdims": int(keep)}
    return call.op(op, name, call.ints(*axes), **options) if axes else call.op(op, name, **options)


def _reduction(op: str) -> Handler:
    def write(call: Call) -> Value:
        dtype = call.out.dtype
        keep, axes = bool(call.static(2, False)), axes_of(call, 1)
        name = call.like(0, dtype)
        if op == "ReduceSum" and dtype == _INT64:
            return call.give(
                integers.exact_sum(call, name, lambda part: reduce(call, op, part, axes, keep=keep))
            )
        return call.give(reduce(call, op, name, axes, keep=keep))

    return write


for _primitive, _op in {
    "ReduceSum": "ReduceSum", "SumExt": "ReduceSum", "ReduceMean": "ReduceMean", "MeanExt": "ReduceMean",
    "ReduceMax": "ReduceMax", "ReduceMin": "ReduceMin", "ReduceProd": "ReduceProd", "ProdExt": "ReduceProd",
    "Max": "ReduceMax", "Min": "ReduceMin", "LogSumExp": "ReduceLogSumExp",
}.items():  # fmt: skip
    TABLE[_primitive] = _reduction(_op)


@TABLE.of("ReduceAll", "ReduceAny", "AnyExt", "Any")
def _logical(call: Call) -> Value:
    op = "ReduceMin" if call.primitive == "ReduceAll" else "ReduceMax"
    name = call.cast(call.like(0, _BOOL), _INT32, _BOOL)
    name = reduce(call, op, name, axes_of(call, 1), keep=bool(call.static(2, False)))
    return call.give(call.cast(name, _BOOL, _INT32))


@TABLE.of("Argmax", "Argmin", "ArgMaxExt", "ArgMinExt")
def _arg(call: Call) -> Value:
    op = "ArgMax" if "ax" in call.primitive[:6] else "ArgMin"
    keep = call.primitive.endswith("Ext") and bool(call.static(2, False))
    axis, name = call.static(1), call[0]
    if call.dtype(0) == _BOOL:
        name = call.cast(name, _INT32, _BOOL)
    if axis is None and call.primitive.endswith("Ext"):
        name, axis, keep = call.reshape(name, [-1]), 0, False
    found = call.op(op, name, axis=int(-1 if axis is None else axis), keepdims=int(keep))
    return call.give(call.cast(found, call.out.dtype, _INT64))


@TABLE.of("ArgMaxWithValue", "ArgMinWithValue", "MaxDim", "MinDim")
def _arg_with_value(call: Call) -> Value:
    """Place and value, or value and place, of an extreme along one axis."""
    kind = "Max" if "Max" in call.primitive else "Min"
    axis, keep = int(call.static(1, 0)), int(bool(call.static(2, False)))
    place = call.op(f"Arg{kind}", call[0], axis=axis, keepdims=keep)
    value = call.op(f"Reduce{kind}", call[0], call.ints(axis), keepdims=keep)
    value_first = call.primitive.endswith("Dim")
    wanted = call.abstract[1 if value_first else 0].dtype
    place = call.cast(place, wanted, _INT64)
    return call.give_many([value, place] if value_first else [place, value])


@TABLE.of("CumSum", "CumsumExt")
def _cumulative_sum(call: Call) -> Value:
    old = call.primitive == "CumSum"
    options = (
        {"exclusive": int(bool(call.static(2, False))), "reverse": int(bool(call.static(3, False)))}
        if old
        else {}
    )
    axis = call.number(int(call.static(1)), _INT64)
    return call.give(call.op("CumSum", call.like(0, call.out.dtype), axis, **options))


def deviation(call: Call, name: str, axes: tuple[int, ...], correction: int) -> tuple[str, str]:
    """Variance and mean, both with the reduced axes kept, of values whose sizes may be open."""
    dtype = call.dtype(0)
    mean = reduce(call, "ReduceMean", name, axes, keep=True)
    gap = call.op("Sub", name, mean)
    square = call.op("Mul", gap, gap)
    if correction == 0:
        return reduce(call, "ReduceMean", square, axes, keep=True), mean
    sizes = call.op("Shape", name)
    if axes:
        sizes = call.op("Gather", sizes, call.ints(*axes), axis=0)
    count = call.op("ReduceProd", sizes, keepdims=0)
    fewer = call.op("Max", call.op("Sub", count, call.number(correction, _INT64)), call.number(0, _INT64))
    total = reduce(call, "ReduceSum", square, axes, keep=True)
    return call.op("Div", total, call.cast(fewer, dtype, _INT64)), mean


def _without(call: Call, name: str, axes: tuple[int, ...], *, keep: bool) -> str:
    if keep:
        return name
    return call.op("Squeeze", name, call.ints(*axes)) if axes else call.op("Reshape", name, call.ints())


@TABLE.of("Var", "Std", "VarMean", "StdMean")
def _var(call: Call) -> Value:
    axes, correction, keep = axes_of(call, 1), int(call.static(2, 1)), bool(call.static(3, False))
    spread, mean = deviation(call, call[0], axes, correction)
    if call.primitive.startswith("Std"):
        spread = call.op("Sqrt", spread)
    spread = _without(call, spread, axes, keep=keep)
    if not call.primitive.endswith("Mean"):
        return call.give(spread)
    return call.give_many([spread, _without(call, mean, axes, keep=keep)])


@TABLE.of("ReduceStd")
def _reduce_std(call: Call) -> Value:
    axes, unbiased, keep = axes_of(call, 1), bool(call.static(2, True)), bool(call.static(3, False))
    spread, mean = deviation(call, call[0], axes, int(unbiased))
    both = [_without(call, name, axes, keep=keep) for name in (call.op("Sqrt", spread), mean)]
    return call.give_many(both)


@TABLE.of("Norm", "LpNormV2", "LinalgVectorNorm")
def _norm(call: Call) -> Value:
    order, axes, keep = float(call.static(1, 2)), axes_of(call, 2), bool(call.static(3, False))
    name = call.like(0, call.out.dtype)
    if order in (1.0, 2.0):
        return call.give(reduce(call, f"ReduceL{int(order)}", name, axes, keep=keep))
    size = call.op("Abs", name)
    if order in (float("inf"), float("-inf")):
        return call.give(reduce(call, "ReduceMax" if order > 0 else "ReduceMin", size, axes, keep=keep))
    powered = call.op("Pow", size, call.number(order, call.out.dtype))
    total = reduce(call, "ReduceSum", powered, axes, keep=keep)
    return call.give(call.op("Pow", total, call.number(1 / order, call.out.dtype)))


@TABLE.of("CountNonZero")
def _count(call: Call) -> Value:
    some = call.cast(call.cast(call[0], _BOOL, call.dtype(0)), _INT64, _BOOL)
    return call.give(
        call.cast(reduce(call, "ReduceSum", some, axes_of(call, 1), keep=False), call.out.dtype, _INT64)
    )
