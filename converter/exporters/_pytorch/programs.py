"""Programs that were captured before (`torch.export.export`, `.pt2`): their open sizes were settled then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._pytorch.model import TorchModel
from paritygate.converter.exporters._pytorch.structure import CallPlan, plan_calls
from paritygate.converter.exporters._pytorch.tensors import dtype_of
from paritygate.converter.exporters.base import Weights
from paritygate.converter.exporters.binding import BATCH, declared_inputs
from paritygate.converter.types import Dim, TensorSpec

_TRAINING_ARGUMENT = {
    "aten.dropout.default": 2,
    "aten.batch_norm.default": 5,
    "aten.native_dropout.default": 2,
}
"""Operators that act differently in training, and which argument says so."""


def open_program(program: torch.export.ExportedProgram, inputs: Any, weights: Weights) -> TorchModel:
    """A program as a source; its own sizes are open, its example inputs serve where none are given.

    Raises:
        ExportError: If it was captured in training mode, or has no example and none is given.
    """
    _refuse_training(program)
    module = program.module()
    if declared_inputs(inputs) is not None:
        raise ExportError("an exported program says itself what it takes; give example arrays, or nothing.")
    example = inputs if inputs is not None else _own_example(program)
    plan = plan_calls(module, example)[0]
    specs = _specs(program, plan)
    return TorchModel(module, plan, declared=specs, with_example=True, weights=weights)


def _own_example(program: torch.export.ExportedProgram) -> Any:
    if program.example_inputs is None:
        raise ExportError("the exported program carries no example inputs; give them (inputs=).")
    args, kwargs = program.example_inputs
    return dict(kwargs) if kwargs and not args else tuple(args) + tuple(kwargs.values())


def _specs(program: torch.export.ExportedProgram, plan: CallPlan) -> tuple[TensorSpec, ...]:
    """The inputs with the program's open sizes; equal symbols get equal names, since torch keeps no names."""
    taken: dict[str, str] = {}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values = [nodes[name].meta["val"] for name in program.graph_signature.user_inputs]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != len(plan.names):
        raise ExportError(
            f"the program takes {len(tensors)} tensors, the example has {len(plan.names)}: {plan.names}."
        )
    return tuple(
        TensorSpec(name, dtype_of(example, name), _shape(name, value.shape, taken))
        for name, example, value in zip(plan.names, plan.tensors, tensors, strict=True)
    )


def _shape(name: str, sizes: Sequence[Any], taken: dict[str, str]) -> tuple[Dim, ...]:
    shape: list[Dim] = []
    for axis, size in enumerate(sizes):
        if isinstance(size, torch.SymInt):
            fresh = BATCH if axis == 0 and BATCH not in taken.values() else f"{name}_dim{axis}"
            shape.append(taken.setdefault(str(size), fresh))
        else:
            shape.append(int(size))
    return tuple(shape)


def _refuse_training(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        place = _TRAINING_ARGUMENT.get(str(node.target))
        if place is not None and len(node.args) > place and node.args[place] is True:
            raise ExportError(
                f"the program was captured in training mode ({node.target} at {node.name} is active); capture it "
                f"again after model.eval()."
            )
