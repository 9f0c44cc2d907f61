"""Normalisation over batches, layers, groups and lengths, in inference."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()


@TABLE.of("BatchNorm")
def _batch_norm(call: Call) -> Value:
    """Weight, bias, mean, variance; whether it trains; epsilon; momentum; layout."""
    if call.static(5, False):
        raise NoForm("takes mean and variance from the batch, as in training")
    if call.static(8, "NCHW") in ("NHWC", 1):
        raise NoForm("keeps its channels last")
    name = call.op("BatchNormalization", *[call[k] for k in range(5)], epsilon=float(call.static(6, 1e-5)))
    return call.give_many([name]) if isinstance(call.abstract, list) else call.give(name)


@TABLE.of("BatchNormExt")
def _batch_norm_ext(call: Call) -> Value:
    if call.static(5, False) or not (call.has(3) and call.has(4)):
        raise NoForm("takes mean and variance from the batch, as in training")
    dtype = call.dtype(0)
    channels = call.shape(0)[1]
    if channels is None:
        raise NoForm("has an open number of channels")
    fill = {1: 1, 2: 0}
    parts = [
        call[k] if call.has(k) else call.emitter.constant(np.full(channels, fill[k], dtype))
        for k in (1, 2, 3, 4)
    ]
    name = call.op("BatchNormalization", call[0], *parts, epsilon=float(call.static(7, 1e-5)))
    return call.give_many([name]) if isinstance(call.abstract, list) else call.give(name)


@TABLE.of("LayerNorm", "LayerNormV3")
def _layer_norm(call: Call) -> Value:
    rank = call.rank(0)
    begin = int(call.static(3, 1)) % rank
    if int(call.static(4, 1)) % rank != begin:
        raise NoForm("normalises over other axes than its weights have")
    name = call.op(
        "LayerNormalization",
        call[0],
        call[1],
        call[2],
        axis=begin - rank,
        epsilon=float(call.static(5, 1e-7)),
    )
    return call.give_many([name])


@TABLE.of("LayerNormExt")
def _layer_norm_ext(call: Call) -> Value:
    sizes = call.static(1)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    dtype = call.dtype(0)
    weight = call[2] if call.has(2) else call.emitter.constant(np.ones(sizes, dtype))
    more = [call[3]] if call.has(3) else []
    name = call.op(
        "LayerNormalization", call[0], weight, *more, axis=-len(sizes), epsilon=float(call.static(4, 1e-5))
    )
    return call.give_many([name])


@TABLE.of("RmsNorm")
def _rms_norm(call: Call) -> Value:
    dtype = call.dtype(0)
    square = call.op("ReduceMean", call.op("Mul", call[0], call[0]), call.ints(-1), keepdims=1)
    root = call.op("Sqrt", call.op("Add", square, call.number(call.static(2, 1e-6), dtype)))
    return call.give_many([call.op("Mul", call.op("Div", call[0], root), call[1])])


@TABLE.of("GroupNorm")
def _group_norm(call: Call) -> Value:
    """Groups are normalised as instances, then scaled by channel."""
    rank, groups, channels = call.rank(0), int(call.static(1)), call.shape(0)[1]
    if channels is None:
        raise NoForm("has an open number of channels")
    dtype = call.dtype(0)
    sizes = call.op("Shape", call[0])
    grouped = call.op("Reshape", call[0], call.ints(0, groups, -1))
    ones, zeros = (call.emitter.constant(np.full(groups, number, dtype)) for number in (1, 0))
    even = call.op("InstanceNormalization", grouped, ones, zeros, epsilon=float(call.static(4, 1e-5)))
    name = call.op("Reshape", even, sizes)
    for index, op in ((2, "Mul"), (3, "Add")):
        if call.has(index):
            name = call.op(op, name, call.reshape(call[index], [-1, *[1] * (rank - 2)]))
    return call.give_many([name])


@TABLE.of("InstanceNorm", "InstanceNormV2")
def _instance_norm(call: Call) -> Value:
    raise NoForm("takes mean and variance from the batch, as in training")


@TABLE.of("L2Normalize")
def _l2_normalize(call: Call) -> Value:
    axis = call.attributes.get("axis", 0)
    axes = axis if isinstance(axis, tuple) else (axis,)
    dtype = call.dtype(0)
    total = call.op("ReduceSumSquare", call[0], call.ints(*axes), keepdims=1)
    floor = call.number(call.attributes.get("epsilon", 1e-4), dtype)
    return call.give(call.op("Div", call[0], call.op("Sqrt", call.op("Max", total, floor))))


@TABLE.of("LRN")
def _lrn(call: Call) -> Value:
    get = call.attributes.get
    if get("norm_region", "ACROSS_CHANNELS") != "ACROSS_CHANNELS":
        raise NoForm(f"normalises {get('norm_region')}")
    size = 2 * int(get("depth_radius", 5)) + 1
    # ONNX divides alpha by the number of channels that are summed.
    options = {
        "alpha": float(get("alpha", 1.0)) * size,
        "beta": float(get("beta", 0.5)),
        "bias": float(get("bias", 1.0)),
    }
    return call.give(call.op("LRN", call[0], size=size, **options))


@TABLE.of("Dropout")
def _dropout(call: Call) -> Value:
    raise NoForm("drops elements at random; set_train(False) did not reach it")
