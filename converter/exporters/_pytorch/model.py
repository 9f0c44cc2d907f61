"""A PyTorch module that is open for export: it answers in eager mode and converts through torch.export."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir
import torch

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._pytorch import explain, integers, near_zero
from paritygate.converter.exporters._pytorch.quiet import contained_noise, contained_prints
from paritygate.converter.exporters._pytorch.recurrent import open_sequence_lengths
from paritygate.converter.exporters._pytorch.snapshot import double_copy, float_copy
from paritygate.converter.exporters._pytorch.structure import CallPlan, flatten_output
from paritygate.converter.exporters._pytorch.tensors import array_from_tensor, dtype_of, tensor_from_array
from paritygate.converter.exporters.base import (
    ConversionRequest,
    DimCannotVary,
    SourceInput,
    SourceModel,
    Weights,
)
from paritygate.converter.types import Array, Feeds, TensorSpec

FLOAT64_LIMIT_BYTES = 2**31
"""Above 2 GiB of weights no double-precision copy is made: it would take three times that memory in all."""


BFLOAT16_NOTE = (
    "The weights are bfloat16, for which CPU runtimes lack most kernels: the graph computes in float32 between "
    "bfloat16 inputs and outputs."
)


class FlatModule(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be untyped
    """The user's model behind flat inputs and flat outputs, which is what a graph has.

    Args:
        source: The model.
        plan: How flat inputs become a call.
        widened: Dtypes of the outputs where `source` computes in float32 what is bfloat16 outside, else None.
    """

    def __init__(
        self, source: torch.nn.Module, plan: CallPlan, widened: Sequence[torch.dtype] | None = None
    ) -> None:
        super().__init__()
        self.source = source
        self.plan = plan
        self.widened = widened
        self.training = False  # eval() would reach into captured programs, which refuse it

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Answer flat inputs with a flat tuple."""
        if self.widened is not None:
            leaves = tuple(leaf.float() if leaf.dtype is torch.bfloat16 else leaf for leaf in leaves)
        tensors, _ = flatten_output(self.plan.call(self.source, leaves))
        if self.widened is not None:
            return tuple(t.to(dtype) for (_, t), dtype in zip(tensors, self.widened, strict=True))
        return tuple(tensor for _, tensor in tensors)


