"""A layer that is open for export: run as Python runs it, converted through the program that paddle traces."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._paddle.conversion import check_opset, convert_program
from paritygate.converter.exporters._paddle.locating import locate
from paritygate.converter.exporters._paddle.modes import default_float64, dynamic_mode
from paritygate.converter.exporters._paddle.process import paddle2onnx
from paritygate.converter.exporters._paddle.writing import write_model
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.exporters.calls import Parameters
from paritygate.converter.graph.finish import rename_values
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

if TYPE_CHECKING:
    import paddle


class LayerModel(SourceModel):
    """A copy of the user's layer in evaluation mode."""

    def __init__(
        self, layer: paddle.nn.Layer, inputs: Any, folder: Path, weights: Weights, notes: Sequence[str] = ()
    ) -> None:
        self._layer = _inference_copy(layer)
        self._folder = folder
        self._wide: paddle.nn.Layer | None = None
        self.weights = weights
        self.notes = list(notes)
        self._parameters = _forward_parameters(self._layer)
        specs = _input_specs(self._layer, inputs)
        declared = declared_inputs(inputs) if inputs is not None and specs is None else None
        if specs is not None:
            names = self._names_for([spec.name for spec in specs])
            self.inputs = tuple(_from_input_spec(s, name) for s, name in zip(specs, names, strict=True))
        elif declared is not None:
            names = self._names_for([spec.name for spec in declared])
            self._refuse_misnamed(names)
            self.inputs = tuple(
                SourceInput(name, s.dtype, s.shape) for s, name in zip(declared, names, strict=True)
            )
        else:
            self.inputs, self.example = self._from_example(inputs)
        self.dims_are_declared = specs is not None or declared is not None

    def _names_for(self, given: Sequence[str | None]) -> list[str]:
        """The names of `forward`, in whose order inputs go; those given if they are other ones."""
        if len(given) > len(self._parameters):
            raise ExportError(
                f"{len(given)} inputs were given, but forward of {type(self._layer).__name__} takes "
                f"{list(self._parameters)}; give one for each."
            )
        return [name or own for name, own in zip(given, self._parameters, strict=False)]

    def _refuse_misnamed(self, names: Sequence[str]) -> None:
        fault = None if set(names) <= set(self._parameters) else self._misnamed(names)
        if fault is not None:
            raise ExportError(
                f"the inputs {list(names)} were declared, but forward of {type(self._layer).__name__} {fault} Use "
                f"its names (--input, inputs=), or give the inputs in order, all under names of your own."
            )

    def _from_example(self, inputs: Any) -> tuple[tuple[SourceInput, ...], Feeds]:
        if inputs is None:
            raise ExportError(
                "a PaddlePaddle layer does not say what it takes; give --samples x.npz, or "
                "--input 'x:float32[batch,3,32,32]'; in Python, inputs= takes example arrays or such texts."
            )
        example = bind_example(_arrays(inputs), self._order_of(inputs))
        assert example is not None
        return tuple(SourceInput(n, DType.from_numpy(a.dtype), a.shape) for n, a in example.items()), example

    def _order_of(self, inputs: Any) -> list[str]:
        """The names of an example's arrays in the order of `forward`; a lone one may have a name of its own.

        Raises:
            ExportError: If `forward` does not take such inputs.
        """
        required = [name for name, default in self._parameters.items() if default is inspect.Parameter.empty]
        takes = f"forward of {type(self._layer).__name__} takes {list(self._parameters)}"
        if not isinstance(inputs, Mapping):
            count = _count(inputs)
            if not len(required) <= count <= len(self._parameters):
                raise ExportError(f"the example has {count} inputs, but {takes}; give one array for each.")
            return list(self._parameters)[:count]
        if set(required) <= set(inputs) <= set(self._parameters):
            return [name for name in self._parameters if name in inputs]
        if len(inputs) == 1 and len(required) <= 1 and self._parameters and not self._misnamed(list(inputs)):
            return list(inputs)
        raise ExportError(
            f"the example has the inputs {list(inputs)}, but {takes}; use those names (--input, or those of the "
            f"arrays in --samples), or give a tuple in that order (inputs=). --input-name (input_names=) gives "
            f"them other names."
        )

    def _misnamed(self, names: Sequence[str]) -> str | None:
        """What is wrong with names that would go in by position, see `Parameters.misnamed`."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own = [inspect.Parameter(name, kind) for name in self._parameters]
        return Parameters(inspect.Signature(own)).misnamed(names)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """What the layer answers in evaluation mode."""
        return self._answer(self._layer, feeds)

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """The same layer with its weights, its inputs and what it creates in double precision."""
        if self._wide is None:
            self._wide = copy.deepcopy(self._layer).to(dtype="float64")
            self._wide.eval()
        wide = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in feeds.items()}
        with default_float64():
            return self._answer(self._wide, wide)

    def _answer(self, layer: paddle.nn.Layer, feeds: Feeds) -> dict[str, Array]:
        import paddle

        with dynamic_mode():
            tensors = {name: paddle.to_tensor(array) for name, array in feeds.items()}
            answer = layer(*self._arguments(tensors))
            return {name: _to_numpy(tensor) for name, tensor in named_outputs(answer)}

    def _arguments(self, given: Mapping[str, Any]) -> list[Any]:
        """Inputs in the order of `forward`; a parameter between them that was not given keeps its default."""
        values = iter(given.values())
        own = [spec.name for spec in self.inputs]
        if not set(own) <= set(self._parameters):
            return list(values)
        last = max((list(self._parameters).index(name) for name in own), default=-1)
        return [given.get(name, default) for name, default in list(self._parameters.items())[: last + 1]]

    def convert(self, request: ConversionRequest) -> None:
        """Trace the layer into a program with open sizes, and convert that."""
        import paddle

        check_opset(request.opset)
        prefix = self._folder / "layer"
        specs = {spec.name: _to_input_spec(spec) for spec in request.inputs}
        with paddle2onnx() as converter:
            with dynamic_mode():
                try:
                    paddle.jit.save(self._layer, str(prefix), input_spec=self._arguments(specs))
                except Exception as error:
                    raise ExportError(f"paddle cannot trace the layer: {_telling_line(error)}") from error
            program, parameters = prefix.with_suffix(".json"), prefix.with_suffix(".pdiparams")
            try:
                converted = convert_program(
                    converter, program, parameters if parameters.exists() else None, request.opset
                )
            except UnsupportedOperator as error:
                raise self._located(error, request.example) from error
        rename_values(converted.model.graph, self._weight_names())
        write_model(converted, request)

    def _weight_names(self) -> dict[str, str]:
        """Paddle numbers weights anew for every layer that a process makes; their places in the layer stay."""
        places = (*self._layer.named_parameters(), *self._layer.named_buffers())
        return {tensor.name: path for path, tensor in places}

    def _located(self, error: UnsupportedOperator, example: Feeds) -> UnsupportedOperator:
        """The same error with the layer by its attribute path and the line of the user's code."""
        with dynamic_mode():
            place = locate(self._layer, error.operator, lambda: self.run(example))
        if place is None:
            return error
        text = str(error)
        old = f" (in layer {error.module})" if error.module else ""
        said = text.replace(old, f" ({place.words})", 1) if old else text.replace(
            error.operator, f"{error.operator} ({place.words})", 1
        )  # fmt: skip
        return UnsupportedOperator(said, operator=error.operator, module=place.layer or error.module)

    def own_code(self) -> Sequence[Any]:
        """The layer."""
        return (self._layer,)

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """The rows of the embeddings that integer inputs index, seen in one run."""
        import paddle

        example = self.example
        if example is None or not any(array.dtype.kind in "iu" for array in example.values()):
            return {}
        seen: dict[str, tuple[int, int]] = {}

        def look(layer: Any, given: tuple[Any, ...]) -> None:
            ids = given[0].numpy()
            for name, array in example.items():
                if array.dtype.kind in "iu" and array.size and np.array_equal(array.ravel(), ids.ravel()):
                    seen[name] = (0, min(layer._num_embeddings - 1, seen.get(name, (0, 2**62))[1]))

        kinds = [layer for layer in self._layer.sublayers() if isinstance(layer, paddle.nn.Embedding)]
        handles = [layer.register_forward_pre_hook(look) for layer in kinds]
        try:
            self.run(example)
        finally:
            for handle in handles:
                handle.remove()
        return seen


