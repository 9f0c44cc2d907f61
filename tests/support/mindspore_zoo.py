"""One cell for each family of MindSpore's operators; as a program, writes each as ONNX beside MindSpore's answers.

`python mindspore_zoo.py FOLDER` leaves `<name>.onnx` and `<name>.npz` for every cell, the answers at two sizes of
the open axes, and `report.json` with the primitives that each used, or its error.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from paritygate.converter.config import ExportConfig
from paritygate.converter.exporters.base import ConversionRequest
from paritygate.converter.exporters.mindspore import MindSporeExporter
from paritygate.converter.types import DType, TensorSpec
from support.exporter_cases import sample


class Call(nn.Cell):  # type: ignore[misc]
    """A function as a cell."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def construct(self, *x: Any) -> Any:
        return self.function(*x)


class Around(nn.Cell):  # type: ignore[misc]
    """A layer whose weights are neither zeros nor ones."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        for place, weight in enumerate(layer.get_parameters()):
            values = sample(*weight.shape) * 0.3 if weight.shape else np.float32(0.3)
            weight.set_data(
                ms.Tensor(np.abs(values) + 0.5 if "variance" in weight.name else values + place * 0.01)
            )

    def construct(self, *x: Any) -> Any:
        return self.layer(*x)


@dataclass(frozen=True)
class Case:
    """A cell, what it is given, and which axes of its inputs are open beside the first."""

    cell: Any
    inputs: tuple[Any, ...]
    also_open: dict[int, tuple[int, ...]] = field(default_factory=dict)
    batch: bool = True


def divisions(x: Any, y: Any) -> Any:
    return ops.floor_div(x, y), ops.floor_mod(x, y)


def truncations(x: Any, y: Any) -> Any:
    return ops.div(x, y, rounding_mode="trunc"), ops.fmod(x, y)


def true_division(x: Any, y: Any) -> Any:
    return ops.div(x, y), ops.true_divide(x, y)


def curves(x: Any) -> Any:
    return (
        ops.erf(x),
        ops.erfc(x),
        ops.expm1(x),
        ops.log1p(ops.abs(x)),
        ops.rsqrt(ops.abs(x) + 1.0),
        ops.exp(x),
    )


def near_zero(x: Any) -> Any:
    """Divided by what they are near, so that no digit hides behind a larger answer."""
    return nn.CELU(1.3)(x) / x, nn.SeLU()(x) / x


def far(x: Any) -> Any:
    return ops.expm1(x), ops.log1p(ops.abs(x))


def angles(x: Any, y: Any) -> Any:
    return ops.atan2(x, y), ops.sin(x), ops.cos(y), ops.tan(x), ops.asinh(x), ops.atan(y), ops.tanh(x)


def powers(x: Any, y: Any) -> Any:
    base = ops.abs(x) + 0.1
    return ops.pow(base, y), ops.square(x), ops.sqrt(base), ops.log(base), ops.log2(base), ops.log10(base)


def rounding(x: Any) -> Any:
    x = x * 4.0
    return ops.floor(x), ops.ceil(x), ops.round(x), ops.trunc(x), ops.sign(x), ops.neg(x), ops.abs(x)


def comparing(x: Any, y: Any) -> Any:
    near = ops.maximum(x, y)
    return x > y, x >= near, x < y, x <= near, x == near, x != near, ops.logical_xor(x > 0.0, y > 0.0)


def choosing(x: Any, y: Any) -> Any:
    return (
        ops.where(x > y, x, y),
        ops.clamp(x, -0.5, 0.5),
        ops.masked_fill(x, y > 0.0, 7.0),
        ops.minimum(x, y),
    )


def extremes(x: Any) -> Any:
    return (
        x.argmax(axis=-1),
        x.argmin(axis=1),
        x.max(axis=1),
        x.min(axis=-1),
        ops.topk(x, 2)[0],
        ops.topk(x, 2)[1],
    )


def reducing(x: Any) -> Any:
    return (
        x.sum(axis=1),
        x.mean(axis=(1, 2)),
        ops.prod(x, 1),
        ops.std(x, axis=1),
        ops.var(x, axis=-1),
        ops.norm(x),
    )


def running(x: Any) -> Any:
    return ops.cumsum(x, 1), ops.logsumexp(x, 1), ops.all(x > -9.0, 1), ops.any(x > 0.5, 1)


def whole_sums(x: Any) -> Any:
    return x.sum(axis=1), ops.cumsum(x, 1), x.max(axis=1), x + x, x * 3, ops.abs(x)


def sorting(x: Any) -> Any:
    return ops.sort(x, 1)


def shaping(x: Any) -> Any:
    x = x.expand_dims(1).squeeze(1).swapaxes(1, 2)
    return (
        x.reshape(x.shape[0], -1),
        x.transpose(0, 2, 1),
        ops.flip(x, (1,)),
        ops.tile(x, (1, 2, 1)),
        x.ravel(),
    )


def joining(x: Any, y: Any) -> Any:
    return (
        ops.concat((x, y), 1),
        ops.stack((x, y), 1),
        ops.split(x, 2, axis=2),
        ops.unbind(x, 1),
        ops.chunk(y, 2, 2),
    )


def slicing(x: Any) -> Any:
    return x[:, 1:3], x[:, ::2], x[..., -1], x[:, :, None, 1], ops.narrow(x, 1, 1, 2)


def gathering(x: Any, index: Any) -> Any:
    return (
        ops.gather(x, index[0], 1),
        ops.gather_elements(x, 1, index),
        ops.one_hot(index, 4),
        ops.repeat_interleave(x, 2, 1),
    )


def triangles(x: Any) -> Any:
    return ops.tril(x), ops.triu(x, 1), ops.zeros_like(x), ops.ones_like(x), ops.full_like(x, 2.5)


def products(x: Any, y: Any) -> Any:
    turned = y.swapaxes(1, 2)
    return ops.matmul(x, turned), ops.bmm(x, turned), ops.matmul(x[:, 0], y[0].T)


def padding(x: Any) -> Any:
    return ops.pad(x, (1, 2)), ops.pad(x, (1, 2), value=3.5), ops.pad(x, (1, 1, 2, 0), mode="reflect")


def bits(x: Any, y: Any) -> Any:
    return ops.bitwise_and(x, y), ops.bitwise_or(x, y), ops.bitwise_xor(x, y), ops.invert(x)


def casting(x: Any) -> Any:
    return (
        (x * 3.0).astype(ms.int32),
        x.astype(ms.float16),
        (x > 0.0).astype(ms.float32),
        (x * 3.0).astype(ms.int64),
    )


def branching(x: Any) -> Any:
    return x * 2.0 if x.sum() > 0.0 else x - 1.0


def interpolated(x: Any) -> Any:
    return (
        ops.interpolate(x, size=(13, 7), mode="bilinear", align_corners=True),
        ops.interpolate(x, size=(13, 7), mode="bilinear", align_corners=False),
        ops.interpolate(x, size=(10, 14), mode="nearest"),
    )


_FUNCTIONS = (
    curves, rounding, extremes, running, sorting, triangles, casting, branching,
)  # fmt: skip
_PAIRS = (angles, powers, comparing, choosing, true_division)
_CUBES = (reducing, shaping, slicing)

_ON_VECTORS = {
    "relu6": nn.ReLU6(), "elu": nn.ELU(), "celu": nn.CELU(1.3), "selu": nn.SeLU(), "silu": nn.SiLU(),
    "gelu_tanh": nn.GELU(), "gelu_erf": nn.GELU(approximate=False), "hardswish": nn.HSwish(),
    "hardsigmoid": nn.HSigmoid(), "mish": nn.Mish(), "softsign": nn.Softsign(), "logsigmoid": nn.LogSigmoid(),
    "softmax": nn.Softmax(), "logsoftmax": nn.LogSoftmax(), "leakyrelu": nn.LeakyReLU(0.1),
    "hardshrink": nn.HShrink(), "softshrink": nn.SoftShrink(), "tanhshrink": nn.Tanhshrink(),
    "hardtanh": nn.Hardtanh(), "threshold": nn.Threshold(0.1, 7.0), "softmin": nn.Softmin(),
}  # fmt: skip

_ON_PICTURES = {
    "conv_same": lambda: nn.Conv2d(4, 6, 3, stride=2),
    "conv_dilated": lambda: nn.Conv2d(4, 6, 3, pad_mode="valid", dilation=2, has_bias=True),
    "conv_grouped": lambda: nn.Conv2d(4, 6, 3, pad_mode="pad", padding=(1, 2, 0, 1), group=2),
    "transpose_same": lambda: nn.Conv2dTranspose(4, 6, 3, stride=2),
    "transpose_pad": lambda: nn.Conv2dTranspose(4, 6, 3, 2, "pad", 1, output_padding=1, has_bias=True),
    "transpose_valid": lambda: nn.Conv2dTranspose(4, 6, 3, pad_mode="valid", stride=3),
    "maxpool_same": lambda: nn.MaxPool2d(3, 2, pad_mode="same"),
    "maxpool_pad": lambda: nn.MaxPool2d(3, 2, pad_mode="pad", padding=1),
    "maxpool_ceil": lambda: nn.MaxPool2d(3, 2, pad_mode="pad", padding=1, ceil_mode=True),
    "avgpool_same": lambda: nn.AvgPool2d(3, 2, pad_mode="same"),
    "avgpool_pad": lambda: nn.AvgPool2d(3, 2, pad_mode="pad", padding=1, count_include_pad=False),
    "adaptive_avg": lambda: nn.AdaptiveAvgPool2d((4, None)),
    "adaptive_max": lambda: nn.AdaptiveMaxPool2d(3),
    "batchnorm": lambda: nn.BatchNorm2d(4),
    "groupnorm": lambda: nn.GroupNorm(2, 4),
    "localnorm": lambda: nn.LRN(depth_radius=2),
    "pixelshuffle": lambda: nn.PixelShuffle(2),
    "pixelunshuffle": lambda: nn.PixelUnshuffle(3),
    "constantpad": lambda: nn.ConstantPad2d((1, 2, 0, 1), 3.5),
    "reflectionpad": lambda: nn.ReflectionPad2d((1, 2, 0, 1)),
    "replicationpad": lambda: nn.ReplicationPad2d(1),
    "prelu": lambda: nn.PReLU(4),
}


def cases() -> Iterator[tuple[str, Case]]:
    """Every cell by name."""
    x, y, cube = sample(4, 6), sample(4, 6)[::-1].copy(), sample(2, 4, 6)
    for function in _FUNCTIONS:
        yield function.__name__, Case(Call(function), (x,))
    for function in _PAIRS:
        yield function.__name__, Case(Call(function), (x, y))
    for function in _CUBES:
        yield function.__name__, Case(Call(function), (cube,))
    yield "interpolated", Case(Call(interpolated), (sample(2, 3, 5, 6),))
    yield "padding", Case(Call(padding), (cube,))
    yield "joining", Case(Call(joining), (cube, cube[::-1].copy()))
    yield "products", Case(Call(products), (cube, cube[::-1].copy()))
    index = np.array([[0, 3, 1], [2, 2, 5]], np.int64)
    yield "gathering", Case(Call(gathering), (sample(2, 6), index % 6))
    yield from _whole_numbers()
    for name, layer in _ON_VECTORS.items():
        yield name, Case(Around(layer), (x * 3,), {0: (1,)} if "softm" not in name else {})
    for name, make in _ON_PICTURES.items():
        yield name, Case(Around(make()), (sample(2, 4, 9, 9),))
    yield from _sequences(sample(2, 5, 4))


def _whole_numbers() -> Iterator[tuple[str, Case]]:
    """Small enough for MindSpore, which itself divides in float64, and to the next number to zero in float32.

    What ours gives beyond is tried in test_mindspore.py.
    """
    edges = np.array([[7, -7, 2**52 + 1, -(2**52), 0, 2**51]], np.int64).repeat(3, 0)
    by = np.array([[3, 3, 2**52 - 1, -1, 5, -3], [-3, -3, 7, 1, -5, 2], [2, -2, -1, 2, 1, 2**40]], np.int64)
    yield "divisions_int64", Case(Call(divisions), (edges, by))
    small = edges[:, [0, 1, 4]].astype(np.int32)
    yield "divisions_int32", Case(Call(divisions), (small, by[:, [0, 1, 4]].astype(np.int32)))
    yield "divisions_float", Case(Call(divisions), (sample(3, 6) * 7, by.astype(np.float32) / 2))
    yield "truncations_int64", Case(Call(truncations), (edges[:, [0, 1, 4]] * 99, by[:, [0, 1, 4]]))
    yield "truncations_float", Case(Call(truncations), (sample(3, 6) * 7, by.astype(np.float32) / 2))
    yield "whole_sums", Case(Call(whole_sums), (edges // 8,))
    yield "near_zero", Case(Call(near_zero), (np.array([[1e-6, -1e-6, -2e-7, -1e-12]], np.float32),))
    yield "far", Case(Call(far), (np.array([[-200.0, -1e30, -np.inf, np.inf, 88.0]], np.float32),))
    yield "bits", Case(Call(bits), (edges.astype(np.int32), by.astype(np.int32)))


def _sequences(x: Any) -> Iterator[tuple[str, Case]]:
    both = {0: (1,)}
    yield "lstm", Case(Around(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)), (x,), both)
    yield "gru", Case(Around(nn.GRU(4, 3, batch_first=True)), (x,))
    yield "rnn", Case(Around(nn.RNN(4, 3, batch_first=True)), (x,))
    yield (
        "encoder",
        Case(Around(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)), (x,), both),
    )
    yield "layernorm", Case(Around(nn.LayerNorm((4,))), (x,), both)
    yield "conv1d", Case(Around(nn.Conv1d(5, 6, 3, has_bias=True)), (x,))
    yield "conv3d", Case(Around(nn.Conv3d(3, 4, 3, has_bias=True)), (sample(2, 3, 5, 5, 5),))
    yield "embedding", Case(Around(nn.Embedding(7, 3)), (np.array([[0, 6, 2], [3, 3, 1]], np.int32),), both)


# --- as a program -------------------------------------------------------------------------------------------


def write(name: str, case: Case, folder: Path) -> list[str]:
    """Write one case; gives the primitives of its program."""
    config = ExportConfig(name=name, inputs=case.inputs)
    with MindSporeExporter().open_source(case.cell, config) as source:
        assert source.example is not None
        feeds = dict(source.example)
        answers = source.run(feeds)
        opened = {own: (0, *case.also_open.get(k, ())) for k, own in enumerate(feeds)}
        specs = tuple(
            TensorSpec(
                own,
                DType.from_numpy(array.dtype),
                tuple(f"axis{k}" if k in opened[own] else size for k, size in enumerate(array.shape)),
            )
            for own, array in feeds.items()
        )
        programs: list[Any] = []
        compiled = source.program_for  # type: ignore[attr-defined]
        source.program_for = lambda request: programs.append(compiled(request)) or programs[-1]  # type: ignore[attr-defined]
        source.convert(ConversionRequest(folder / f"{name}.onnx", specs, feeds, 18, 1 << 30))
        larger = {own: _grown(array, opened[own]) for own, array in feeds.items()}
        stored = {"small": (feeds, answers), "large": (larger, source.run(larger))}
        arrays = {
            f"{size}/{side}/{own}": array
            for size, sides in stored.items()
            for side, part in zip(("in", "out"), sides, strict=True)
            for own, array in part.items()
        }
        np.savez(folder / f"{name}.npz", **arrays)
        return sorted(programs[0].primitives())


def _grown(array: Any, axes: tuple[int, ...]) -> Any:
    for axis in axes:
        array = np.concatenate([array, array.take([0], axis=axis), array], axis=axis)
    return array


def main(folder: Path) -> None:
    folder.mkdir()
    ms.set_seed(0)
    report: dict[str, Any] = {}
    for name, case in cases():
        try:
            report[name] = write(name, case, folder)
        except Exception as error:
            traceback.print_exc()
            report[name] = f"{type(error).__name__}: {str(error).strip()[:400]}"
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