class TorchModel(SourceModel):
    """An inference copy of a module with the plan of its call."""

    def __init__(
        self,
        module: torch.nn.Module,
        plan: CallPlan,
        *,
        declared: Sequence[TensorSpec] | None = None,
        with_example: bool = False,
        weights: Weights | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._module = module
        self._plan = plan
        self._double: torch.nn.Module | None = None
        self.weights = weights or Weights()
        self.notes: list[str] = [*notes, *_constant_notes(plan)]
        self._compared: dict[str, tuple[int, ...]] = {}
        self.whole_numbers = not any(
            part.is_floating_point() or part.is_complex()
            for part in itertools.chain(module.parameters(), module.buffers())
        )
        if declared is None or with_example:
            pairs = zip(plan.names, plan.tensors, strict=True)
            self.example = {name: array_from_tensor(tensor) for name, tensor in pairs}
        if declared is not None:
            self.inputs = tuple(SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared)
            self.dims_are_declared = True
        else:
            self.inputs = tuple(
                SourceInput(name, dtype_of(tensor, name), tuple(tensor.shape))
                for name, tensor in zip(plan.names, plan.tensors, strict=True)
            )

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See `SourceModel.run`: eager PyTorch, evaluation mode, no gradients."""
        return self._run(self._module, feeds, double=False)

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """See `SourceModel.run_float64`: the same module with its weights in double precision."""
        if self._double is None:
            size = sum(p.numel() * p.element_size() for p in self._module.parameters())
            if size > FLOAT64_LIMIT_BYTES:
                return None
            self._double = double_copy(self._module)
        return self._run(self._double, feeds, double=True)

    def _run(self, module: torch.nn.Module, feeds: Feeds, *, double: bool) -> dict[str, Array]:
        leaves = [tensor_from_array(feeds[name]) for name in self._plan.names]
        if double:
            leaves = [leaf.double() if leaf.is_floating_point() else leaf for leaf in leaves]
        with torch.no_grad(), _buffers_kept(module), contained_noise():
            tensors, others = flatten_output(self._plan.call(module, leaves))
        if not tensors:
            raise ExportError("the model gives no tensor; a served model gives at least one.")
        for name, value in others.items():
            note = (
                f"Part {name!r} of the model's answer is a {type(value).__name__}, no tensor; it is left out."
            )
            if note not in self.notes:
                self.notes.append(note)
        return {name: array_from_tensor(tensor) for name, tensor in tensors}

    def integer_ranges(self) -> dict[str, tuple[int, int]]:
        """Rows of the embeddings that an integer input indexes directly, seen by watching one call."""
        if not self._plan.tensors:
            return {}
        leaves = [tensor.clone() for tensor in self._plan.tensors]
        by_pointer = {
            (leaf.data_ptr(), leaf.shape): name for name, leaf in zip(self._plan.names, leaves, strict=True)
        }
        rows: dict[str, tuple[int, int]] = {}

        def watch(part: torch.nn.Module, args: tuple[Any, ...]) -> None:
            name = by_pointer.get((args[0].data_ptr(), args[0].shape)) if args else None
            if name is not None:
                known = rows.get(name, (0, part.num_embeddings - 1))
                rows[name] = (0, min(known[1], part.num_embeddings - 1))

        handles = [
            part.register_forward_pre_hook(watch)
            for part in self._module.modules()
            if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag)
        ]
        try:
            with torch.no_grad(), _buffers_kept(self._module), contained_noise():
                self._plan.call(self._module, leaves)
        finally:
            for handle in handles:
                handle.remove()
        return rows

    def convert(self, request: ConversionRequest) -> None:
        """See `SourceModel.convert`: torch.export, then torch.onnx on what was captured."""
        leaves = tuple(tensor_from_array(request.example[name]) for name in self._plan.names)
        flat = self._flat(leaves)
        with contained_noise(), contained_prints(), open_sequence_lengths(), _buffers_kept(self._module):
            program, log = self._capture(flat, leaves, request.inputs)
            self._check_dims(program, log, request.inputs)
            converted = self._translate(program, leaves, request.opset)
        _name_weights_as_in_the_model(converted.model)
        size = sum(
            value.const_value.nbytes
            for value in converted.model.graph.initializers.values()
            if value.const_value
        )
        converted.save(request.path, external_data=size > request.external_data_threshold_bytes)

    def _flat(self, leaves: tuple[torch.Tensor, ...]) -> FlatModule:
        """The module to capture; one in bfloat16 computes in float32 inside, where its code allows that."""
        if not any(part.dtype is torch.bfloat16 for part in self._module.parameters()):
            return FlatModule(self._module, self._plan)
        with torch.no_grad(), _buffers_kept(self._module), contained_noise():
            tensors, _ = flatten_output(self._plan.call(self._module, leaves))
            wide = float_copy(self._module)
            flat = FlatModule(wide, self._plan, [tensor.dtype for _, tensor in tensors])
            try:
                flat(*leaves)
            except Exception:  # noqa: BLE001 - code that insists on bfloat16 is captured as it is
                return FlatModule(self._module, self._plan)
        if BFLOAT16_NOTE not in self.notes:
            self.notes.append(BFLOAT16_NOTE)
        return flat

    def _capture(
        self, flat: FlatModule, leaves: tuple[torch.Tensor, ...], inputs: Sequence[TensorSpec]
    ) -> tuple[torch.export.ExportedProgram, explain.GuardLog]:
        auto = torch.export.Dim.AUTO
        shapes = tuple(
            {axis: auto for axis, dim in enumerate(spec.shape) if isinstance(dim, str)} for spec in inputs
        )
        try:
            with explain.recorded_guards(flat.source) as log:
                return torch.export.export(flat, leaves, dynamic_shapes=(shapes,), strict=False), log
        except Exception as error:
            raise explain.capture_error(error, flat.source) from error

    def telling_sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Sizes that Python code of the model compares with, which torch.export decides once and for all."""
        return self._compared

    def _check_dims(
        self, program: torch.export.ExportedProgram, log: explain.GuardLog, inputs: Sequence[TensorSpec]
    ) -> None:
        """Refuse the first size that was to stay open and did not.

        Raises:
            DimCannotVary: With torch's reason and the line of the user's code that it points to.
        """
        symbols: dict[str, str] = {}
        for name, spec in zip(program.graph_signature.user_inputs, inputs, strict=True):
            shape = _placeholder(program, name).meta["val"].shape
            for size, dim in zip(shape, spec.shape, strict=True):
                if isinstance(dim, str):
                    self._check_dim(dim, str(size), symbols, log)
        self._compared = {dim: log.compared_sizes(symbol) for symbol, dim in symbols.items()}

    def _check_dim(self, dim: str, symbol: str, symbols: dict[str, str], log: explain.GuardLog) -> None:
        if (
            symbol.isdecimal()
        ):  # a size that torch fixed may still be a SymInt; its text is a bare number then
            raise DimCannotVary(dim, f"torch.export fixes it at {symbol}{log.why_fixed(int(symbol))}")
        other = symbols.setdefault(symbol, dim)
        if other != dim:
            raise DimCannotVary(
                dim, f"torch.export finds it always equal to {other!r}; give both the same name"
            )

    def _translate(
        self, program: torch.export.ExportedProgram, leaves: tuple[torch.Tensor, ...], opset: int
    ) -> torch.onnx.ONNXProgram:
        try:
            converted = torch.onnx.export(
                program,
                (),
                opset_version=opset,
                dynamo=True,
                verbose=False,
                custom_translation_table={**integers.translations(), **near_zero.translations()},
            )
        except Exception as error:
            raise explain.conversion_error(error, program, self._module) from error
        if converted is None:
            raise ExportError(
                "torch.onnx gave no model; expected an ONNXProgram. Check the versions of torch and onnxscript."
            )
        return converted


def accepted_call(module: torch.nn.Module, plans: Sequence[CallPlan]) -> CallPlan:
    """The first plan that the model takes; the first of all where it takes none: its word is heard later."""
    if len(plans) == 1:
        return plans[0]
    return next((plan for plan in plans if _takes(module, plan)), plans[0])


def _takes(module: torch.nn.Module, plan: CallPlan) -> bool:
    try:
        with torch.no_grad(), _buffers_kept(module), contained_noise():
            plan.call(module, [tensor.clone() for tensor in plan.tensors])
    except Exception:  # noqa: BLE001 - whatever a model raises means that it was not meant to be called so
        return False
    return True


def _placeholder(program: torch.export.ExportedProgram, name: str) -> torch.fx.Node:
    return next(node for node in program.graph.nodes if node.op == "placeholder" and node.name == name)


def _constant_notes(plan: CallPlan) -> list[str]:
    return [
        f"Argument {name!r} is fixed at {value!r} in the graph." for name, value in plan.constants.items()
    ]


@contextlib.contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Put buffers back that a call changed, so that one answer does not hang on the calls before it."""
    kept = [(buffer, buffer._version, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, version, value in kept:
                if buffer._version != version:
                    buffer.copy_(value)


def _name_weights_as_in_the_model(model: onnx_ir.Model) -> None:
    """Initializers get the names that they have in the model's own state dict."""
    taken = set(model.graph.initializers)
    for name, value in list(model.graph.initializers.items()):
        own = explain.strip_prefix(name)
        if own != name and own and own not in taken:
            taken.add(own)
            value.name = own
    for node in model.graph.all_nodes():
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
        if scopes:
            node.metadata_props["pkg.torch.onnx.name_scopes"] = scopes.replace("'source.", "'").replace(
                "'source'", "''"
            )


__all__ = ["FLOAT64_LIMIT_BYTES", "FlatModule", "TorchModel"]
