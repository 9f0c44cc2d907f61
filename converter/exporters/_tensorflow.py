"""What every TensorFlow source shares: ask it, and turn it into ONNX with tf2onnx.

The conversion always goes through a `tf.function` of our own, whatever the model is: `tf2onnx.convert.from_keras`
fails on a Sequential model (KeyError 'keras_tensor_10', seen with Keras 3.15 and tf2onnx 1.17), and a function of
our own fixes the order of the outputs, which dict outputs otherwise leave to TensorFlow's sorting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

NEWEST_OPSET = 18
"""tf2onnx 1.17 writes no later opset ("make_sure failure: Opset 19 is not supported yet")."""

Call = Callable[[Sequence[Any]], Any]
"""Takes the input tensors in order and gives whatever structure of tensors the model gives, in inference mode."""


@dataclass
class TensorFlowModel(SourceModel):
    """A callable of tensors that is open for export.

    Attributes:
        call: The model in inference mode.
        inputs: What it takes, in order.
        positional_names: Names of outputs that the model gives by position; `output_<k>` where there are none.
        output_shapes: Sizes of the outputs where the framework tells them; None is one that may vary.
        build_twin: Builds the same callable in double precision, or None where there is no way.
        ranges: Safe values of integer inputs.
    """

    call: Call
    inputs: tuple[SourceInput, ...]
    dims_are_declared: bool = False
    example: Feeds | None = None
    weights: Weights = field(default_factory=Weights)
    notes: list[str] = field(default_factory=list)
    positional_names: Sequence[str] = ()
    output_shapes: Sequence[Sequence[int | None]] = ()
    build_twin: Callable[[], Call] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _twin: Call | None = None

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Call the model eagerly."""
        tensors = [_to_tensor(feeds[spec.name]) for spec in self.inputs]
        return {name: to_array(tensor) for name, tensor in self._named(self.call(tensors))}

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """Call the double-precision twin, once it has agreed with the model itself.

        A twin that computes something else would pass for a large noise floor and excuse real faults.
        """
        if self.build_twin is None:
            return None
        wide = {name: a.astype(np.float64) if _is_float(a) else a for name, a in feeds.items()}
        tensors = [_to_tensor(wide[spec.name]) for spec in self.inputs]
        twin = self._twin or self.build_twin()
        answers = {name: to_array(tensor) for name, tensor in self._named(twin(tensors))}
        if self._twin is None:
            _check_twin(self.run(feeds), answers)
            self._twin = twin
        return answers

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
        function, signature = self._traceable(request.inputs)
        large = self._weight_bytes(function, signature) > request.external_data_threshold_bytes
        write_onnx(function, signature, request, self.output_shapes, large=large)

    def _named(self, answer: Any) -> list[tuple[str, Any]]:
        taken = [spec.name for spec in self.inputs]
        return name_outputs(flatten(answer), self.positional_names, taken)

    def _traceable(self, inputs: Sequence[TensorSpec]) -> tuple[Any, list[Any]]:
        import tensorflow as tf

        call, flat = self.call, flatten

        @tf.function(autograph=False)  # type: ignore[untyped-decorator, unused-ignore]
        def served(*tensors: Any) -> list[Any]:
            # An Identity each: one tensor given twice, or an input handed through, is still an output of its own.
            return [tf.identity(tensor) for _, tensor in flat(call(tensors))]

        signature = [
            tf.TensorSpec(
                [d if isinstance(d, int) else None for d in spec.shape], _tf_dtype(spec.dtype), f"in_{k}"
            )
            for k, spec in enumerate(inputs)
        ]
        return served, signature

    def _weight_bytes(self, function: Any, signature: Sequence[Any]) -> int:
        variables = function.get_concrete_function(*signature).variables
        return sum(int(np.prod(v.shape)) * int(v.dtype.size) for v in variables)


def write_onnx(
    function: Any,
    signature: Sequence[Any],
    request: ConversionRequest,
    output_shapes: Sequence[Sequence[int | None]],
    *,
    large: bool,
) -> None:
    """Convert a `tf.function` and write the file under the source's own input names.

    Args:
        function: What to convert.
        signature: Its inputs.
        request: Where to, under which names, at which opset.
        output_shapes: What the framework says of the outputs' sizes; may be empty.
        large: Whether weights go to a side file.

    Raises:
        UnsupportedOperator: If tf2onnx has no form of an operator; named with the layer that uses it.
        ExportError: If tf2onnx fails otherwise.
    """
    import tf2onnx

    with _heard_errors() as heard, _numpy_2_for_large_models():
        try:
            model, storage = tf2onnx.convert.from_function(
                function,
                input_signature=signature,
                opset=request.opset,
                custom_op_handlers={"Erfc": (_write_erfc, [])},
                large_model=large,
            )
        except Exception as error:
            _raise_heard(heard, request.opset)
            raise _cannot_convert(error, tf2onnx.__version__) from error
    _raise_heard(heard, request.opset)
    _rename_inputs(model, signature, request.inputs)
    _declare_sizes(model.graph, output_shapes)
    if storage is None:
        request.path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        _write_with_side_file(model, storage.name_to_tensor_data, request.path)


