"""A TorchScript module that is open for export: the script itself answers, and torch.onnx converts its code.

torch.export captures no script, and torch's converter from scripts to programs (`TS2EPConverter`) fixes every size
and knows no `if` on them. torch.onnx's older exporter works on the script's own graph: loops and branches stay
what they are, and sizes stay open. It cannot take a dict apart, so the script is called by a small script of ours
with one tensor for each input and output.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.onnx import errors as onnx_errors

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._pytorch import near_zero
from paritygate.converter.exporters._pytorch.explain import first_line
from paritygate.converter.exporters._pytorch.model import TorchModel
from paritygate.converter.exporters._pytorch.quiet import contained_noise, contained_prints
from paritygate.converter.exporters._pytorch.structure import CallPlan
from paritygate.converter.exporters._pytorch.tensors import tensor_from_array
from paritygate.converter.exporters.base import ConversionRequest, Weights
from paritygate.converter.types import TensorSpec

OLDEST_OPSET, NEWEST_OPSET = 13, 20
"""What torch.onnx's exporter of scripts writes."""

_OPERATOR = re.compile(r"operator '([\w:]+)'")
_SOURCE = "source"
_INLINE_LIMIT_BYTES = 2**30


def inference_script(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy on the CPU in evaluation mode; the user's own is never worked on.

    Raises:
        ExportError: If it cannot be copied.
    """
    try:
        twin: torch.jit.ScriptModule = copy.deepcopy(script).to("cpu")
        return twin.eval()
    except Exception as error:
        raise ExportError(
            f"the TorchScript module cannot be copied, and the export never works on your own object: "
            f"{first_line(error)}. Save it with torch.jit.save and export that file."
        ) from error


class ScriptedModel(TorchModel):
    """See `TorchModel`; what differs is how it is converted, and where its embeddings are found."""

    def __init__(
        self,
        script: torch.jit.ScriptModule,
        plan: CallPlan,
        *,
        declared: Sequence[TensorSpec] | None = None,
        weights: Weights | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(script, plan, declared=declared, weights=weights, notes=notes)
        self._script = script

    def integer_ranges(self) -> dict[str, tuple[int, int]]:
        """Rows of the embeddings that an integer input indexes directly, read from the script's graph."""
        with contextlib.suppress(RuntimeError):  # a call that the script refuses is told when it is run
            graph = _flat_script(self._script, self._plan, ()).inlined_graph
            names = dict(zip(_argument_names(self._plan), self._plan.names, strict=True))
            return _embedding_rows(graph, names, self._script)
        return {}

    def convert(self, request: ConversionRequest) -> None:
        """See `SourceModel.convert`: torch.onnx's exporter of scripts."""
        if not OLDEST_OPSET <= request.opset <= NEWEST_OPSET:
            raise ExportError(
                f"opset {request.opset} cannot be written for a TorchScript module; its exporter writes "
                f"{OLDEST_OPSET} to {NEWEST_OPSET}. Leave it out for 18."
            )
        leaves = tuple(tensor_from_array(request.example[name]) for name in self._plan.names)
        with torch.no_grad(), contained_noise():
            answer = self._plan.call(self._script, [leaf.clone() for leaf in leaves])
        flat = self._wrapped(answer)
        model = self._written(flat, leaves, request)
        _tidy(model)
        _save(model, request)

    def _wrapped(self, answer: Any) -> torch.jit.ScriptModule:
        result = self._script.forward.schema.returns[0].type
        try:
            return _flat_script(self._script, self._plan, tuple(_places("answer", answer, result)))
        except RuntimeError as error:
            raise ExportError(
                f"the answer of the TorchScript module cannot be taken apart: {first_line(error)}. Let it give "
                f"tensors, or tuples, lists or dicts of them."
            ) from error

    def _written(
        self, flat: torch.jit.ScriptModule, leaves: tuple[torch.Tensor, ...], request: ConversionRequest
    ) -> onnx.ModelProto:
        axes = {
            spec.name: {axis: dim for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
            for spec in request.inputs
        }
        written = io.BytesIO()
        size = sum(value.numel() * value.element_size() for value in flat.state_dict().values())
        target: Any = written if size < _INLINE_LIMIT_BYTES else str(request.path)
        try:
            with contained_noise(), contained_prints(), _unwarned(), near_zero.in_scripts(request.opset):
                torch.onnx.export(
                    flat,
                    leaves,
                    target,
                    dynamo=False,
                    opset_version=request.opset,
                    input_names=[spec.name for spec in request.inputs],
                    dynamic_axes={name: named for name, named in axes.items() if named},
                )
        except Exception as error:
            raise self._refused(error, flat) from error
        return onnx.load_from_string(written.getvalue()) if target is written else onnx.load(request.path)

    def _refused(self, error: Exception, flat: torch.jit.ScriptModule) -> ExportError:
        found = _OPERATOR.search(str(error))
        if not isinstance(error, onnx_errors.UnsupportedOperatorError) or found is None:
            return ExportError(f"torch.onnx cannot convert the TorchScript module: {first_line(error)}.")
        module, line = _where(flat.inlined_graph, found[1], self._script)
        kind = type_name(self._script, module)
        where = f"{module} ({kind})" if module else f"forward of {kind}"
        return UnsupportedOperator(
            f"the operator {found[1]}, used in {where}{f', {line}' if line else ''}, has no ONNX form in this "
            f"exporter. Replace it, or compute it outside the model.",
            operator=found[1],
            module=module,
        )


def type_name(script: torch.jit.ScriptModule, path: str) -> str:
    """The class that a part of a script was made from."""
    part = dict(script.named_modules()).get(path, script)
    return str(getattr(part, "original_name", type(part).__name__))


# --- the script of ours around it ---------------------------------------------------------------------------


def _argument_names(plan: CallPlan) -> list[str]:
    return [f"given_{index}" for index in range(len(plan.names))]


def _flat_script(
    script: torch.jit.ScriptModule, plan: CallPlan, outputs: tuple[str, ...]
) -> torch.jit.ScriptModule:
    """A script with flat inputs and outputs that calls the user's own."""
    names = _argument_names(plan)
    taken = ", ".join(f"{name}: Tensor" for name in names)
    call = plan.text(f"self.{_SOURCE}", names.__getitem__)
    given = ", ".join(outputs) or "answer"
    code = f"def forward(self, {taken}):\n    answer = {call}\n    return {given}\n"
    with _unwarned():
        holder = type(
            "Flat", (torch.nn.Module,), {}
        )()  # a class of its own: torch defines a method once a class
        holder.add_module(_SOURCE, script)
        box = torch.jit.script(holder)
        box.define(code)
    flat: torch.jit.ScriptModule = box.eval()
    return flat


def _places(text: str, value: Any, kind: Any) -> Iterator[str]:
    """Expressions for every tensor in an answer, in the order of `structure.flatten_output`."""
    if value is None:
        return
    if isinstance(kind, torch._C.OptionalType):
        text, kind = f"torch.jit._unwrap_optional({text})", kind.getElementType()
    if isinstance(value, torch.Tensor):
        yield text
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _places(f"{text}[{key!r}]", part, kind.getValueType())
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _places(f"{text}[{index}]", part, kind.getElementType())
    elif isinstance(value, tuple):
        for index, (part, inner) in enumerate(zip(value, kind.elements(), strict=True)):
            yield from _places(f"{text}[{index}]", part, inner)


# --- the script's graph -------------------------------------------------------------------------------------


def _embedding_rows(
    graph: Any, names: Mapping[str, str], script: torch.jit.ScriptModule
) -> dict[str, tuple[int, int]]:
    rows: dict[str, tuple[int, int]] = {}
    weights = dict(script.named_parameters()) | dict(script.named_buffers())
    inputs = {value.debugName(): value for value in graph.inputs()}
    for node in graph.findAllNodes("aten::embedding"):
        table, index = list(node.inputs())[:2]
        own = next((names[name] for name in names if _is_argument(inputs, name, index)), None)
        weight = weights.get(_attribute_path(table))
        if own is not None and weight is not None:
            last = min(rows.get(own, (0, weight.shape[0] - 1))[1], weight.shape[0] - 1)
            rows[own] = (0, last)
    return rows


def _is_argument(inputs: Mapping[str, Any], name: str, value: Any) -> bool:
    """Graph inputs are called as the argument, with a number behind."""
    found = value.debugName()
    return found in inputs and found.split(".")[0] == name


def _attribute_path(value: Any) -> str:
    """`encoder.embed.weight` of a value that the graph reads attribute by attribute."""
    path: list[str] = []
    node = value.node()
    while node.kind() == "prim::GetAttr":
        path.append(node.s("name"))
        node = next(iter(node.inputs())).node()
    return ".".join(reversed(path)).removeprefix(f"{_SOURCE}.")


def _where(graph: Any, operator: str, script: torch.jit.ScriptModule) -> tuple[str, str]:
    """The module and the line (`net.py:12`) that use an operator, as far as the script remembers them."""
    node = next(iter(graph.findAllNodes(operator)), None)
    if node is None:
        return "", ""
    line = re.search(r'File "([^"]+)", line (\d+)', node.sourceRange())
    place = f"{Path(line[1]).name}:{line[2]}" if line else ""
    return _module_that_uses(operator, script), place


def _module_that_uses(operator: str, script: torch.jit.ScriptModule) -> str:
    """The path of the innermost module whose forward holds the operator."""
    found = [""]
    for path, part in script.named_modules():
        graph = getattr(getattr(part, "forward", None), "graph", None)
        if graph is not None and next(iter(graph.findAllNodes(operator)), None) is not None:
            found.append(str(path))
    return max(found, key=lambda path: len(path.split(".")) if path else 0)


# --- what was written ---------------------------------------------------------------------------------------


def _tidy(model: onnx.ModelProto) -> None:
    """Weights under their own names; no guessed sizes of inner values, which are those of the example."""
    graph = model.graph
    own = {value.name: value.name.removeprefix(f"{_SOURCE}.") for value in graph.initializer}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} - own.keys()
    renamed = {old: new for old, new in own.items() if old != new and new not in taken}
    for value in graph.initializer:
        value.name = renamed.get(value.name, value.name)
    _rename_inputs(graph, renamed)
    del graph.value_info[:]


def _rename_inputs(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename_inputs(inner, renamed)


def _save(model: onnx.ModelProto, request: ConversionRequest) -> None:
    size = sum(len(value.raw_data) for value in model.graph.initializer)
    if size > request.external_data_threshold_bytes:
        onnx.save(
            model,
            request.path,
            save_as_external_data=True,
            location=f"{request.path.name}.data",
            size_threshold=1024,
        )
    else:
        request.path.write_bytes(model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """torch.jit and the exporter of scripts are deprecated, which is no news to someone who has such a file.

    Whole graphs go to the terminal before an error, from C++, whose switch torch 2.13 turns on by mistake.
    """
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = _drop
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        torch._C._jit_onnx_log = log
        torch._C._jit_set_onnx_log_enabled(False)


def _drop(*_texts: object) -> None:
    return None
