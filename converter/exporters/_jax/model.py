"""A JAX function that is open for export: it answers as JAX compiles it and converts through jax2onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx_ir as ir
from jax._src import core
from jax.extend import core as jax_core

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._jax import lowering
from paritygate.converter.exporters._jax.calls import CallPlan, plan_calls, plan_declared
from paritygate.converter.exporters._jax.confined import contained_noise
from paritygate.converter.exporters._jax.rewriting import Rewriter
from paritygate.converter.exporters._jax.sources import Callee
from paritygate.converter.exporters._jax.tracing import Traced, first_line, place_of, trace, trace_open
from paritygate.converter.exporters.base import (
    ConversionRequest,
    DimCannotVary,
    SourceInput,
    SourceModel,
    Weights,
)
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.exporters.blame import to_blame
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

FLOAT64_LIMIT_BYTES = 2**31
"""Above 2 GiB of weights no double-precision answers are asked for: they take three times that memory in all."""

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_TO_FLOAT64 = dict.fromkeys((*_NARROW, _FLOAT32), _FLOAT64)


class JaxModel(SourceModel):
    """A function in inference mode with the plan of its call.

    Args:
        callee: The model.
        inputs: Example arrays, or declared inputs.
        weights: Where the weights came from.
        notes: Sentences for the manifest.
    """

    def __init__(
        self, callee: Callee, inputs: Any, *, weights: Weights | None = None, notes: Sequence[str] = ()
    ) -> None:
        self._callee = callee
        self.weights = weights or Weights()
        self.notes: list[str] = [*notes, *callee.notes]
        self._traces: dict[Any, Traced] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        declared = declared_inputs(inputs)
        if declared is not None:
            self._declare(declared)
        elif inputs is None:
            raise ExportError(
                "a JAX model does not say what it takes; give --samples x.npz, or "
                "--input 'x:float32[batch,3,32,32]'; in Python, inputs= takes example arrays or such texts."
            )
        else:
            self._take_example(inputs)
        self.notes += [
            f"Argument {name!r} is fixed at {value!r} in the graph."
            for name, value in {**self._plan.constants, **self._plan.switches}.items()
        ]
        self._trained = False

    def _declare(self, specs: Sequence[TensorSpec]) -> None:
        for spec in specs:
            computed = np.dtype(jax.dtypes.canonicalize_dtype(spec.dtype.numpy))
            if computed != spec.dtype.numpy:
                raise ExportError(
                    f"input {spec.name!r} is declared {spec.dtype.value}, but JAX computes it in {computed} while "
                    f"jax_enable_x64 is off; declare {computed}, or enable it in the factory's module "
                    f"(jax.config.update('jax_enable_x64', True))."
                )
        self._plan = plan_declared(self._callee.function, specs)
        self.inputs = tuple(SourceInput(spec.name, spec.dtype, spec.shape) for spec in specs)
        self.dims_are_declared = True

    def _take_example(self, inputs: Any) -> None:
        plans = plan_calls(self._callee.function, inputs)
        self._plan = next((plan for plan in plans if self._takes(plan)), plans[0])
        arrays = {
            name: self._as_computed(name, array)
            for name, array in zip(self._plan.names, self._plan.arrays, strict=True)
        }
        self.example = arrays
        self.inputs = tuple(
            SourceInput(name, DType.from_numpy(array.dtype), array.shape) for name, array in arrays.items()
        )

    def _takes(self, plan: CallPlan) -> bool:
        try:
            jax.eval_shape(lambda *leaves: _blind(plan.call(self._callee.function, leaves)), *plan.arrays)
        except Exception:  # noqa: BLE001 - whatever a model raises means that it was not meant to be called so
            return False
        return True

    def _as_computed(self, name: str, array: Array) -> Array:
        """An example in the type that JAX computes it in: without x64, 64 bits become 32."""
        computed = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
        if computed == array.dtype:
            return array
        cast = array.astype(computed)
        if array.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise ExportError(
                f"input {name!r} holds {array.dtype} values that {computed} cannot, and JAX computes it in "
                f"{computed} while jax_enable_x64 is off; enable it (jax.config.update('jax_enable_x64', True))."
            )
        self.notes.append(
            f"Input {name!r} was given as {array.dtype}; JAX computes it in {computed}, which the model takes."
        )
        return cast

    # --- the source's own answers ---------------------------------------------------------------------------

    def own_code(self) -> Sequence[Any]:
        """The function."""
        return (self._callee.function,)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See `SourceModel.run`: the traced program, compiled by JAX."""
        leaves = [np.asarray(feeds[name]) for name in self._plan.names]
        if not self._trained:
            self._refuse_training(leaves)
            self._trained = True
        traced = self._traced(leaves)
        return self._answers(traced, self._compile(traced, _key(leaves)), traced.program.consts, leaves)

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """See `SourceModel.run_float64`: the same program with every float in double precision."""
        leaves = [np.asarray(feeds[name]) for name in self._plan.names]
        traced = self._traced(leaves)
        if sum(int(value.nbytes) for value in map(np.asarray, traced.program.consts)) > FLOAT64_LIMIT_BYTES:
            return None
        with jax.enable_x64(True):
            wide = [leaf.astype(_FLOAT64) if leaf.dtype in _TO_FLOAT64 else leaf for leaf in leaves]
            rewriter = Rewriter(_TO_FLOAT64, for_onnx=False)
            program = rewriter.rewrite(traced.program, [_aval(leaf) for leaf in wide])
            consts = program.consts
            compiled = self._compile(Traced(program, traced.outputs, {}), ("float64", _key(leaves)))
            return self._answers(traced, compiled, consts, wide)

    def _answers(
        self, traced: Traced, compiled: Callable[..., Any], consts: Sequence[Any], leaves: Sequence[Array]
    ) -> dict[str, Array]:
        answers = compiled(consts, leaves)
        return {name: np.asarray(value) for name, value in zip(traced.outputs, answers, strict=True)}

    def _compile(self, traced: Traced, key: Any) -> Callable[..., Any]:
        if key not in self._compiled:
            jaxpr = traced.program.jaxpr
            # Weights are arguments: as constants, XLA would copy and fold them for minutes.
            self._compiled[key] = jax.jit(lambda consts, args: core.eval_jaxpr(jaxpr, consts, *args))
        return self._compiled[key]

    def _traced(self, leaves: Sequence[Array]) -> Traced:
        key = _key(leaves)
        if key not in self._traces:
            self._traces[key] = trace(self._flat, [_aval(leaf) for leaf in leaves])
            self._note_others(self._traces[key].others)
        return self._traces[key]

    def _flat(self, leaves: Sequence[Any]) -> Any:
        return self._plan.call(self._callee.function, leaves)

    def _note_others(self, others: Mapping[str, Any]) -> None:
        for name, value in others.items():
            note = (
                f"Part {name!r} of the model's answer is a {type(value).__name__}, no array; it is left out."
            )
            if note not in self.notes:
                self.notes.append(note)

    def _refuse_training(self, leaves: Sequence[Array]) -> None:
        """Refuse a module that draws random numbers or updates statistics although it is in evaluation mode.

        Raises:
            ExportError: If it does.
        """
        if self._callee.state_changes is not None:
            changed = self._plan.call(self._callee.state_changes, leaves)
            if changed:
                raise ExportError(
                    f"the module updates its running statistics {', '.join(changed[:3])} while it answers, as in "
                    f"training, also after eval(); take use_running_average from the attribute that eval() sets."
                )
        vary = self._callee.vary_random
        if vary is None:
            return
        answers = (
            jax.tree_util.tree_leaves(self._plan.call(f, leaves)) for f in (self._callee.function, vary)
        )
        for one, other in zip(*answers, strict=True):
            if not np.array_equal(
                np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"
            ):
                raise ExportError(
                    "the module's answers hang on random numbers, also after eval(); take deterministic from the "
                    "attribute that eval() sets, so that dropout is off."
                )

    # --- conversion -----------------------------------------------------------------------------------------

    def convert(self, request: ConversionRequest) -> None:
        """See `SourceModel.convert`."""
        sizes = {
            dim: int(request.example[spec.name].shape[axis])
            for spec in request.inputs
            for axis, dim in enumerate(spec.shape)
            if isinstance(dim, str)
        }
        try:
            traced, model = self._lowered(request.inputs, sizes, request.opset)
        except DimCannotVary:
            raise
        except ExportError as error:
            blamed = self._blamed(request, sizes, error)
            if blamed is error:
                raise
            raise blamed from error
        _name_inputs(model, self._plan.names)
        answers = [var.aval for var in traced.program.jaxpr.outvars]
        _restore_types(model, request.inputs, [aval.dtype for aval in answers])
        _state_shapes(model, [aval.shape for aval in answers])
        size = sum(
            v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
        )
        external = f"{request.path.name}.data" if size > request.external_data_threshold_bytes else None
        with contained_noise():
            ir.save(model, request.path, external_data=external)

    def _lowered(
        self, inputs: Sequence[TensorSpec], sizes: Mapping[str, int], opset: int
    ) -> tuple[Traced, ir.Model]:
        traced = trace_open(self._flat, inputs, sizes)
        dtypes = self._computed_types(traced.program)
        rewriter = Rewriter(dtypes, for_onnx=True)
        try:
            program = rewriter.rewrite(
                traced.program, [rewriter.aval(v.aval) for v in traced.program.jaxpr.invars]
            )
        except ExportError:
            raise
        except Exception as error:
            place = place_of(error)
            raise ExportError(
                f"JAX cannot rewrite the model{f' at {place}' if place else ''}: {first_line(error)}."
            ) from error
        return traced, lowering.lower(program, opset)

    def _computed_types(self, program: jax_core.ClosedJaxpr) -> dict[np.dtype[Any], np.dtype[Any]]:
        """Which float types the graph replaces inside: one width for all, the widest that the model uses."""
        found = {
            str(v.aval.dtype)
            for v in (*program.jaxpr.invars, *program.jaxpr.constvars, *program.jaxpr.outvars)
        }
        if "float64" in found:
            return dict(_TO_FLOAT64)
        if found & {str(dtype) for dtype in _NARROW}:
            note = (
                "Parts in bfloat16 or float16 are computed in float32, for which every runtime has kernels."
            )
            if note not in self.notes:
                self.notes.append(note)
        return dict.fromkeys(_NARROW, _FLOAT32)

    def _blamed(self, request: ConversionRequest, sizes: Mapping[str, int], error: ExportError) -> Exception:
        """The open size that has to be fixed for the conversion to end, if there is one; else the error itself."""

        def lowers(opened: Iterable[str]) -> bool:
            kept = {dim: sizes[dim] for dim in opened}
            shapes = [
                TensorSpec(
                    s.name,
                    s.dtype,
                    tuple(sizes[d] if isinstance(d, str) and d not in kept else d for d in s.shape),
                )
                for s in request.inputs
            ]
            try:
                self._lowered(shapes, kept, request.opset)
            except (ExportError, DimCannotVary):
                return False
            return True

        if not sizes or not lowers(()):
            return error
        return DimCannotVary(to_blame(list(sizes), lowers), str(error).rstrip("."))