def _cannot_convert(error: Exception, version: str) -> ExportError:
    if "Assign" in str(error):
        return ExportError(
            f"the model changes a variable when it is called ({_first_line(error)}), and a served model keeps no "
            "state. Take the assignment out of inference."
        )
    return ExportError(f"tf2onnx {version} cannot convert the model: {_first_line(error)}")


def _write_erfc(graph: Any, node: Any, _name: str, _args: Any) -> None:
    """Write Erfc, in which TensorFlow 2.21 computes gelu and which tf2onnx 1.17 does not know, as 1 - Erf."""
    from tf2onnx import utils

    (x,), (output,) = node.input, node.output
    dtype, shape = graph.get_dtype(output), graph.get_shape(output)
    graph.remove_node(node.name)
    one = graph.make_const(utils.make_name("erfc_one"), np.ones((), utils.map_onnx_to_numpy_type(dtype)))
    erf = graph.make_node("Erf", [x], shapes=[shape], dtypes=[dtype])
    inputs = [one.output[0], erf.output[0]]
    graph.make_node("Sub", inputs, name=node.name, outputs=[output], shapes=[shape], dtypes=[dtype])


@contextmanager
def _numpy_2_for_large_models() -> Iterator[None]:
    """Let tf2onnx 1.17 write side files under NumPy 2: `graph.py` still calls `np.product`, which is gone."""
    from tf2onnx import graph

    if hasattr(np, "product"):
        yield
        return
    graph.np = _NumpyWithProduct()
    try:
        yield
    finally:
        graph.np = np


class _NumpyWithProduct:
    product = staticmethod(np.prod)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _rename_inputs(model: onnx.ModelProto, signature: Sequence[Any], inputs: Sequence[TensorSpec]) -> None:
    own = {placeholder.name: spec.name for placeholder, spec in zip(signature, inputs, strict=True)}
    for value in model.graph.input:
        inner = value.name
        value.name = own[inner.split(":")[0]]
        for node in model.graph.node:
            _rename_in_node(node, inner, value.name)
        for output in model.graph.output:
            output.name = value.name if output.name == inner else output.name


def _declare_sizes(graph: onnx.GraphProto, shapes: Sequence[Sequence[int | None]]) -> None:
    """Write the framework's own word on sizes where tf2onnx lost it (behind loops, for one)."""
    for value, shape in zip(graph.output, shapes, strict=len(shapes) > 0):
        dims = value.type.tensor_type.shape.dim
        if len(dims) != len(shape):
            continue
        for dim, size in zip(dims, shape, strict=True):
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = size


def _rename_in_node(node: onnx.NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if name == old else name for name in node.input]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename_in_node(inner, old, new)


def _write_with_side_file(model: onnx.ModelProto, tensors: Mapping[str, bytes], path: Path) -> None:
    for tensor in _all_tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            key = next(entry.value for entry in tensor.external_data if entry.key == "location")
            tensor.raw_data = tensors[key]
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    onnx.save_model(
        model, str(path), save_as_external_data=True, all_tensors_to_one_file=True,
        location=f"{path.name}.data", size_threshold=1024,
    )  # fmt: skip


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_tensors(inner)


# --- what tf2onnx only logs ---------------------------------------------------------------------------------


