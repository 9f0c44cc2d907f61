"""Inputs of an ONNX file: its own names and sizes, made safe to use where they are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.types import Array, Dim, DType, TensorSpec

_NAMELESS = re.compile(r"|[?*]|-1|[Nn]one|null|unknown|unk__\d+|(?:p2o\.)?DynamicDimension\.\d+")
"""What writers put where a size has no name; tf2onnx and paddle2onnx count every such place anew."""

_COUNTED = re.compile(r"s\d+")
"""How torch.export numbers its sizes: no name to show to anyone, but equal ones are equal sizes."""


class Inputs:
    """The inputs that a file takes.

    Attributes:
        specs: In the order of the graph.
        example: Arrays that the user gave, by name, or None.
        notes: Sentences for the manifest.
    """

    def __init__(self, graph: onnx.GraphProto, given: Any) -> None:
        values = real_inputs(graph)
        names = [value.name for value in values]
        dtypes = {value.name: tensor_dtype(value) for value in values}
        declared = declared_inputs(given) if given is not None else None
        self.example: dict[str, Array] | None = None
        if given is not None and declared is None:
            self.example = bind_example(given, names)
        self._sizes = _SizeNames()
        self.specs = tuple(
            SourceInput(value.name, dtypes[value.name], self._shape(value, _named(declared, value.name)))
            for value in values
        )
        _check_declared(declared or (), self.specs)
        if self.example is not None:
            _check_example(self.example, self.specs)
        self.notes = self._sizes.notes

    def write_ranks(self, graph: onnx.GraphProto) -> None:
        """Give inputs that came without a shape the rank that the user's word gave them."""
        values = {value.name: value.type.tensor_type for value in real_inputs(graph)}
        for spec in self.specs:
            if not values[spec.name].HasField("shape"):
                values[spec.name].shape.SetInParent()
                for _ in spec.shape:
                    values[spec.name].shape.dim.add()

    def _shape(self, value: onnx.ValueInfoProto, declared: TensorSpec | None) -> tuple[Dim | None, ...]:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            return self._unknown_rank(value.name, declared)
        shape = tuple(
            self._sizes.own(dim, "batch" if axis == 0 else f"{value.name}_dim{axis}")
            for axis, dim in enumerate(tensor.shape.dim)
        )
        return shape if declared is None else _narrowed(value.name, shape, declared)

    def _unknown_rank(self, name: str, declared: TensorSpec | None) -> tuple[Dim | None, ...]:
        if declared is not None:
            return declared.shape
        if self.example is not None:
            return (None,) * self.example[name].ndim
        raise ExportError(
            f"input {name!r} has no shape in the file, not even a rank; give an example (--samples), or "
            f"--input '{name}:float32[batch,3]' with its dtype and sizes."
        )


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no weights."""
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {tensor.values.name for tensor in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in weights]


def tensor_dtype(value: onnx.ValueInfoProto) -> DType:
    """The dtype of a graph's input or output.

    Raises:
        ExportError: If it is no tensor, or of a type that no served model takes or gives.
    """
    kind = (value.type.WhichOneof("value") or "untyped_type").removesuffix("_type")
    if kind != "tensor":
        advice = (
            "Export the classifier without its ZipMap (scikit-learn: zipmap=False)."
            if kind == "sequence" and value.type.sequence_type.elem_type.HasField("map_type")
            else "Export the model so that each input and output is one tensor."
        )
        raise ExportError(
            f"{value.name!r} is of kind {kind}; served models take and give tensors only. {advice}"
        )
    code = value.type.tensor_type.elem_type
    try:
        return DType.from_onnx(code)
    except ValueError as error:
        known = onnx.TensorProto.DataType.keys()
        spelled = known[code] if 0 <= code < len(known) else str(code)
        raise ExportError(
            f"{value.name!r} has the element type {spelled}; served models take and give "
            f"{', '.join(dtype.value for dtype in DType)}. Put a Cast at that end of the model."
        ) from error


class _SizeNames:
    """Turns the file's names of sizes into words, the same name always into the same word."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self.notes: list[str] = []

    def own(self, dim: onnx.TensorShapeProto.Dimension, place: str) -> Dim | None:
        if dim.HasField("dim_value"):
            return int(dim.dim_value) if dim.dim_value > 0 else None
        text = str(dim.dim_param).strip()
        if _NAMELESS.fullmatch(text):
            return None
        return int(text) if text.isdecimal() and int(text) > 0 else self._word(text, place)

    def _word(self, text: str, place: str) -> str:
        counted = _COUNTED.fullmatch(text) is not None
        if text.isidentifier() and not counted:
            return text
        if text not in self._words:
            stem = place if counted else text
            stem = re.sub(r"\W+", "_", stem).strip("_") or "size"
            word = stem if stem.isidentifier() else f"size_{stem}"
            while word in self._words.values():
                word += "_"
            self._words[text] = word
            self.notes.append(f"The size that the file calls {text!r} is called {word!r}.")
        return self._words[text]


def _named(declared: Sequence[TensorSpec] | None, name: str) -> TensorSpec | None:
    return next((spec for spec in declared or () if spec.name == name), None)


def _narrowed(name: str, shape: tuple[Dim | None, ...], declared: TensorSpec) -> tuple[Dim | None, ...]:
    """The user's word on the sizes that the file leaves open."""
    fits = len(shape) == len(declared.shape) and all(
        not isinstance(own, int) or own == said for own, said in zip(shape, declared.shape, strict=True)
    )
    if not fits:
        spelled = ", ".join("?" if dim is None else str(dim) for dim in shape)
        raise ExportError(f"input {name!r} is [{spelled}] in the file, but was declared as {declared}.")
    return declared.shape


def _check_declared(declared: Sequence[TensorSpec], specs: Sequence[SourceInput]) -> None:
    known = {spec.name: spec for spec in specs}
    for spec in declared:
        if spec.name not in known:
            raise ExportError(f"the input {spec.name!r} was declared, but the file takes {list(known)}.")
        if spec.dtype is not known[spec.name].dtype:
            raise ExportError(
                f"input {spec.name!r} is {known[spec.name].dtype.value} in the file, but was declared as {spec}."
            )


def _check_example(example: dict[str, Array], specs: Sequence[SourceInput]) -> None:
    for spec in specs:
        array = example[spec.name]
        if DType.from_numpy(array.dtype) is not spec.dtype:
            raise ExportError(
                f"the example for {spec.name!r} is {array.dtype}, but the file takes {spec.dtype.value}; "
                "give it in that dtype."
            )
        fits = array.ndim == len(spec.shape) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            spelled = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
            raise ExportError(
                f"the example for {spec.name!r} has the shape {list(array.shape)}, but the file takes [{spelled}]."
            )
