"""LSTM as one primitive, which is how nn.LSTM runs on a CPU; other recurrent cells come unrolled."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()

_INT64 = np.dtype(np.int64)


@TABLE.of("LSTM")
def _lstm(call: Call) -> Value:
    """Input, states, and all weights in one vector: for the input, for the state, and one bias for both."""
    get = call.attributes.get
    if get("num_layers", 1) != 1 or get("bidirectional", False) or get("proj_size", 0):
        raise NoForm(
            "has several layers, two directions or a projection in one primitive, which a CPU does not run"
        )
    inputs, hidden = int(get("input_size")), int(get("hidden_size"))
    weights = call.reshape(call[3], [-1])
    kernel = _gates(call, _part(call, weights, 0, 4 * hidden * inputs, [1, 4 * hidden, inputs]), hidden)
    start = 4 * hidden * inputs
    recurrent = _gates(
        call, _part(call, weights, start, 4 * hidden * hidden, [1, 4 * hidden, hidden]), hidden
    )
    start += 4 * hidden * hidden
    bias = ""
    if get("has_bias", True):
        given = _gates(call, _part(call, weights, start, 4 * hidden, [1, 4 * hidden]), hidden)
        none = call.emitter.constant(np.zeros((1, 4 * hidden), call.dtype(0)))
        bias = call.op("Concat", given, none, axis=1)
    answers = call.ops(
        "LSTM", call[0], kernel, recurrent, bias, "", call[1], call[2], outputs=3, hidden_size=hidden
    )
    return call.give_many([call.op("Squeeze", answers[0], call.ints(1)), *answers[1:]])


def _part(call: Call, weights: str, start: int, count: int, sizes: list[int]) -> str:
    return call.reshape(call.op("Slice", weights, call.ints(start), call.ints(start + count)), sizes)


def _gates(call: Call, name: str, hidden: int) -> str:
    """Input, forget, cell, output as MindSpore has them; input, output, forget, cell as ONNX does."""
    gates = call.ops("Split", name, outputs=4, axis=1, num_outputs=4)
    return call.op("Concat", gates[0], gates[3], gates[1], gates[2], axis=1)


@TABLE.of("ReverseSequence")
def _reverse_sequence(call: Call) -> Value:
    get = call.attributes.get
    axes = {"time_axis": int(get("seq_dim", 0)), "batch_axis": int(get("batch_dim", 0))}
    if set(axes.values()) != {0, 1}:
        raise NoForm(f"reverses the axes {axes}, and ONNX reverses time and batch among the first two")
    return call.give(call.op("ReverseSequence", call[0], call.like(1, _INT64), **axes))
