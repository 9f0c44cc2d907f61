"""Small files that stand for large models: refused by a bound, told without the framework."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._keras.files import refuse_unpacked
from paritygate.converter.exporters._mindspore import translate
from paritygate.converter.exporters._mindspore.emitter import Emitter
from paritygate.converter.exporters._mindspore.mindir import Graph, Node, Program
from paritygate.converter.exporters._mindspore.values import Abstract, Tensor
from paritygate.converter.exporters._tensorflow.scan import Graph as TensorFlowGraph
from paritygate.converter.exporters._tensorflow.scan import refuse_huge


def _constant(*sizes: int, carried: int = 8) -> Any:
    shape = SimpleNamespace(dim=[SimpleNamespace(size=size) for size in sizes])
    tensor = SimpleNamespace(tensor_shape=shape, ByteSize=lambda: carried)
    return SimpleNamespace(op="Const", name="c", attr={"value": SimpleNamespace(tensor=tensor)})


def test_constants_of_tensorflow_are_bounded_in_sum() -> None:
    bomb = TensorFlowGraph({f"c{k}": _constant(2**20, 64) for k in range(5)}, {})
    with pytest.raises(
        SourceError, match=r"shape \[1048576, 64\].*335544320 elements that it does not spell out"
    ):
        refuse_huge(bomb, "x.pb")
    with pytest.raises(SourceError, match="of function 'f'"):
        refuse_huge(TensorFlowGraph({}, {"f": [_constant(2**40)]}), "x.pb")


def test_constants_that_a_file_carries_may_be_any_number() -> None:
    carried = {f"c{k}": _constant(2**20, 64, carried=2**28) for k in range(100)}
    refuse_huge(TensorFlowGraph(carried, {}), "x.pb")


def test_datasets_that_were_never_written_are_refused() -> None:
    refuse_unpacked("net.h5", 2000, 2**30)
    with pytest.raises(SourceError, match=r"net\.h5 has 2000 bytes, and its datasets take 1099511627776"):
        refuse_unpacked("net.h5", 2000, 2**40)


def _program(depth: int, calls: int) -> Program:
    """Graphs each of which calls the next one several times, and hands its input on at the end."""
    functions = {}
    for level in range(depth):
        names = ["x"] + [f"v{level}_{k}" for k in range(calls)]
        nodes = {
            out: Node(out, f"g{level + 1}", False, (given,), None, {}, "") for given, out in pairwise(names)
        }
        functions[f"g{level}"] = Graph(f"g{level}", (("x", None),), (names[-1],), nodes, {})
    functions[f"g{depth}"] = Graph(f"g{depth}", (("x", None),), ("x",), {}, {})
    return Program(functions["g0"], functions)


def _translated(program: Program) -> list[Any]:
    def unsupported(_node: Node, reason: str) -> ExportError:
        return ExportError(reason)

    tensor = Tensor("x", Abstract(np.dtype("float32"), (2,)))
    return translate.Translator(program, Emitter(["x"]), unsupported).outputs([tensor], {})


def test_graphs_of_mindspore_that_call_each_other_are_written_out() -> None:
    assert [value.name for value in _translated(_program(3, 3))] == ["x"]


def test_graphs_of_mindspore_that_double_at_each_level_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "MAX_TRANSLATED", 10_000)
    with pytest.raises(ExportError, match="more than 10,000 nodes once its calls are written out"):
        _translated(_program(60, 2))


def test_graphs_of_mindspore_that_lie_too_deep_are_refused() -> None:
    with pytest.raises(ExportError, match="calls more than 128 graphs one inside the other"):
        _translated(_program(2_000, 1))
