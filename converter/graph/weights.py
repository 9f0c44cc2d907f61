"""Structure and weights apart: large weights stay where they lie in a file while the structure is worked on.

A model whose weights lie inside it is otherwise copied at each step: parsed, renamed, saved, checked, parsed
again. Here its structure is read with every large weight pointing into the file, in the way of external data, so
that onnx's own tools take it for what it is; the weights go back inside when the model is written for good.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError, Message

from paritygate.converter._atomic import CHUNK_BYTES
from paritygate.converter.errors import ModelInvalid
from paritygate.converter.graph.external import ALIGNMENT_BYTES, Sink, extent, place_of, point_to
from paritygate.converter.graph.inspect import is_external, parse_model, tensors
from paritygate.converter.graph.wire import (
    Content,
    Extent,
    Field,
    MalformedMessage,
    Piece,
    fields,
    head,
    rewritten,
    size_of,
)
from paritygate.converter.types import DType

LARGE_BYTES = 4096
"""Smaller weights may be shapes, whose values shape inference reads; of larger ones it needs their own shape."""

SMALLEST_APART_BYTES = 1024
"""Where weights lie beside a model, smaller ones stay in its own file; as onnx's own writer has it."""

MAX_MESSAGE_BYTES = 2**31 - 1
"""No protobuf message is larger. Source: protobuf's encoding guide."""

_Route = Mapping[int, "_Route | None"]


