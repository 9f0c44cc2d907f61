"""What every TensorFlow source shares: ask it, and turn it into ONNX with tf2onnx.

The conversion always goes through a `tf.function` of our own, whatever the model is: `tf2onnx.convert.from_keras`
fails on a Sequential model (KeyError 'keras_tensor_10', seen with Keras 3.15 and tf2onnx 1.17), and a function of
our own fixes the order of the outputs, which dict outputs otherwise leave to TensorFlow's sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._tensorflow.calls import Call
from paritygate.converter.exporters._tensorflow.imports import telling_line
from paritygate.converter.exporters._tensorflow.structure import flatten, name_outputs
from paritygate.converter.exporters._tensorflow.tracing import traced
from paritygate.converter.exporters._tensorflow.values import is_float, tf_dtype, to_array, to_tensor
from paritygate.converter.exporters._tensorflow.widening import LIMIT_BYTES, widened_call
from paritygate.converter.exporters._tensorflow.writing import write_onnx
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.types import Array, Dim, Feeds, TensorSpec

NEWEST_OPSET = 18
"""tf2onnx 1.17 writes no later opset ("make_sure failure: Opset 19 is not supported yet")."""


@dataclass
class TensorFlowModel(SourceModel):
    """A callable of tensors that is open for export.

    Attributes:
        call: The model in inference mode.
        inputs: What it takes, in order.
        positional_names: Names of outputs that the model gives by position; `output_<k>` where there are none.
        signature: The signature of the SavedModel that it is, if it is one.
        assets: Files that travel with it.
        output_order: Names of the outputs in the order that is wanted; None keeps the answer's own.
        output_shapes: Sizes of the outputs where the framework tells them; None is one that may vary.
        build_twin: Builds the same callable in double precision, or None where there is no way.
        ranges: Safe values of integer inputs.
        owner: What keeps the model's variables alive, where the call alone does not.
        constant_bytes: What the graph holds in constants, where weights are no variables.
        whole_numbers: Told by `convert`, from the traced graph.
        traces_anew: True if it runs Python code, in which a `tf.function` may be called.
    """

    call: Call
    inputs: tuple[SourceInput, ...]
    dims_are_declared: bool = False
    example: Feeds | None = None
    weights: Weights = field(default_factory=Weights)
    notes: list[str] = field(default_factory=list)
    positional_names: Sequence[str] = ()
    signature: str | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)
    output_order: Sequence[str] | None = None
    output_shapes: Sequence[Sequence[int | None]] = ()
    build_twin: Callable[[], Call] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    owner: Any = None
    constant_bytes: int = 0
    whole_numbers: bool = False
    traces_anew: bool = False
    _twin: Call | None = None
    _traced_names: Sequence[str] = ()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Call the model eagerly."""
        tensors = [to_tensor(feeds[spec.name]) for spec in self.inputs]
        try:
            answer = self.call(tensors)
        except MemoryError:
            raise
        except Exception as error:
            if type(error).__name__ == "ResourceExhaustedError":
                raise MemoryError(telling_line(error)) from error
            raise ValueError(telling_line(error)) from error
        return {name: to_array(tensor) for name, tensor in self._named(answer)}

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """Call the double-precision twin."""
        wide = {name: a.astype(np.float64) if is_float(a) else a for name, a in feeds.items()}
        tensors = [to_tensor(wide[spec.name]) for spec in self.inputs]
        twin = self._twin or (self.build_twin or self._widened_graph)()
        if twin is None:
            return None
        self._twin = twin
        return {name: to_array(tensor) for name, tensor in self._named(twin(tensors))}

    def own_code(self) -> Sequence[Any]:
        """The call, which holds the model."""
        return (self.call,)

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """The rows of embeddings that inputs index."""
        return self.ranges

    def convert(self, request: ConversionRequest) -> None:
        """Trace the call with the open sizes open and write it with tf2onnx."""
        if request.opset > NEWEST_OPSET:
            raise ExportError(
                f"opset {request.opset} cannot be written for TensorFlow models: tf2onnx ends at {NEWEST_OPSET}. "
                f"Pass opset={NEWEST_OPSET} or lower."
            )
        fixed = [TensorSpec(i.name, i.dtype, request.example[i.name].shape) for i in request.inputs]
        function, signature = traced(self._traceable, request.inputs, fixed)
        concrete = function.get_concrete_function(*signature)
        self.whole_numbers = not any(t.dtype.is_floating for t in _tensors(concrete.graph))
        large = _weight_bytes(concrete) + self.constant_bytes > request.external_data_threshold_bytes
        write_onnx(function, signature, request, self.output_shapes, large=large)

    def _named(self, answer: Any) -> list[tuple[str, Any]]:
        taken = [spec.name for spec in self.inputs]
        named = name_outputs(flatten(answer), self.positional_names, taken)
        if self.output_order is None:
            return named
        tensors = dict(named)
        if sorted(tensors) != sorted(self.output_order):
            raise ExportError(
                f"the copy gives the outputs {list(tensors)}, the model {list(self.output_order)}."
            )
        return [(name, tensors[name]) for name in self.output_order]

    def _traceable(self, inputs: Sequence[TensorSpec], *, autograph: bool = False) -> tuple[Any, list[Any]]:
        import tensorflow as tf

        @tf.function(autograph=autograph)  # type: ignore[untyped-decorator, unused-ignore]
        def served(*tensors: Any) -> list[Any]:
            # An Identity each: one tensor given twice, or an input handed through, is still an output of its own.
            named = self._named(self.call(tensors))
            self._traced_names = [name for name, _ in named]
            return [tf.identity(tensor) for _, tensor in named]

        signature = [
            tf.TensorSpec(
                [d if isinstance(d, int) else None for d in spec.shape], tf_dtype(spec.dtype), f"in_{k}"
            )
            for k, spec in enumerate(inputs)
        ]
        return served, signature

    def _widened_graph(self) -> Call | None:
        """The traced graph in double precision; None where it would be too large, or holds no floats."""
        function, signature = self._traceable(
            [TensorSpec(i.name, i.dtype, _open(i.shape)) for i in self.inputs]
        )
        concrete = function.get_concrete_function(*signature)
        if _weight_bytes(concrete, width=8) > LIMIT_BYTES:
            return None
        twin, names = widened_call(concrete), self._traced_names
        return lambda tensors: dict(zip(names, twin(tensors), strict=True))


def _open(shape: Sequence[Dim | None]) -> tuple[Dim, ...]:
    return tuple("open" if dim is None else dim for dim in shape)


def _tensors(graph: Any) -> list[Any]:
    return [tensor for operation in graph.get_operations() for tensor in operation.outputs]


def _weight_bytes(concrete: Any, width: int | None = None) -> int:
    return sum(int(np.prod(v.shape)) * (width or int(v.dtype.size)) for v in concrete.variables)
