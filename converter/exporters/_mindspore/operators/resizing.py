"""Pictures in other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()


def resized(call: Call, sizes: str, **options: Any) -> str:
    """A value whose last two axes get new sizes."""
    whole = call.op("Shape", call[0])
    front = call.op("Slice", whole, call.ints(0), call.ints(2))
    return call.op("Resize", call[0], "", "", call.op("Concat", front, sizes, axis=0), **options)


def _transform(*, corners: bool, centers: bool) -> str:
    if corners:
        return "align_corners"
    return "half_pixel" if centers else "asymmetric"


@TABLE.of("ResizeBilinearV2")
def _bilinear(call: Call) -> Value:
    sizes, corners, centers = call.vector(call.inputs[1]), call.static(2, False), call.static(3, False)
    transform = _transform(corners=bool(corners), centers=bool(centers))
    return call.give(resized(call, sizes, mode="linear", coordinate_transformation_mode=transform))


@TABLE.of("ResizeNearestNeighbor", "ResizeNearestNeighborV2")
def _nearest(call: Call) -> Value:
    sizes = call.vector(call.inputs[1])
    corners, centers = bool(call.static(2, False)), bool(call.static(3, False))
    rounding = "round_prefer_ceil" if corners else "floor"
    options = {"mode": "nearest", "nearest_mode": rounding}
    # With half pixels MindSpore takes floor((x + 0.5) * scale): ONNX's half_pixel with the nearest below or at.
    if centers and not corners:
        options["nearest_mode"] = "round_prefer_ceil"
    return call.give(
        resized(
            call,
            sizes,
            coordinate_transformation_mode=_transform(corners=corners, centers=centers),
            **options,
        )
    )


@TABLE.of("UpsampleNearest2D", "UpsampleBilinear2D", "UpsampleBicubic2D")
def _upsample(call: Call) -> Value:
    """Sizes or scales; the last argument says whether the corners meet."""
    corners = call.primitive != "UpsampleNearest2D" and bool(call.static(3, False))
    forms: dict[str, dict[str, Any]] = {
        "UpsampleNearest2D": {
            "mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric",
        },
        "UpsampleBilinear2D": {"mode": "linear"},
        "UpsampleBicubic2D": {"mode": "cubic", "cubic_coeff_a": -0.75},
    }  # fmt: skip
    options = forms[call.primitive]
    if call.primitive != "UpsampleNearest2D":
        options = {**options, "coordinate_transformation_mode": "align_corners" if corners else "half_pixel"}
    if call.has(1):
        return call.give(resized(call, call.vector(call.inputs[1]), **options))
    scales = call.static(2)
    if scales is None:
        raise NoForm("names neither sizes nor scales")
    factors = call.emitter.constant(np.array([1, 1, *scales], np.float32))
    return call.give(call.op("Resize", call[0], "", factors, **options))


@TABLE.of("GridSampler2D", "GridSampler3D")
def _grid_sample(call: Call) -> Value:
    modes, borders = {0: "bilinear", 1: "nearest", 2: "bicubic"}, {0: "zeros", 1: "border", 2: "reflection"}
    mode, border = call.static(2, "bilinear"), call.static(3, "zeros")
    if call.primitive == "GridSampler3D":
        raise NoForm("samples volumes, which ONNX has from opset 20 on")
    options = {"mode": modes.get(mode, mode), "padding_mode": borders.get(border, border)}
    return call.give(
        call.op("GridSample", call[0], call[1], align_corners=int(bool(call.static(4, False))), **options)
    )