def _number(message: type[Message], field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_TENSOR = _number(onnx.AttributeProto, "t")
_LISTS = frozenset(_number(onnx.AttributeProto, name) for name in ("floats", "ints", "strings"))
_FROM_ATTRIBUTE: _Route = {_TENSOR: None}
_TO_TENSORS: _Route = {
    _number(onnx.ModelProto, "graph"): {
        _number(onnx.GraphProto, "initializer"): None,
        _number(onnx.GraphProto, "node"): {_number(onnx.NodeProto, "attribute"): _FROM_ATTRIBUTE},
    },
}
"""By which fields a model leads to weights: initializers, and what Constant nodes of the main graph hold."""

_RAW_DATA = _number(onnx.TensorProto, "raw_data")
_OTHER_DATA = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def inline_file(path: Path) -> Path:
    """Where the weights lie meanwhile that belong into the model file `path` itself."""
    return path.with_name(f"{path.name}.inline")


def detach_weights(path: Path) -> onnx.ModelProto:
    """The structure of a converted model; a file with large weights inside is moved to `inline_file`.

    The structure has to be saved to `path` next. A model that was written in this form already is read as it is.

    Raises:
        ModelInvalid: If the file holds no model.
    """
    aside = inline_file(path)
    if aside.exists():
        return parse_model(path.read_bytes())
    model = read_apart(path, aside.name)
    if any(_lies_in(tensor, aside.name) for tensor in tensors(model)):
        path.rename(aside)
    return model


def attach_weights(path: Path) -> None:
    """Make a saved structure one file with its weights again.

    Raises:
        ModelInvalid: If it would pass 2 GiB, or does not fit its weights.
    """
    aside = inline_file(path)
    if aside.exists():
        model = parse_model(path.read_bytes())
        with path.open("wb") as file:
            write_whole(model, aside, file)
        aside.unlink()


def read_apart(path: Path, location: str) -> onnx.ModelProto:
    """The structure of a model, its large weights pointing to where they lie in the file.

    Args:
        path: The file.
        location: What the tensors shall call the file.

    Raises:
        ModelInvalid: If the file holds no model.
    """
    size = path.stat().st_size
    if size > LARGE_BYTES:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            structure = _without_weights(content, location)
        if structure is not None:
            return parse_model(structure, size_bytes=size)
    return parse_model(path.read_bytes())


def write_whole(model: onnx.ModelProto, weights: Path, sink: Sink) -> None:
    """Write a model with the weights inside that lie in a file; what lies in other files stays there.

    The bytes are those of protobuf's own deterministic form of the whole.

    Args:
        model: Left as it is.
        weights: The file, under the name by which the tensors call it.
        sink: Receives the bytes.

    Raises:
        ModelInvalid: If they would pass 2 GiB, or the model asks for bytes that the file does not have.
    """
    structure = model.SerializeToString(deterministic=True)
    with weights.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        pieces = _with_weights(structure, weights.name, size)
        total = size_of(pieces)
        if total > MAX_MESSAGE_BYTES:
            raise ModelInvalid(
                f"the model has {total} bytes with its weights inside, and no ONNX file can pass 2 GiB; export it "
                "with the weights beside it (external_data_threshold_bytes=0)."
            )
        for piece in pieces:
            if not isinstance(piece, Extent):
                sink.write(piece)
                continue
            source.seek(piece.offset)
            for position in range(0, piece.length, CHUNK_BYTES):
                sink.write(source.read(min(CHUNK_BYTES, piece.length - position)))


def save_apart(model: onnx.ModelProto, weights: Path, path: Path, threshold_bytes: int) -> None:
    """Save a structure to `path`, and the file of its large weights beside it: inside the model or apart for good.

    Args:
        model: Changed: where its weights lie.
        weights: The file, under the name by which the tensors call it; it is moved.
        path: The model's own file.
        threshold_bytes: Weights larger than this in sum stay beside the model in the end.
    """
    large = [tensor for tensor in tensors(model) if _lies_in(tensor, weights.name)]
    inside = [tensor for tensor in model.graph.initializer if tensor.HasField("raw_data")]
    extents = [(tensor, *extent(tensor, weights.stat().st_size)) for tensor in large]
    apart = sum(size for *_, size in extents) + sum(len(t.raw_data) for t in inside) > threshold_bytes
    home = path.with_name(f"{path.name}.data") if apart else inline_file(path)
    shutil.move(weights, home)
    for tensor, offset, length in extents:
        point_to(tensor, home.name, offset, length)
    if apart:
        _append(
            home, [t for t in inside if len(t.raw_data) >= (SMALLEST_APART_BYTES if threshold_bytes else 0)]
        )
    path.write_bytes(model.SerializeToString(deterministic=True))


def set_aside(tensor: onnx.TensorProto, data: bytes | memoryview, file: BinaryIO) -> None:
    """Append a tensor's bytes to a side file, aligned, and let the tensor point there."""
    file.write(bytes(-file.tell() % ALIGNMENT_BYTES))
    point_to(tensor, Path(file.name).name, file.tell(), len(data))
    file.write(data)


def _append(path: Path, inside: list[onnx.TensorProto]) -> None:
    with path.open("ab") as file:
        for tensor in inside:
            data = tensor.raw_data
            tensor.ClearField("raw_data")
            set_aside(tensor, data, file)


def _lies_in(tensor: onnx.TensorProto, location: str) -> bool:
    return is_external(tensor) and place_of(tensor) == location


# --- reading ------------------------------------------------------------------------------------------------


def _without_weights(content: Content, location: str) -> bytes | None:
    """A model whose large weights are pointed to; None if it has none, or is no message at all."""
    try:
        pieces = _over_tensors(
            content,
            0,
            len(content),
            _TO_TENSORS,
            lambda tensor: _pointing(content, tensor, location),
            LARGE_BYTES,
        )
    except (MalformedMessage, DecodeError):
        return None
    return b"".join(piece for piece in pieces if not isinstance(piece, Extent)) if pieces else None


def _over_tensors(
    content: Content,
    start: int,
    end: int,
    route: _Route,
    rewrite: Callable[[Field], Sequence[Piece] | None],
    larger_than: int = 0,
) -> list[Piece] | None:
    """A message in which tensors on the route are rewritten, if they are larger than so many bytes."""

    def inner(field: Field) -> Sequence[Piece] | None:
        if field.number not in route or field.end - field.start <= larger_than:
            return None
        further = route[field.number]
        if further is None:
            return rewrite(field)
        if further is _FROM_ATTRIBUTE and _is_list(content, field):
            return None
        return _over_tensors(content, field.start, field.end, further, rewrite, larger_than)

    return rewritten(content, start, end, inner)


def _is_list(content: Content, attribute: Field) -> bool:
    """Whether an attribute holds a list and no tensor.

    Each entry of a list is a field of its own, and a forest has millions. From the first on, protobuf reads them.
    """
    for each in fields(content, attribute.start, attribute.end):
        if each.number == _TENSOR:
            return False
        if each.number in _LISTS:
            return not onnx.AttributeProto.FromString(content[each.begin : attribute.end]).HasField("t")
    return False


def _pointing(content: Content, field: Field, location: str) -> list[Piece] | None:
    """A weight without its data; None if these are not plain bytes of the size that its dims say."""
    data = [each for each in fields(content, field.start, field.end) if each.number == _RAW_DATA]
    if len(data) != 1 or not data[0].has_length:
        return None
    raw = data[0]
    length = raw.end - raw.start
    if length <= LARGE_BYTES:
        return None
    tensor = onnx.TensorProto.FromString(content[field.start : raw.begin] + content[raw.end : field.end])
    if not _fits(tensor, length):
        return None
    point_to(tensor, location, raw.start, length)
    return [tensor.SerializeToString(deterministic=True)]


def _fits(tensor: onnx.TensorProto, length: int) -> bool:
    """What does not fit is left in the file, where onnx's checker meets it."""
    if is_external(tensor) or tensor.external_data or tensor.HasField("segment"):
        return False
    if any(len(getattr(tensor, name)) for name in _OTHER_DATA):
        return False
    try:
        dtype = DType.from_onnx(tensor.data_type)
    except ValueError:
        return False
    return dtype is not DType.STRING and length == math.prod(tensor.dims) * dtype.numpy.itemsize


# --- writing ------------------------------------------------------------------------------------------------


def _with_weights(structure: bytes, location: str, size: int) -> list[Piece]:
    """A serialised model in which what points to a file of `size` bytes is given by these."""

    def whole(field: Field) -> list[Piece] | None:
        tensor = onnx.TensorProto.FromString(structure[field.start : field.end])
        if not _lies_in(tensor, location):
            return None
        offset, length = extent(tensor, size)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        plain = tensor.SerializeToString(deterministic=True)
        later = (each.begin for each in fields(plain, 0, len(plain)) if each.number > _RAW_DATA)
        cut = next(later, len(plain))  # protobuf writes fields in the order of their numbers
        return [plain[:cut], head(_RAW_DATA, length), Extent(offset, length), plain[cut:]]

    return _over_tensors(structure, 0, len(structure), _TO_TENSORS, whole) or [structure]
