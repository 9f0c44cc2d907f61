"""The child: onnx's reference evaluator answers questions about one prepared model.

Started by `referee.py` with a limit on its memory. It reads one JSON object a line from standard input, takes the
feeds from files, writes the answers to files, and says how it went on the channel. It never imports a runtime.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun, RuntimeContextError

from paritygate.converter._tensors import decode_tensor, encode_tensor
from paritygate.converter.exporters._onnx.corrections import CORRECTIONS
from paritygate.converter.exporters._onnx.reading import PREPARED_FILE
from paritygate.converter.exporters._onnx.widening import widen
from paritygate.converter.processes import CHANNEL_VARIABLE
from paritygate.converter.types import Array

MAX_ANSWER_BYTES = 2**31 - 1
"""All outputs of one question: the asking process has to hold them, and no protobuf message is larger."""


def main(folder: Path) -> None:
    """Answer questions until standard input ends."""
    with open(int(os.environ.pop(CHANNEL_VARIABLE)), "w", encoding="utf-8") as channel:
        referee = _Referee(folder)
        for line in sys.stdin:
            print(json.dumps(_told(referee, json.loads(line))), file=channel, flush=True)


def _told(referee: _Referee, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return referee.answer(question)
    except MissingOperators as error:
        return {"kind": "missing", "said": error.operators}
    except (MemoryError, RecursionError) as error:
        return {"kind": "exhausted", "said": _first_line(error)}
    except Exception as error:  # noqa: BLE001 - whatever the evaluator says of these inputs is told
        return {"kind": "refused", "said": _first_line(error)}


def _first_line(error: BaseException) -> str:
    """The innermost cause says more than what operators wrap around it."""
    while error.__cause__ is not None and str(error.__cause__).strip():
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400]}" if lines else type(error).__name__


class MissingOperators(Exception):
    """Operators that the reference evaluator does not have."""

    def __init__(self, operators: list[tuple[str, str]]) -> None:
        super().__init__(str(operators))
        self.operators = operators


class _Missing(OpRun):
    """Stands in for an operator without an implementation, so that all of them can be named at once."""

    def _run(self, *_inputs: Any, **_attributes: Any) -> Any:
        raise AssertionError("a model with missing operators is never run")


class _Evaluator(ReferenceEvaluator):
    """The reference evaluator, noting which operators it lacks. Subgraphs are opened with this class too."""

    missing: list[tuple[str, str]] = []  # noqa: RUF012 - subgraphs are made by the class and share it

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        try:
            return super()._load_impl(node, input_types)
        except RuntimeContextError:
            raise
        except Exception as error:
            if isinstance(error, TypeError | MemoryError):
                raise
            spelled = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            self.missing.append((spelled, node.name or ", ".join(node.output)))
            return _Missing


class _Referee:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._evaluators: dict[bool, _Evaluator] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if question.get("check"):
            self._check()
            self._evaluator(wide=False)
            return {"kind": "answered"}
        evaluator = self._evaluator(wide=question["wide"])
        feeds = {name: self._read(f"in_{k}.pb") for k, name in enumerate(question["names"])}
        if question["wide"]:
            feeds = {name: _double(array) for name, array in feeds.items()}
        answers = [np.asarray(value) for value in evaluator.run(None, feeds)]
        taken = sum(array.nbytes for array in answers)
        if taken > MAX_ANSWER_BYTES:
            raise MemoryError(f"one answer takes {taken} bytes")
        for index, (name, array) in enumerate(zip(evaluator.output_names, answers, strict=True)):
            path = self._folder / f"out_{index}.pb"
            path.write_bytes(encode_tensor(array, name))
        return {"kind": "answered"}

    def _check(self) -> None:
        """Let onnx's checker look; an output may come without a shape, which the probes find out later."""
        model = onnx.load(self._folder / PREPARED_FILE, load_external_data=False)
        for value in model.graph.output:
            value.type.tensor_type.shape.SetInParent()
        path = self._folder / "checked.onnx"
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(path))
        path.unlink()

    def _read(self, name: str) -> Array:
        return decode_tensor((self._folder / name).read_bytes())

    def _evaluator(self, *, wide: bool) -> _Evaluator:
        if wide not in self._evaluators:
            model = onnx.load(self._folder / PREPARED_FILE)
            if wide:
                widen(model)
            _Evaluator.missing = []
            evaluator = _Evaluator(model, new_ops=CORRECTIONS)
            if _Evaluator.missing:
                raise MissingOperators(_Evaluator.missing)
            self._evaluators[wide] = evaluator
        return self._evaluators[wide]


def _double(array: Array) -> Array:
    narrow = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if narrow else array
