"""Convolutions and their transposes, in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()

_MODES = {0: "pad", 1: "same", 2: "valid"}


def numbers(value: Any, count: int, default: int = 1) -> list[int]:
    """The last `count` of some numbers; one number stands for all axes."""
    if value is None:
        return [default] * count
    if not isinstance(value, Sequence):
        return [int(value)] * count
    found = [int(n) for n in value]
    return found * count if len(found) == 1 else found[-count:]


def padding(mode: Any, pads: Any, count: int) -> dict[str, Any]:
    """ONNX's attributes for what MindSpore calls `pad_mode` and `pad`, a pair for each axis."""
    kind = str(_MODES.get(mode, mode)).lower() if isinstance(mode, int) else str(mode).lower()
    if kind == "same":
        return {"auto_pad": "SAME_UPPER"}
    if kind == "valid" or pads is None:
        return {"pads": [0] * 2 * count}
    given = numbers(pads, len(pads) if isinstance(pads, Sequence) else 1)
    if len(given) == 1:
        return {"pads": given * 2 * count}
    if len(given) == count:
        return {"pads": given * 2}
    pairs = given[-2 * count :]
    return {"pads": [*pairs[::2], *pairs[1::2]]}


def channels_first(call: Call) -> None:
    """Refuse a layout with the channels last.

    Raises:
        NoForm: If the primitive has it.
    """
    layout = call.attributes.get("format", call.attributes.get("data_format", "NCHW"))
    if layout in ("NHWC", "NDHWC", 1):
        raise NoForm("keeps its channels last")


@TABLE.of("Conv2D", "Conv3D", "DepthwiseConv2dNative")
def _conv(call: Call) -> Value:
    channels_first(call)
    get, count = call.attributes.get, call.rank(1) - 2
    options = {
        "strides": numbers(get("stride", get("strides")), count),
        "dilations": numbers(get("dilation", get("dilations")), count),
        "group": int(get("group", get("groups", 1)) or 1),
        **padding(get("pad_mode", "valid"), get("pad_list") or get("pad"), count),
    }
    return call.give(call.op("Conv", call[0], call[1], **options))


@TABLE.of("Conv1DExt", "Conv2DExt", "Conv3DExt", "Conv1DPadding", "Conv2DPadding", "Conv3DPadding")
def _conv_ext(call: Call) -> Value:
    """Weight, bias, stride, padding (numbers or a word), dilation, groups."""
    count = call.rank(1) - 2
    pads = call.static(4, 0)
    word = call.primitive.endswith("Padding")
    options = {
        "strides": numbers(call.static(3, 1), count),
        "dilations": numbers(call.static(5, 1), count),
        "group": int(call.static(6, 1)),
        **(padding(pads, None, count) if word else padding("pad", numbers(pads, count), count)),
    }
    return call.give(_unbatched(call, "Conv", options, count))


@TABLE.of("Convolution", "ConvolutionStr")
def _convolution(call: Call) -> Value:
    count = call.rank(1) - 2
    pads = call.static(4, 0)
    word = call.primitive == "ConvolutionStr"
    options = {
        "strides": numbers(call.static(3, 1), count),
        "dilations": numbers(call.static(5, 1), count),
        "group": int(call.static(8, 1)),
        **(padding(pads, None, count) if word else padding("pad", numbers(pads, count), count)),
    }
    if not call.static(6, False):
        return call.give(_unbatched(call, "Conv", options, count))
    options["output_padding"] = numbers(call.static(7, 0), count)
    return call.give(_unbatched(call, "ConvTranspose", options, count))


@TABLE.of("ConvTranspose2D")
def _conv_transpose(call: Call) -> Value:
    count = 2
    options = {
        "strides": numbers(call.static(3, 1), count),
        "group": int(call.static(6, 1)),
        "dilations": numbers(call.static(7, 1), count),
        "output_padding": numbers(call.static(5, 0), count),
        **padding("pad", numbers(call.static(4, 0), count), count),
    }
    return call.give(_unbatched(call, "ConvTranspose", options, count))


def _unbatched(call: Call, op: str, options: dict[str, Any], count: int) -> str:
    """These primitives also take one example without a batch axis."""
    bias = [call[2]] if call.has(2) else []
    if call.rank(0) == count + 2:
        return call.op(op, call[0], call[1], *bias, **options)
    one = call.op("Unsqueeze", call[0], call.ints(0))
    return call.op("Squeeze", call.op(op, one, call[1], *bias, **options), call.ints(0))


@TABLE.of("Conv2DBackpropInput", "Conv2DTranspose", "Conv3DTranspose", "Conv3DBackpropInput")
def _old_transpose(call: Call) -> Value:
    """The gradient of a convolution, which is its transpose; the wanted sizes are an argument or an attribute."""
    channels_first(call)
    get, count = call.attributes.get, call.rank(1) - 2
    options = {
        "strides": numbers(get("stride", get("strides")), count),
        "dilations": numbers(get("dilation", get("dilations")), count),
        "group": int(get("group", get("groups", 1)) or 1),
    }
    pads = padding(get("pad_mode", "valid"), get("pad_list") or get("pad"), count)
    wanted = _spatial_sizes(call, count)
    if "auto_pad" in pads:
        if wanted is None:
            raise NoForm("pads to the same size where that size is open")
        return call.give(call.op("ConvTranspose", call[0], call[1], output_shape=wanted, **pads, **options))
    extra = numbers(get("output_padding", 0), count) if "Conv3D" in call.primitive else None
    extra = extra or _left_over(call, wanted, options, pads["pads"], count)
    return call.give(call.op("ConvTranspose", call[0], call[1], output_padding=extra, **pads, **options))


def _spatial_sizes(call: Call, count: int) -> list[int] | None:
    sizes = call.out.shape
    if sizes is None or None in sizes[-count:]:
        return None
    return [int(size) for size in sizes[-count:] if size is not None]


def _left_over(
    call: Call, wanted: Sequence[int] | None, options: dict[str, Any], pads: Sequence[int], count: int
) -> list[int]:
    """By how much the wanted sizes are larger than the smallest that this convolution may come from."""
    given, kernel = call.shape(0)[-count:], call.shape(1)[-count:]
    if wanted is None or None in given:
        return [0] * count
    smallest = [
        (int(size or 0) - 1) * options["strides"][k] - pads[k] - pads[k + count]
        + options["dilations"][k] * (int(kernel[k] or 1) - 1) + 1
        for k, size in enumerate(given)
    ]  # fmt: skip
    return [size - least for size, least in zip(wanted, smallest, strict=True)]


@TABLE.of("PixelShuffle", "DepthToSpace")
def _depth_to_space(call: Call) -> Value:
    size = int(call.static(1)) if call.primitive == "PixelShuffle" else int(call.attributes["block_size"])
    mode = "CRD" if call.primitive == "PixelShuffle" else "DCR"
    return call.give(call.op("DepthToSpace", call[0], blocksize=size, mode=mode))


@TABLE.of("SpaceToDepth")
def _space_to_depth(call: Call) -> Value:
    return call.give(call.op("SpaceToDepth", call[0], blocksize=int(call.attributes["block_size"])))
