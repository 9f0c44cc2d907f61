"""MindIR files that `scanning` has let pass: MindSpore answers, and the file's own program is translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._mindspore import calls, explain
from paritygate.converter.exporters._mindspore.mindir import Program, own_name
from paritygate.converter.exporters._mindspore.model import CellModel
from paritygate.converter.exporters._mindspore.scanning import checked_program
from paritygate.converter.exporters._mindspore.values import Abstract
from paritygate.converter.exporters.base import ConversionRequest, DimCannotVary, SourceInput, Weights
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.exporters.calls import CallPlan, Leaf
from paritygate.converter.types import DType


class FileModel(CellModel):
    """A MindIR file: MindSpore's own loader answers, and the file's program is what is translated."""

    def __init__(self, cell: Any, plan: calls.CallPlan, program: Program, **options: Any) -> None:
        self._read = program
        super().__init__(cell, plan, **options)

    def program(self, shapes: Sequence[tuple[Any, Any]]) -> Program:
        """The program of the file, whatever the sizes."""
        return self._read

    def program_for(self, request: ConversionRequest) -> Program:
        """The program of the file.

        Raises:
            DimCannotVary: If a size is open that the file fixes.
        """
        for (_, abstract), spec in zip(self._read.main.inputs, request.inputs, strict=True):
            sizes = abstract.shape if abstract.shape is not None else (None,) * len(spec.shape)
            for asked, own in zip(spec.shape, sizes, strict=True):
                if isinstance(asked, str) and own is not None:
                    raise DimCannotVary(asked, f"the MindIR file fixes it at {own}")
        return self._read

    def run_float64(self, feeds: Any) -> None:
        """None: a loaded program has its element types written into it."""


def open_mindir(path: Path, config: ExportConfig) -> FileModel:
    """Open a MindIR file.

    Raises:
        SourceError: If it is damaged, encrypted, or its weights are not there.
        UnsafeSource: If it could run code, or reaches for files outside its folder.
        UnsupportedOperator: If it uses a primitive without ONNX form.
        ExportError: If the inputs asked for are not those of the file.
    """
    if config.factory is not None:
        raise SourceError(f"{path} holds a whole network; leave the factory {config.factory} out.")
    message = _message(path)
    program = checked_program(message, path)
    cell = _loaded(path)
    own = _own_inputs(program, path)
    weights = Weights("as saved in the file", file_sha256(path))
    plan, taken = _plan(own, config.inputs, path)
    return FileModel(cell, plan, program, declared=taken, weights=weights)


def _message(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from mindspore.train.mind_ir_pb2 import ModelProto

    if path.is_dir():
        raise SourceError(
            f"{path} is a folder; a MindIR that was written in parts (graph and variables) is opened by its "
            f"`..._graph.mindir`."
        )
    message = ModelProto()
    try:
        message.ParseFromString(path.read_bytes())
        broken = not message.HasField("graph") or not message.graph.output
    except DecodeError:
        broken = True
    if broken:
        raise SourceError(
            f"{path} cannot be read as MindIR; it is damaged, half-written or encrypted. Write it again with "
            f"ms.export(net, inputs, file_name=..., file_format='MINDIR'), without enc_key."
        )
    if message.HasField("little_endian") and not message.little_endian:
        raise SourceError(
            f"{path} was written on a big-endian machine; write it again on a little-endian one."
        )
    return message


def _loaded(path: Path) -> Any:
    import mindspore as ms
    from mindspore import nn

    try:
        cell = nn.GraphCell(ms.load(str(path)))
    except Exception as error:
        raise SourceError(f"MindSpore cannot load {path}: {explain.first_line(error)}.") from error
    cell.set_train(False)
    return cell


# --- inputs -------------------------------------------------------------------------------------------------


def _own_inputs(program: Program, path: Path) -> list[SourceInput]:
    found = []
    for name, abstract in program.main.inputs:
        if not isinstance(abstract, Abstract) or abstract.scalar:
            raise SourceError(
                f"input {own_name(name)!r} of {path} is no tensor; a served model takes tensors."
            )
        dtype = DType.from_numpy(abstract.dtype)
        if abstract.shape is None:
            raise SourceError(
                f"input {own_name(name)!r} of {path} has an open number of axes; export the file with as many "
                f"axes as it is served with."
            )
        found.append(SourceInput(own_name(name), dtype, abstract.shape))
    return found


def _plan(
    own: Sequence[SourceInput], inputs: Any, path: Path
) -> tuple[calls.CallPlan, Sequence[SourceInput]]:
    """The call of the file, and its inputs under the user's names."""
    plan: calls.CallPlan = CallPlan(
        names=[each.name for each in own], args=[Leaf(k) for k in range(len(own))]
    )
    declared = declared_inputs(inputs)
    if declared is not None:
        given = _in_order(own, {spec.name: spec for spec in declared}, path)
        taken = [SourceInput(name, spec.dtype, spec.shape) for name, spec in given.items()]
    elif inputs is None:
        return plan, own
    else:
        if isinstance(inputs, Mapping):
            given = _in_order(own, inputs, path)
        else:
            values = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
            if len(values) != len(own):
                raise ExportError(f"{path} takes {_shown(own)}; {len(values)} inputs were given.")
            given = dict(zip(plan.names, values, strict=True))
        plan.tensors = [calls.to_array(value) for value in given.values()]
        taken = [
            SourceInput(
                name,
                explain.dtype_of(array, name),
                each.shape if len(each.shape) == array.ndim else array.shape,
            )
            for name, array, each in zip(given, plan.tensors, own, strict=True)
        ]
    plan.names = list(given)
    for asked, each in zip(taken, own, strict=True):
        if asked.dtype is not each.dtype or len(asked.shape) != len(each.shape):
            raise ExportError(f"{path} takes {_shown(own)}; the inputs {_shown(taken)} were given.")
    return plan, taken


def _in_order(own: Sequence[SourceInput], given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Inputs in the order of the file: by its names, or as they stand where none of the names is the file's."""
    names = [each.name for each in own]
    if set(given) == set(names):
        return {name: given[name] for name in names}
    if len(given) != len(names) or set(given) & set(names):
        raise ExportError(f"{path} takes {_shown(own)}; the inputs {list(given)} were given.")
    return dict(given)


def _shown(own: Sequence[SourceInput]) -> str:
    return ", ".join(
        f"{each.name}:{each.dtype.value}[{','.join('?' if d is None else str(d) for d in each.shape)}]"
        for each in own
    )