def _inference_copy(layer: paddle.nn.Layer) -> paddle.nn.Layer:
    """A copy, so that nothing that an export does reaches the user's layer."""
    import paddle

    inner = layer._layers if isinstance(layer, paddle.DataParallel) else layer
    try:
        twin = copy.deepcopy(inner)
    except Exception as error:
        raise ExportError(
            f"{type(inner).__name__} cannot be copied ({_telling_line(error)}), and an export works on a copy "
            "only; let copy.deepcopy copy it (no open files, locks or lambdas in its attributes)."
        ) from error
    twin.eval()
    return twin


def _forward_parameters(layer: paddle.nn.Layer) -> dict[str, Any]:
    """Names and defaults of what `forward` takes, in order."""
    forward = type(layer).forward if "forward" not in vars(layer) else layer.forward
    function = getattr(forward, "_dygraph_function", forward)
    found = inspect.signature(function).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = {name: p.default for name, p in found.items() if p.kind in kinds}
    first = next(iter(names), None)
    if first is not None and (first == "self" or "forward" not in vars(layer)):
        names.pop(first)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found.values()):
        names |= {f"input_{k}": inspect.Parameter.empty for k in range(len(names), 32)}
    return names


def _input_specs(layer: paddle.nn.Layer, inputs: Any) -> list[Any] | None:
    """`InputSpec`s that were given, or that the layer's `to_static` declares; None if there are none."""
    import paddle

    items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if all(isinstance(item, paddle.static.InputSpec) for item in items):
        return items
    if inputs is not None:
        return None
    declared = getattr(getattr(layer.forward, "_function_spec", None), "_input_spec", None)
    specs = [] if declared is None else list(paddle.utils.flatten(declared))
    return specs if specs and all(isinstance(s, paddle.static.InputSpec) for s in specs) else None