def _blind(value: Any) -> Any:
    return [leaf for leaf in jax.tree_util.tree_leaves(value) if hasattr(leaf, "dtype")]


def _aval(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _key(leaves: Sequence[Array]) -> Any:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _name_inputs(model: ir.Model, names: Sequence[str]) -> None:
    """The graph's inputs under the names of the call, in order."""
    for index, value in enumerate(model.graph.inputs):
        value.name = f"__input_{index}"
    for value, name in zip(model.graph.inputs, names, strict=True):
        value.name = name


def _state_shapes(model: ir.Model, shapes: Sequence[Sequence[Any]]) -> None:
    """The sizes of the outputs that JAX knows; what a Scan gives has none in the graph."""
    for value, shape in zip(model.graph.outputs, shapes, strict=True):
        if value.shape is None or len(value.shape) == len(shape):
            known = value.shape if value.shape is not None else [None] * len(shape)
            sizes = [size if isinstance(size, int) else old for size, old in zip(shape, known, strict=True)]
            value.shape = ir.Shape(sizes)


def _restore_types(model: ir.Model, inputs: Sequence[TensorSpec], outputs: Sequence[Any]) -> None:
    """Casts at the border of the graph, where the computation inside is wider than what goes in and out."""
    graph = model.graph
    for value, spec in zip(graph.inputs, inputs, strict=True):
        wanted = ir.DataType(spec.dtype.onnx)
        if value.dtype == wanted or not spec.dtype.is_floating:
            continue
        inner = ir.Value(name=f"{value.name}_wide", type=value.type, shape=value.shape)
        uses = list(value.uses())
        cast = ir.node(
            "Cast",
            [value],
            {"to": int(value.dtype or ir.DataType.UNDEFINED)},
            outputs=[inner],
            name=f"cast_{value.name}",
        )
        for node, index in uses:
            node.replace_input_with(index, inner)
        value.type = ir.TensorType(wanted)
        graph.insert_before(graph[0], cast) if len(graph) else graph.append(cast)
    for index, (value, dtype) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        own = DType.from_numpy(np.dtype(dtype))
        wanted = ir.DataType(own.onnx)
        if value.dtype == wanted or not own.is_floating:
            continue
        narrow = ir.Value(name=f"{value.name}_narrow_{index}", type=ir.TensorType(wanted), shape=value.shape)
        graph.append(
            ir.node("Cast", [value], {"to": int(wanted)}, outputs=[narrow], name=f"cast_out_{index}")
        )
        graph.outputs[index] = narrow
