"""A saved program that is open for export: `.json` of paddle 3 or `.pdmodel` of paddle 2, with `.pdiparams`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._paddle import programs
from paritygate.converter.exporters._paddle.conversion import check_opset, convert_program
from paritygate.converter.exporters._paddle.modes import static_mode
from paritygate.converter.exporters._paddle.process import paddle2onnx
from paritygate.converter.exporters._paddle.writing import write_model
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import bind_example
from paritygate.converter.types import Array, DType, Feeds

PROGRAM_SUFFIX, OLD_PROGRAM_SUFFIX, PARAMETERS_SUFFIX = ".json", ".pdmodel", ".pdiparams"


class SavedProgram(SourceModel):
    """A program run by paddle's own executor."""

    dims_are_declared = True

    def __init__(self, path: Path, folder: Path, inputs: Any, weights: Weights, *, trust: bool) -> None:
        self.weights = weights
        self._folder = folder
        self._old = path.suffix != PROGRAM_SUFFIX
        parameters = path.with_suffix(PARAMETERS_SUFFIX)
        self._prefix = folder / "program"
        own = self._prefix.with_suffix(path.suffix)
        own.symlink_to(path.absolute())
        operators, weighted = _old_operators(path) if self._old else _operators(path)
        programs.refuse_code(operators, path, trust=trust)
        if weighted and not parameters.exists():
            raise SourceError(f"{path} needs its weights, and there is no file {parameters} beside it.")
        self._parameters = _link(parameters, self._prefix.with_suffix(PARAMETERS_SUFFIX))
        self.notes: list[str] = []
        with static_mode(old=self._old):
            self._load(path)
        if self._old:
            self.notes.append(
                "The program is of paddle 2 (.pdmodel); paddle translated it for the conversion."
            )
        names = [spec.name for spec in self.inputs]
        self.example = bind_example(inputs, names) if inputs is not None else None

    def _load(self, path: Path) -> None:
        import paddle

        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        try:
            with paddle.static.scope_guard(self._scope):
                self._program, feeds, self._fetched = paddle.static.load_inference_model(
                    str(self._prefix), self._executor
                )
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise SourceError(
                f"{path} and its parameters cannot be read as a program: {(lines or ['no reason'])[-1][:300]} "
                "Save the model again with paddle.jit.save."
            ) from error
        self.inputs = self._described(feeds, path)

    def _described(self, feeds: Sequence[str], path: Path) -> tuple[SourceInput, ...]:
        if not self._old:
            return programs.program_inputs(programs.read_document(path))
        block = self._program.global_block()
        return tuple(_from_variable(block.var(name)) for name in feeds)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """What paddle's executor answers."""
        import paddle

        with static_mode(old=self._old), paddle.static.scope_guard(self._scope):
            answers = self._executor.run(
                self._program,
                feed={name: np.ascontiguousarray(a).reshape(a.shape) for name, a in feeds.items()},
                fetch_list=self._fetched,
            )
        if len(answers) == 1:
            return {"output": np.asarray(answers[0])}
        return {f"output_{k}": np.asarray(answer) for k, answer in enumerate(answers)}

    def convert(self, request: ConversionRequest) -> None:
        """Convert the program; one of paddle 2 is translated into today's form first."""
        check_opset(request.opset)
        program, parameters = self._prefix.with_suffix(PROGRAM_SUFFIX), self._parameters
        with paddle2onnx() as converter:
            if self._old:
                program, parameters = self._translated()
            converted = convert_program(converter, program, parameters, request.opset)
        write_model(converted, request)

    def _translated(self) -> tuple[Path, Path | None]:
        import paddle

        target = self._folder / "translated"
        with static_mode(old=True), paddle.static.scope_guard(self._scope):
            program = paddle.pir.translate_to_pir(self._program.desc)
            with contextlib.ExitStack() as stack:
                stack.enter_context(paddle.pir_utils.IrGuard())
                feeds, fetched = _ends(program)
                paddle.static.save_inference_model(
                    str(target), feeds, fetched, self._executor, program=program
                )
        parameters = target.with_suffix(PARAMETERS_SUFFIX)
        return target.with_suffix(PROGRAM_SUFFIX), parameters if parameters.exists() else None


def _ends(program: Any) -> tuple[list[Any], list[Any]]:
    feeds, fetched = [], []
    for operation in program.global_block().ops:
        if operation.name() in ("pd_op.feed", "pd_op.data"):
            feeds.extend(operation.results())
        if operation.name() in ("pd_op.fetch", "builtin.shadow_output"):
            fetched.extend(operation.operands_source())
    return feeds, fetched


def _operators(path: Path) -> tuple[list[str], bool]:
    """The operators of a program, and whether it has weights."""
    document = programs.read_document(path)
    return [entry.name for entry in programs.operations(document)], programs.has_parameters(document)


def _old_operators(path: Path) -> tuple[list[str], bool]:
    """The same of a program of paddle 2, from its protobuf form."""
    from paddle.base.proto import framework_pb2

    try:
        described = framework_pb2.ProgramDesc.FromString(path.read_bytes())
        names = [operator.type for block in described.blocks for operator in block.ops]
        ends = {"feed", "fetch"}
        weighted = any(v.persistable and v.name not in ends for block in described.blocks for v in block.vars)
    except Exception as error:
        raise SourceError(
            f"{path} is no PaddlePaddle program: cut short, or something else. Save it again with paddle.jit.save."
        ) from error
    if "fetch" not in names:
        raise SourceError(f"{path} holds no PaddlePaddle program with outputs; save it with paddle.jit.save.")
    return names, weighted


def _link(parameters: Path, place: Path) -> Path | None:
    """The parameters under a name of ours: paddle would read a pickle that lies beside (`.pdiparams.info`)."""
    if not parameters.exists():
        return None
    place.symlink_to(parameters.absolute())
    return place


def _from_variable(variable: Any) -> SourceInput:
    shape = tuple(int(size) if int(size) > 0 else None for size in variable.shape)
    return SourceInput(str(variable.name), DType(str(variable.dtype).rpartition(".")[2]), shape)