def _from_input_spec(spec: Any, name: str) -> SourceInput:
    shape = tuple(int(size) if size is not None and int(size) > 0 else None for size in spec.shape)
    return SourceInput(name, DType(str(spec.dtype).rpartition(".")[2]), shape)


def _to_input_spec(spec: TensorSpec) -> Any:
    import paddle

    shape = [None if isinstance(dim, str) else dim for dim in spec.shape]
    return paddle.static.InputSpec(shape, spec.dtype.value, name=spec.name)


def _count(inputs: Any) -> int:
    return len(inputs) if isinstance(inputs, list | tuple) else 1


def _arrays(inputs: Any) -> Any:
    """Example inputs with tensors as arrays."""
    if isinstance(inputs, Mapping):
        return {name: _to_numpy(value) for name, value in inputs.items()}
    items = inputs if isinstance(inputs, list | tuple) else [inputs]
    return tuple(_to_numpy(item) for item in items)


def _to_numpy(value: Any) -> Array:
    import paddle

    if not isinstance(value, paddle.Tensor):
        return np.asarray(value)
    array = np.asarray(value.numpy())
    return array.view(DType.BFLOAT16.numpy) if value.dtype == paddle.bfloat16 else array


def named_outputs(answer: Any) -> list[tuple[str, Any]]:
    """Every tensor of an answer with a name, in the order in which paddle lists them: dicts by sorted key.

    A tensor alone is `output`, members of a sequence are `output_<k>`, entries of a dict bear their key.
    """
    found = list(_leaves(answer, ""))
    named: dict[str, Any] = {}
    for path, tensor in found:
        name = path or "output"
        while name in named:
            name += "_"
        named[name] = tensor
    return list(named.items())


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    import paddle

    if isinstance(value, paddle.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}_{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path or 'output'}_{index}")


def _telling_line(error: BaseException) -> str:
    """The last line that says something: paddle puts the cause at the end of a long report."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300]}" if lines else type(error).__name__
