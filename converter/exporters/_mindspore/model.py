"""A MindSpore cell that is open for export: it answers eagerly and converts through its own MindIR program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._mindspore import calls, capture, cells, explain
from paritygate.converter.exporters._mindspore.embeddings import row_ranges
from paritygate.converter.exporters._mindspore.graph import build_model
from paritygate.converter.exporters._mindspore.mindir import Node, Program, program_of
from paritygate.converter.exporters._mindspore.values import Shape
from paritygate.converter.exporters._mindspore.writing import save_model
from paritygate.converter.exporters.base import (
    ConversionRequest,
    DimCannotVary,
    SourceInput,
    SourceModel,
    Weights,
)
from paritygate.converter.types import Array, Feeds, TensorSpec

OPSETS = (18, 23)
"""The operator sets that the translation can declare."""

FLOAT64_LIMIT_BYTES = 2**31
"""Above 2 GiB of weights no double-precision copy is made: it would take three times that memory in all."""

STATEFUL = {"Assign", "AssignAdd", "AssignSub", "ScatterUpdate", "ScatterNdUpdate", "InplaceCopy"}
"""Primitives that change a weight; a model that uses one keeps state."""


class CellModel(SourceModel):
    """An inference copy of a cell with the plan of its call."""

    def __init__(
        self,
        cell: Any,
        plan: calls.CallPlan,
        *,
        declared: Sequence[TensorSpec | SourceInput] | None = None,
        double: Callable[[], Any] | None = None,
        weights: Weights | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._cell = cell
        self._plan = plan
        self._make_double = double or (lambda: cells.double_copy(cell))
        self._double: Any = None
        self._outputs: list[calls.Output] = []
        self._mode = ms.PYNATIVE_MODE
        self._ranges: Mapping[str, tuple[int, int]] | None = None
        self.weights = weights or Weights()
        self.notes: list[str] = [*notes, *(_constant_note(*pair) for pair in plan.constants.items())]
        parameters = list(cell.get_parameters())
        self.whole_numbers = not any(p.dtype in _FLOATS for p in parameters)
        self._bytes = sum(p.nbytes for p in parameters)
        if plan.tensors:
            self.example = dict(zip(plan.names, plan.tensors, strict=True))
        if declared is None:
            assert self.example is not None
            self.inputs = tuple(
                SourceInput(name, explain.dtype_of(array, name), array.shape)
                for name, array in self.example.items()
            )
        else:
            self.inputs = tuple(SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared)
            self.dims_are_declared = True

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See `SourceModel.run`: MindSpore itself, eager where the cell can be run so."""
        try:
            return self._run(self._cell, feeds, double=False)
        except Exception as error:
            if self._outputs or self._mode == ms.GRAPH_MODE:
                raise explain.refused(error) from error
            self._mode = ms.GRAPH_MODE
            try:
                answers = self._run(self._cell, feeds, double=False)
            except Exception:  # noqa: BLE001 - what the eager run said is told
                self._mode = ms.PYNATIVE_MODE
                raise explain.refused(error) from error
            self.notes.append("The source answers in graph mode: its code cannot be run eagerly.")
            return answers

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """See `SourceModel.run_float64`: the same cell with its weights in double precision."""
        if self._bytes > FLOAT64_LIMIT_BYTES:
            return None
        try:
            if self._double is None:
                self._double = self._make_double()
            return self._run(self._double, feeds, double=True)
        except Exception as error:
            raise explain.refused(error) from error

    def _run(self, cell: Any, feeds: Feeds, *, double: bool) -> dict[str, Array]:
        arrays = [feeds[name] for name in self._plan.names]
        if double:
            arrays = [a.astype(np.float64) if explain.is_float(a) else a for a in arrays]
        with cells.in_mode(self._mode):
            result = self._plan.call(cell, [calls.to_tensor(array) for array in arrays])
            tensors, others = calls.flatten_output(result)
            answers = {output.name: calls.to_array(tensor) for output, tensor in tensors}
        if not answers:
            raise ExportError(
                f"the cell gives {type(result).__name__} and no tensor; a served model gives tensors."
            )
        if not double and not self._outputs:
            self._outputs = [output for output, _ in tensors]
            self.notes += [
                f"Output {name!r} is {value!r}, no tensor, and was left out."
                for name, value in others.items()
            ]
        return answers

    def own_code(self) -> Sequence[Any]:
        """The cell; one that was read from a file has no Python code."""
        return (self._cell,)

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """See `SourceModel.integer_ranges`: the rows of the embeddings that the inputs index."""
        if self._ranges is None:
            self._ranges = self._ranges_of_embeddings()
        return self._ranges

    def _ranges_of_embeddings(self) -> Mapping[str, tuple[int, int]]:
        """Looks into the program at the sizes of the example; if it does not compile, none are known."""
        if not any(spec.dtype.is_integer for spec in self.inputs):
            return {}
        try:
            if not self._outputs:
                self.run(self._any_feeds())
            feeds = self._any_feeds()
            shapes = [(calls.to_tensor(feeds[name]).dtype, feeds[name].shape) for name in self._plan.names]
            program = self.program(shapes)
        except Exception:  # noqa: BLE001 - the same call is made again where its failure is told
            return {}
        return row_ranges(program, self._plan.names, _weights(self._cell, program))

    def _any_feeds(self) -> dict[str, Array]:
        if self.example is not None:
            return dict(self.example)
        sizes = ((spec, tuple(d if isinstance(d, int) else 2 for d in spec.shape)) for spec in self.inputs)
        return {spec.name: np.zeros(shape, spec.dtype.numpy) for spec, shape in sizes}

    def convert(self, request: ConversionRequest) -> None:
        """See `SourceModel.convert`."""
        refuse_opset(request.opset)
        program = self.program_for(request)
        explain.refuse_state(program, STATEFUL)
        outputs = [output.name for output in self._outputs]
        weights = _weights(self._cell, program)
        model, refusing = build_model(
            program, request.inputs, outputs, weights, request.opset, self._unsupported
        )
        self.notes += [
            f"{place} raises an error for some inputs; the graph goes on as if it did not."
            for place in refusing
        ]
        save_model(model, weights, request)

    def _unsupported(self, node: Node, reason: str) -> ExportError:
        return explain.unsupported(node, reason, self._cell)

    def program(self, shapes: Sequence[tuple[Any, Shape]]) -> Program:
        """The program for inputs of these types and sizes.

        Raises:
            Exception: Whatever MindSpore's compiler says.
        """
        with capture.flat_cell(self._cell, self._plan, self._outputs) as flat:
            return program_of(capture.capture(flat, shapes))

    def program_for(self, request: ConversionRequest) -> Program:
        """The program with all asked sizes open.

        Raises:
            DimCannotVary: Naming a size that MindSpore cannot open.
            ExportError: If it cannot compile the cell at all.
        """
        with capture.flat_cell(self._cell, self._plan, self._outputs) as flat:
            return program_of(self._captured(flat, request))

    def _captured(self, flat: Any, request: ConversionRequest) -> Any:
        """The program with all asked sizes open; if MindSpore cannot compile it so, the size that it cannot open.

        Raises:
            DimCannotVary: Naming the size.
        """
        types = [calls.to_tensor(request.example[spec.name]).dtype for spec in request.inputs]
        opened = sorted({dim for spec in request.inputs for dim in spec.shape if isinstance(dim, str)})

        def compiled(dims: set[str]) -> Any:
            shapes = [_sizes(spec, request.example[spec.name].shape, dims) for spec in request.inputs]
            return capture.capture(flat, list(zip(types, shapes, strict=True)))

        try:
            return compiled(set(opened))
        except Exception as error:  # the compiler raises whatever it likes
            for dim in opened:
                alone = _failure(compiled, {dim})
                if alone is not None:
                    raise DimCannotVary(
                        dim, f"MindSpore cannot compile the cell with it open: {explain.first_line(alone)}"
                    ) from error
            if opened and _failure(compiled, set()) is None:
                raise DimCannotVary(
                    opened[-1], f"MindSpore cannot compile the cell with {opened} open together"
                ) from error
            raise explain.not_compiled(error) from error


def refuse_opset(opset: int) -> None:
    """Refuse an operator set that the translation does not write.

    Raises:
        ExportError: Naming the range.
    """
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ExportError(
            f"opset {opset} cannot be written by the MindSpore exporter (it writes {OPSETS[0]} to {OPSETS[1]}). "
            f"Leave the opset out, or pass one of these."
        )


_FLOATS = (ms.float16, ms.float32, ms.float64, ms.bfloat16)


def _failure(compiled: Callable[[set[str]], Any], dims: set[str]) -> Exception | None:
    try:
        compiled(dims)
    except Exception as error:  # noqa: BLE001 - the compiler raises whatever it likes
        return error
    return None


def _sizes(spec: TensorSpec, sizes: Sequence[int], opened: set[str]) -> Shape:
    return tuple(None if dim in opened else size for dim, size in zip(spec.shape, sizes, strict=True))


def _weights(cell: Any, program: Program) -> dict[str, Array]:
    used = set(program.parameters.values())
    return {p.name: calls.to_array(p) for p in cell.get_parameters() if p.name in used}


def _constant_note(name: str, value: Any) -> str:
    return f"Input {name!r} is no tensor and is fixed at {value!r}."
