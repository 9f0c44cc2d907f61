"""What a MindIR file holds, looked through as data before MindSpore makes anything of it.

MindSpore 2.10 runs `Custom` out of any shared library that a file names (test_mindspore.py lets it), and
allocates what sizes a file claims. Python text in a file, and weights outside its folder, it refuses itself, which
older releases did not. So a file is opened only if every primitive in it is one that we translate, all its weights
lie beside it, and they are as large as they say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from paritygate.converter.errors import SourceError, UnsafeSource, UnsupportedOperator
from paritygate.converter.exporters._mindspore import explain
from paritygate.converter.exporters._mindspore.mindir import Program, check_size, own_name, program_of
from paritygate.converter.exporters._mindspore.operators import OPERATORS
from paritygate.converter.exporters._mindspore.translate import STRUCTURE
from paritygate.converter.exporters._mindspore.values import UnknownType, dtype_of_tensor

RUNS_CODE = frozenset({
    "Custom", "CustomExt", "PyExecute", "PyInterpret", "PyFunc", "resolve", "getattr", "setattr", "raise",
    "HookBackward", "CellBackwardHook", "InsertGradientOf", "Print", "TensorDump", "DumpGradient",
    "ScalarSummary", "TensorSummary", "ImageSummary", "HistogramSummary",
})  # fmt: skip
"""Primitives that load a library, run Python, or write files or text.

This chooses the words alone: what is opened is decided by the table of what we translate, and none of these is in
it but `raise`, which a loaded file may not have either.
"""

_NAMES_CODE = {"CLASS_TYPE", "NAME_SPACE", "SYMBOL"}
"""Kinds of values that name a class or module of Python; no program of tensors has them."""


def checked_program(message: Any, path: Path) -> Program:
    """The program of a file that may be opened.

    Raises:
        SourceError: If it is damaged, or its weights are not there.
        UnsafeSource: If it could run code, or reaches for files outside its folder.
        UnsupportedOperator: If it uses a primitive without ONNX form.
    """
    _refuse_reach(message, path)
    try:
        program = program_of(message)
    except SourceError as error:
        raise SourceError(f"{path} is damaged: {error} Export the cell anew.") from error
    _refuse_primitives(message, program, path)
    return program


def _refuse_reach(message: Any, path: Path) -> None:
    """Refuse what lies outside the file's own folder.

    Raises:
        UnsafeSource: Naming the tensor and the place.
        SourceError: If data are missing.
    """
    if any(graph.bprop_filepath for graph in (message.graph, *message.functions)):
        raise UnsafeSource(
            f"{path} names another file for its gradients; a served model has none. Export it anew."
        )
    if any(graph.map_parameter for graph in (message.graph, *message.functions)):
        raise SourceError(f"{path} holds a hash table (MapParameter), which no ONNX model has.")
    for part in _parts(message):
        if part.DESCRIPTOR.name == "TensorProto" and part.HasField("external_data"):
            _check_place(part, path)
        if part.DESCRIPTOR.name == "AttributeProto" and part.AttributeType.Name(part.type) in _NAMES_CODE:
            raise UnsafeSource(
                f"{path} holds {part.name!r}, which names Python code; it is not opened, with --trust neither. "
                f"Export the cell anew, with tensors and numbers alone."
            )
    for tensor in message.graph.parameter:
        _check_weight(tensor, path)


def _check_weight(tensor: Any, path: Path) -> None:
    """Refuse a weight that is not as large as it says: MindSpore would allocate what it says."""
    held = tensor.external_data.length if tensor.HasField("external_data") else len(tensor.raw_data)
    try:
        dtype = dtype_of_tensor(tensor.data_type)
    except UnknownType as error:
        raise SourceError(
            f"weight {own_name(tensor.name)!r} of {path} has the element {error}, which is not known."
        ) from error
    if tensor.compression_type:
        raise SourceError(
            f"weight {own_name(tensor.name)!r} of {path} is compressed; export it uncompressed."
        )
    try:
        check_size(tensor, held, dtype)
    except SourceError as error:
        raise SourceError(f"{path} is damaged: {error} Export the cell anew.") from error


def _check_place(tensor: Any, path: Path) -> None:
    place = tensor.external_data
    inside = PurePosixPath(place.location)
    folder = path.resolve().parent
    target = folder / inside
    if inside.is_absolute() or ".." in inside.parts or not target.resolve().is_relative_to(folder):
        raise UnsafeSource(
            f"{path} keeps {tensor.name!r} in {place.location!r}, outside its own folder; it is not opened, with "
            f"--trust neither. Put the data beside the file and export it anew."
        )
    if not target.is_file():
        raise SourceError(f"{path} keeps {tensor.name!r} in {place.location!r}, which is not beside it.")
    size = target.stat().st_size
    if place.offset < 0 or place.length < 0 or place.offset + place.length > size:
        raise SourceError(
            f"{path} keeps {tensor.name!r} at {place.offset} to {place.offset + place.length} of "
            f"{place.location!r}, which has {size} bytes; it is half-written."
        )


def _parts(message: Any) -> Iterator[Any]:
    """Every message inside of one, at any depth."""
    pending = [message]
    while pending:
        current = pending.pop()
        yield current
        for kind, value in current.ListFields():
            if kind.message_type is not None:
                several = [value] if hasattr(value, "ListFields") else value
                pending.extend(
                    each for each in several if hasattr(each, "ListFields")
                )  # not the texts of a map


def _refuse_primitives(message: Any, program: Program, path: Path) -> None:
    """Refuse a file with a primitive that is not ours to translate, before MindSpore makes anything of it.

    Raises:
        UnsafeSource: If it runs code.
        UnsupportedOperator: If it merely has no form.
    """
    named = {primitive.op_type for primitive in message.primitives} | program.primitives()
    unsafe = sorted(named & RUNS_CODE)
    if unsafe:
        raise UnsafeSource(
            f"{path} uses {', '.join(unsafe)}, which runs code or writes files; it is not opened, with --trust "
            f"neither, since no ONNX model can do that. Take it out of the cell and export the file anew."
        )
    for graph in program.graphs():
        for node in graph.nodes.values():
            if node.primitive and node.called not in OPERATORS and node.called not in STRUCTURE:
                raise explain.unsupported(node, "has no ONNX form in this exporter")
    unused = sorted(named - set(OPERATORS) - STRUCTURE)
    if unused:
        raise UnsupportedOperator(
            f"{path} declares the operator {unused[0]}, which has no ONNX form in this exporter. Export it anew.",
            operator=unused[0],
            module=None,
        )
