"""Products of matrices."""

from __future__ import annotations

from paritygate.converter.exporters._mindspore.emitter import Call
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()


def turned(call: Call, index: int, *, swap: bool) -> str:
    """An argument, its last two axes swapped where asked."""
    name = call.like(index, call.out.dtype)
    if not swap:
        return name
    order = list(range(call.rank(index)))
    order[-2:] = [order[-1], order[-2]]
    return call.op("Transpose", name, perm=order)


@TABLE.of("MatMul", "BatchMatMul")
def _matmul(call: Call) -> Value:
    first = turned(call, 0, swap=bool(call.static(2, False)))
    second = turned(call, 1, swap=bool(call.static(3, False)))
    return call.give(call.op("MatMul", first, second))


@TABLE.of("MatMulExt", "BatchMatMulExt", "Mm", "Mv", "Dot")
def _plain_matmul(call: Call) -> Value:
    return call.give(call.op("MatMul", turned(call, 0, swap=False), turned(call, 1, swap=False)))


@TABLE.of("Dense")
def _dense(call: Call) -> Value:
    rank = call.rank(1)
    product = call.op("MatMul", call.like(0, call.out.dtype), turned(call, 1, swap=rank > 1))
    return call.give(call.op("Add", product, call.like(2, call.out.dtype)) if call.has(2) else product)


@TABLE.of("Addmm", "Baddbmm", "Addmv")
def _add_product(call: Call) -> Value:
    dtype = call.out.dtype
    product = call.op("MatMul", call.like(1, dtype), call.like(2, dtype))
    return call.give(call.op("Add", _scaled(call, call.like(0, dtype), 3), _scaled(call, product, 4)))


def _scaled(call: Call, name: str, index: int) -> str:
    if call.static(index, 1) == 1:
        return name
    return call.op("Mul", name, call.like(index, call.out.dtype))


@TABLE.of("Outer", "Ger")
def _outer(call: Call) -> Value:
    dtype = call.out.dtype
    column = call.op("Unsqueeze", call.like(0, dtype), call.ints(1))
    return call.give(call.op("Mul", column, call.like(1, dtype)))


@TABLE.of("BiasAdd")
def _bias_add(call: Call) -> Value:
    rank, layout = call.rank(0), call.static(2, "NCHW")
    bias = call.like(1, call.out.dtype)
    channels_last = layout in ("NHWC", "NDHWC", 1)
    if rank > 2 and not channels_last:
        bias = call.reshape(bias, [-1, *[1] * (rank - 2)])
    return call.give(call.op("Add", call[0], bias))


@TABLE.of("Einsum", "EinsumExt")
def _einsum(call: Call) -> Value:
    from paritygate.converter.exporters._mindspore.values import Many

    equation = call.attributes.get("equation") or call.static(0)
    operands = next(each for each in call.inputs if isinstance(each, Many))
    return call.give(call.op("Einsum", *[call.name(each) for each in operands.items], equation=equation))


@TABLE.of("MatrixDeterminant")
def _determinant(call: Call) -> Value:
    return call.give(call.op("Det", call[0]))
