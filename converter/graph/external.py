"""Gathering a model's external weights into the one data file of a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import onnx

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.graph.inspect import external_location, is_external, tensors

ALIGNMENT_BYTES = 4096
"""Each tensor starts at a multiple of this, so that it can be mapped. Source: onnx.proto3, `offset`."""

CHUNK_BYTES = 4 * 1024 * 1024


class Sink(Protocol):
    """What bytes can be written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take the next bytes."""


def gather_external_data(
    model: onnx.ModelProto,
    directory: Path,
    sink: Sink,
    location: str,
    *,
    leave: str | None = None,
) -> None:
    """Copy every external tensor of `model` into `sink` and let the model point there.

    Args:
        model: Changed in place: location, offset and length of each external tensor.
        directory: Where the files that the model names now lie.
        sink: Receives the bytes, each tensor aligned to 4096 bytes.
        location: What the model shall call the new file.
        leave: Tensors at this location stay as they are.

    Raises:
        ModelInvalid: If a file is missing, shorter than the model says, or outside `directory`.
    """
    position = 0
    for tensor in tensors(model):
        if not is_external(tensor) or place_of(tensor) == leave:
            continue
        position += _pad(sink, position)
        size = 0
        for chunk in _slice(tensor, directory):
            sink.write(chunk)
            size += len(chunk)
        point_to(tensor, location, position, size)
        position += size


def has_external_data(model: onnx.ModelProto) -> bool:
    """Whether any weight lies outside the model file."""
    return bool(external_places(model))


def external_places(model: onnx.ModelProto) -> set[str]:
    """The files that the model names for its weights, unchecked."""
    return {place_of(tensor) for tensor in tensors(model) if is_external(tensor)}


def place_of(tensor: onnx.TensorProto) -> str:
    """The file that an external tensor names, unchecked; empty if it names none."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def point_to(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor say that its values lie in another file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _pad(sink: Sink, position: int) -> int:
    padding = -position % ALIGNMENT_BYTES
    sink.write(b"\0" * padding)
    return padding


def _file_of(tensor: onnx.TensorProto, directory: Path) -> Path:
    name = external_location(tensor)
    path = directory / name
    try:
        found = path.resolve().is_relative_to(directory.resolve()) and path.is_file()
    except OSError:  # a name longer than any, or links in a circle
        found = False
    if not found:
        raise ModelInvalid(
            f"weight {tensor.name!r} lies in {name[:200]!r}, but there is no such file beside the model."
        )
    return path


def _slice(tensor: onnx.TensorProto, directory: Path) -> Iterator[bytes]:
    path = _file_of(tensor, directory)
    offset, length = extent(tensor, path.stat().st_size)
    with path.open("rb") as file:
        file.seek(offset)
        while length > 0:
            chunk = file.read(min(CHUNK_BYTES, length))
            if not chunk:
                raise ModelInvalid(
                    f"weight {tensor.name!r} reaches past the end of {path.name!r}; the file is cut short."
                )
            length -= len(chunk)
            yield chunk


def extent(tensor: onnx.TensorProto, size: int) -> tuple[int, int]:
    """Offset and length, in bytes, of an external tensor in its file.

    Args:
        tensor: It lies in another file.
        size: How many bytes that file has.

    Raises:
        ModelInvalid: If they are no numbers or reach past the end of the file.
    """
    fields = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(fields.get("offset", "0"))
        length = int(fields["length"]) if "length" in fields else size - offset
    except ValueError as error:
        raise ModelInvalid(f"weight {tensor.name!r} has an offset or length that is no number.") from error
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelInvalid(
            f"weight {tensor.name!r} asks for bytes {offset} to {offset + length} of "
            f"{fields.get('location', '')!r}, which has {size}; the file is cut short."
        )
    return offset, length