@contextmanager
def _heard_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect what tf2onnx logs as an error: it goes on after one and gives a graph that nothing can run."""
    heard: list[logging.LogRecord] = []
    handler = _Collector(heard)
    logger = logging.getLogger("tf2onnx")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


class _Collector(logging.Handler):
    def __init__(self, heard: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(record)


def _raise_heard(heard: Sequence[logging.LogRecord], opset: int) -> None:
    for record in heard:
        if record.msg.startswith("Tensorflow op [") and isinstance(record.args, tuple):
            node, operator = str(record.args[0]), str(record.args[1])
            raise UnsupportedOperator(
                f"TensorFlow operator {operator} in {_layer(node)} has no ONNX form at opset {opset}. "
                "Replace it by operators that have one, or move it out of the model.",
                operator=operator,
                module=_layer(node),
            )
    if heard:
        record = heard[0]
        cause = record.exc_info[1] if record.exc_info else None
        where = f" in {_layer(str(record.args[0]))}" if cause and isinstance(record.args, tuple) else ""
        said = _first_line(cause) if cause else record.getMessage().splitlines()[0]
        raise ExportError(f"tf2onnx cannot convert the model{where}: {said}")


def _layer(node: str) -> str:
    return node.rsplit("/", 1)[0] if "/" in node else node


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# --- structures of tensors ----------------------------------------------------------------------------------


def flatten(answer: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """The tensors of a model's answer with their paths: dicts in their own order, None left out.

    Raises:
        ExportError: If something in it is not a dense tensor.
    """
    import tensorflow as tf

    if answer is None:
        return []
    if isinstance(answer, Mapping):
        return [leaf for key, item in answer.items() for leaf in flatten(item, (*path, str(key)))]
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        pairs = zip(answer._fields, answer, strict=True)
        return [leaf for key, item in pairs for leaf in flatten(item, (*path, key))]
    if isinstance(answer, list | tuple):
        return [leaf for k, item in enumerate(answer) for leaf in flatten(item, (*path, k))]
    if isinstance(answer, tf.RaggedTensor | tf.SparseTensor):
        raise ExportError(
            f"the model gives a {type(answer).__name__}{_at(path)}; served models give dense tensors. "
            "Add .to_tensor() or tf.sparse.to_dense to it."
        )
    try:
        return [(path, tf.convert_to_tensor(answer))]
    except (TypeError, ValueError) as error:
        raise ExportError(f"the model gives a {type(answer).__name__}{_at(path)}, not a tensor.") from error


def _at(path: tuple[str | int, ...]) -> str:
    return f" at output {'/'.join(map(str, path))}" if path else ""


def name_outputs(
    leaves: Sequence[tuple[tuple[str | int, ...], Any]], positional: Sequence[str], taken: Sequence[str] = ()
) -> list[tuple[str, Any]]:
    """Each tensor with its name: the keys on its path, or for one given by position the name at that position.

    A name that an input or an earlier output has gets a number: in a graph every value has its own.
    """
    if not leaves:
        raise ExportError("the model gives no tensor at all.")
    fitting = positional if len(positional) == len(leaves) else ()
    named: list[tuple[str, Any]] = []
    for k, (path, tensor) in enumerate(leaves):
        if any(isinstance(part, str) for part in path):
            name = "_".join(map(str, path))
        elif fitting:
            name = fitting[k]
        else:
            name = "output" if len(leaves) == 1 else f"output_{k}"
        named.append((_unused(name, {*taken, *(n for n, _ in named)}), tensor))
    return named


def _unused(name: str, taken: set[str]) -> str:
    candidate, k = name, 1
    while candidate in taken:
        k += 1
        candidate = f"{name}_{k}"
    return candidate


# --- values -------------------------------------------------------------------------------------------------


def to_array(tensor: Any) -> Array:
    """A tensor as an array; strings become `str` objects.

    Raises:
        ExportError: If a string is not UTF-8, which no served string tensor can hold here.
    """
    array = np.asarray(tensor.numpy())
    if array.dtype != np.dtype(object) and array.dtype.kind != "S":
        return array
    try:
        texts = [
            item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.ravel().tolist()
        ]
    except UnicodeDecodeError as error:
        raise ExportError(f"the model gives a string that is not UTF-8: {error}.") from error
    strings = np.empty(array.shape, dtype=object)
    strings.ravel()[:] = texts
    return strings


def source_dtype(dtype: Any) -> DType:
    """Our type for a TensorFlow or Keras dtype.

    Raises:
        ExportError: If served models cannot take it.
    """
    name = getattr(dtype, "name", str(dtype))
    try:
        return DType(name)
    except ValueError as error:
        raise ExportError(f"the model takes a {name} tensor, which no served model can take.") from error


def _tf_dtype(dtype: DType) -> Any:
    import tensorflow as tf

    return tf.dtypes.as_dtype(dtype.value)


def _to_tensor(array: Array) -> Any:
    import tensorflow as tf

    return tf.constant(array, dtype=_tf_dtype(DType.from_numpy(array.dtype)))


def _is_float(array: Array) -> bool:
    return DType.from_numpy(array.dtype).is_floating


def _check_twin(answers: Feeds, wide: Feeds) -> None:
    for name, array in answers.items():
        if not _is_float(array):
            continue
        narrow, double = array.astype(np.float64), wide[name]
        scale = float(np.max(np.abs(narrow[np.isfinite(narrow)]), initial=0.0))
        if double.dtype != np.float64 or not np.allclose(
            double, narrow, rtol=0.05, atol=0.05 * scale, equal_nan=True
        ):
            raise ExportError(
                f"its double-precision twin computes another {name!r}, so it cannot be a reference"
            )
