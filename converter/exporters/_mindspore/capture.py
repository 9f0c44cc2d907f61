"""The MindIR program of a cell: compiled by MindSpore, handed over before any weight is written."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms

from paritygate.converter.exporters._mindspore.calls import CallPlan, Output, wrapper_source
from paritygate.converter.exporters._mindspore.values import Shape

_MODULE = "_paritygate_flat_cell"


class _Taken(Exception):
    """Ends MindSpore's own export once the program is in our hands."""


@contextlib.contextmanager
def flat_cell(cell: Any, plan: CallPlan, outputs: Sequence[Output]) -> Iterator[Any]:
    """The cell inside one with flat inputs and outputs, whose source lies in a file meanwhile."""
    with tempfile.TemporaryDirectory(prefix="paritygate-mindspore-") as folder:
        path = Path(folder) / f"{_MODULE}.py"
        path.write_text(wrapper_source(plan, outputs), "utf-8")
        spec = importlib.util.spec_from_file_location(_MODULE, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_MODULE] = module
        try:
            spec.loader.exec_module(module)
            wrapped = module.Flat(cell)
            wrapped.set_train(False)
            yield wrapped
        finally:
            sys.modules.pop(_MODULE, None)


def capture(cell: Any, inputs: Sequence[tuple[Any, Shape]]) -> Any:
    """The MindIR message of a cell, without the values of its weights.

    Args:
        cell: A flat cell.
        inputs: MindSpore's type and the sizes of each input, None for an open one.

    Raises:
        Exception: Whatever MindSpore's compiler says.
    """
    from mindspore.train.mind_ir_pb2 import ModelProto

    taken = ModelProto()

    def take(model: Any) -> None:
        taken.CopyFrom(model)
        raise _Taken

    examples = [
        ms.Tensor(shape=list(shape), dtype=dtype) if None in shape else _full(dtype, shape)
        for dtype, shape in inputs
    ]
    with tempfile.TemporaryDirectory(prefix="paritygate-mindspore-") as folder, contextlib.suppress(_Taken):
        ms.export(
            cell, *examples, file_name=str(Path(folder) / "cell"), file_format="MINDIR", custom_func=take
        )
    return taken


def _full(dtype: Any, shape: Shape) -> Any:
    return ms.ops.zeros(tuple(int(size or 0) for size in shape), dtype)
