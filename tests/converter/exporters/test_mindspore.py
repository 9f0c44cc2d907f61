"""MindSpore: programs translated without MindSpore, every family of operators, hostile and damaged files."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters._mindspore import explain
from paritygate.converter.exporters._mindspore.graph import build_model
from paritygate.converter.exporters._mindspore.mindir import Graph, Node, Program
from paritygate.converter.exporters._mindspore.operators import OPERATORS
from paritygate.converter.exporters._mindspore.scanning import RUNS_CODE
from paritygate.converter.exporters._mindspore.scopes import Scope
from paritygate.converter.exporters._mindspore.values import Abstract
from paritygate.converter.exporters._mindspore.writing import save_model
from paritygate.converter.exporters.base import ConversionRequest
from paritygate.converter.types import DType, TensorSpec
from support.environments import real_environment, run_in

_SUPPORT = Path(__file__).parents[2] / "support"
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

# --- programs, without MindSpore ----------------------------------------------------------------------------


def _node(output: str, called: str, *inputs: str, dtype: str = "int64", primitive: bool = True) -> Node:
    abstract = Abstract(np.dtype(dtype), (None,))
    return Node(output, called, primitive, inputs, abstract, {}, f"Default/head-Head/{called}-op0")


def _program(*nodes: Node, inputs: str = "xy", functions: Mapping[str, Graph] | None = None) -> Program:
    """Of some nodes, the last one being what it gives."""
    given = tuple((name, None) for name in inputs)
    main = Graph("main", given, (nodes[-1].output,), {node.output: node for node in nodes}, {})
    return Program(main, dict(functions or {}))


def _answer(program: Program, **feeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    specs = [TensorSpec(name, DType.from_numpy(array.dtype), ("n",)) for name, array in feeds.items()]
    model, refusing = build_model(program, specs, ["answer"], {}, 18, explain.unsupported)
    assert refusing == []
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: np.ndarray[Any, Any] = session.run(None, feeds)[0]
    return answer


def _truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


@pytest.mark.parametrize(
    ("primitive", "exact"),
    [
        ("FloorDiv", lambda x, y: x // y),
        ("FloorMod", lambda x, y: x % y),
        ("Div", _truncated),
        ("FmodTensor", lambda x, y: int(math.copysign(1, x)) * (abs(x) % abs(y))),
    ],
)
def test_whole_numbers_are_divided_exactly_at_the_edges_of_int64(
    primitive: str, exact: Callable[[int, int], int]
) -> None:
    """Against Python's integers: MindSpore itself is wrong there, as it divides in float64."""
    numbers = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        7,
        -7,
        2**53 + 1,
        -(2**53) - 1,
        2**62,
        _HIGHEST,
        _HIGHEST - 1,
        _LOWEST + 1,
        _LOWEST,
    ]
    pairs = [(x, y) for x in numbers for y in numbers if y != 0 and (x, y) != (_LOWEST, -1)]
    x, y = np.array(pairs, np.int64).T.copy()
    answer = _answer(_program(_node("z", primitive, "x", "y")), x=x, y=y)
    assert answer.tolist() == [exact(*pair) for pair in pairs]


def test_lowest_number_over_minus_one_does_not_end_the_process() -> None:
    x, y = np.array([_LOWEST], np.int64), np.array([-1], np.int64)
    for primitive in ("FloorDiv", "FloorMod", "Div", "FmodTensor"):
        assert _answer(_program(_node("z", primitive, "x", "y")), x=x, y=y).shape == (1,)


def test_long_programs_are_translated_without_recursion() -> None:
    nodes = [_node("v0", "Add", "x", "y")]
    nodes += [_node(f"v{k}", "Add" if k % 2 else "Sub", f"v{k - 1}", "y") for k in range(1, 3000)]
    ones = np.ones(1, np.int64)
    assert _answer(_program(*nodes), x=ones, y=ones).tolist() == [3]


def test_operator_without_form_is_named_with_its_layer() -> None:
    with pytest.raises(
        UnsupportedOperator, match=r"operator Lgamma, used in head \(Head\), has no ONNX form"
    ) as caught:
        _answer(_program(_node("z", "Lgamma", "x", dtype="float32"), inputs="x"), x=np.ones(1, np.float32))
    assert (caught.value.operator, caught.value.module) == ("Lgamma", "head")


def test_loop_over_values_is_refused() -> None:
    body = Graph("body", (("v", None),), ("r",), {"r": _node("r", "body", "v", primitive=False)}, {})
    program = _program(_node("z", "body", "x", primitive=False), inputs="x", functions={"body": body})
    with pytest.raises(UnsupportedOperator, match="loop whose number of rounds"):
        _answer(program, x=np.ones(1, np.int64))


def test_program_that_uses_what_nothing_gives_is_refused() -> None:
    with pytest.raises(ExportError, match="uses 'nobody', which nothing gives"):
        _answer(_program(_node("z", "Add", "x", "nobody"), inputs="x"), x=np.ones(1, np.int64))


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("Default/source-Net/conv-Conv2d/Conv2D-op0", "conv", "conv (Conv2d)"),
        ("Default/source-Net/Add-op3", "", "construct of Net"),
        ("Default/body-CellList/0-Layer/up-Dense/MatMul-op1", "body.0.up", "body.0.up (Dense)"),
        ("Default/ReLU-op0", "", "the model"),
        ("", "", "the model"),
    ],
)
def test_place_of_a_node_is_told_as_people_read_it(text: str, path: str, shown: str) -> None:
    scope = Scope.parse(text)
    assert (scope.path, str(scope)) == (path, shown)


def test_nothing_that_runs_code_or_writes_is_translated() -> None:
    assert RUNS_CODE & OPERATORS.keys() == {"raise"}


def test_missing_mindspore_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "net.mindir").write_bytes(b"\n\x050.1.0")
    with pytest.raises(
        ExportError, match=r"needs mindspore, which is not installed here; `paritygate export`"
    ):
        export_model(tmp_path / "net.mindir", tmp_path / "bundle", name="net", framework="mindspore")


def _weights() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "wide": rng.normal(size=(300, 500)).astype(np.float32),
        "turned": rng.normal(size=(40, 30)).T,
        "small": np.arange(3, dtype=np.int64),
        "one": np.array(True),
        "brain": rng.normal(size=700).astype(ml_dtypes.bfloat16),
        "none": np.zeros((0, 4), np.float32),
        "unused": np.ones(5, np.float32),
    }


@pytest.mark.parametrize("beside", [False, True], ids=["in-one-file", "beside"])
def test_weights_written_past_the_message_are_what_onnx_reads(beside: bool, tmp_path: Path) -> None:
    weights = _weights()
    constant = np.arange(2000, dtype=np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", [name], [f"{name}_out"]) for name in (*weights, "c")[:-2]]
        + [onnx.helper.make_node("Identity", ["c"], ["c_out"])],
        "g", [], [onnx.ValueInfoProto(name="c_out")], [onnx.numpy_helper.from_array(constant, "c")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    path = tmp_path / "model.onnx"
    save_model(model, weights, ConversionRequest(path, (), {}, 18, 0 if beside else 1 << 30))
    assert (tmp_path / "model.onnx.data").exists() == beside
    if beside:
        assert path.stat().st_size < 4000
    read = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    wanted = {"c": constant, **{name: array for name, array in weights.items() if name != "unused"}}
    assert read.keys() == wanted.keys()
    for name, array in wanted.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


# --- every family of operators, against MindSpore -----------------------------------------------------------


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mindspore")
    run_in(real_environment("mindspore"), _SUPPORT / "mindspore_zoo.py", folder / "zoo", folder=folder)
    return folder / "zoo"


@pytest.mark.real
@pytest.mark.xdist_group("mindspore")
def test_every_family_of_operators_computes_what_mindspore_does(zoo: Path) -> None:
    report = json.loads((zoo / "report.json").read_text())
    wrong = {name: said for name, said in report.items() if isinstance(said, str)}
    for name in report.keys() - wrong.keys():
        if difference := _difference(zoo, name):
            wrong[name] = difference
    assert wrong == {}
    # What MindSpore's own exporter has no form for, or a wrong one.
    used = {primitive for said in report.values() for primitive in said}
    assert {"Erf", "Elu", "HSwish", "GroupNorm", "ArgMaxWithValue"} - used == set()
    assert len(used & OPERATORS.keys()) > 120


def _difference(zoo: Path, name: str) -> str:
    session = ort.InferenceSession(str(zoo / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    with np.load(zoo / f"{name}.npz") as stored:
        for size in ("small", "large"):
            given = {key.split("/", 2)[2]: stored[key] for key in stored if key.startswith(f"{size}/in/")}
            own = {key.split("/", 2)[2]: stored[key] for key in stored if key.startswith(f"{size}/out/")}
            if sorted(own) != sorted(outputs):
                return f"outputs are {outputs}, the source gives {sorted(own)}"
            answers: Sequence[Any] = session.run(outputs, given)
            for output, answer in zip(outputs, answers, strict=True):
                if said := _unlike(answer, own[output]):
                    return f"{output} at the {size} sizes: {said}"
    return ""


def _unlike(answer: Any, own: Any) -> str:
    if (answer.dtype, answer.shape) != (own.dtype, own.shape):
        return f"{answer.dtype}{answer.shape}, the source gives {own.dtype}{own.shape}"
    if own.dtype.kind != "f":
        return (
            "" if np.array_equal(answer, own) else f"{answer.ravel()[:6]}, the source gives {own.ravel()[:6]}"
        )
    limit = 2e-3 if own.dtype == np.float16 else 1e-4
    if np.allclose(answer.astype(float), own.astype(float), rtol=limit, atol=limit, equal_nan=True):
        return ""
    return f"off by {np.nanmax(np.abs(answer.astype(float) - own.astype(float))):.3g}"


# --- hostile and damaged files ------------------------------------------------------------------------------

_REFUSED = {
    "circle": ("SourceError", "hangs on itself. Export the cell anew"),
    "twice": ("SourceError", "twice. Export the cell anew"),
    "nothing_gives": ("SourceError", "MindSpore cannot load"),
    "too_large": (
        "SourceError",
        "holds 432 bytes, but its sizes [1000000, 1000000] of float32 need 4000000000000",
    ),
    "python_class": ("UnsafeSource", "holds 'kind', which names Python code"),
    "python_text": ("UnsafeSource", "uses PyExecute, which runs code or writes files"),
    "writes_files": ("UnsafeSource", "uses TensorDump, which runs code or writes files"),
    "unknown_operator": ("UnsupportedOperator", "operator Frobnicate, used in 2 (ReLU), has no ONNX form"),
    "cut": ("SourceError", "damaged, half-written or encrypted"),
    "noise": ("SourceError", "damaged, half-written or encrypted"),
    "empty": ("SourceError", "damaged, half-written or encrypted"),
    "of_onnx": ("SourceError", "is an ONNX model"),
    "elsewhere": ("UnsafeSource", "in '../outside/data_0', outside its own folder"),
    "pickled.ckpt": ("SourceError", "is a PyTorch checkpoint, and the mindspore exporter does not read that"),
    "cut.ckpt": ("SourceError", "damaged, half-written or encrypted"),
    "lying.ckpt": ("SourceError", "'0.weight' holds 192 bytes, but its sizes [1000000, 1000000]"),
    "table.ckpt": ("SourceError", "hash table (MapParameter)"),
    "empty.ckpt": ("SourceError", "holds no tensor"),
    "cut.safetensors": ("SourceError", "cannot be read as safetensors"),
    "long_head.safetensors": ("SourceError", "damaged, half-written"),
    "pickled.safetensors": ("SourceError", "is a pickle, and the mindspore exporter does not read that"),
    "renamed.ckpt": (
        "SourceError",
        "missing 0.weight (nearest: 0.weigth), 3.weight (nearest: 3.weigth); unexpected",
    ),
}

_LIBRARY = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>

__attribute__((constructor)) static void loaded(void) {
  FILE *file = fopen("RAN", "w");
  if (file) fclose(file);
}

int Same(int count, void **data, int *ranks, int64_t **sizes, const char **types, void *stream, void *extra) {
  int64_t elements = 1;
  for (int axis = 0; axis < ranks[0]; ++axis) elements *= sizes[0][axis];
  memcpy(data[1], data[0], sizeof(float) * elements);
  return 0;
}
"""
"""What MindSpore's `Custom` calls; loading it alone runs code."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("files")
    compiler = shutil.which("cc")
    library = []
    if compiler is not None:
        (folder / "same.c").write_text(_LIBRARY.replace("RAN", str(folder / "out" / "library_ran")))
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / "same.so"), str(folder / "same.c")]
        subprocess.run(command, check=True, timeout=60)
        library = [folder / "same.so"]
    script = _SUPPORT / "mindspore_files.py"
    run_in(real_environment("mindspore"), script, folder / "out", *library, folder=folder)
    report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return report


@pytest.mark.real
@pytest.mark.xdist_group("mindspore")
@pytest.mark.parametrize("name", _REFUSED)
def test_hostile_and_damaged_files_get_one_line(name: str, files: dict[str, Any]) -> None:
    kind, text = _REFUSED[name]
    assert files["said"][name], "it was opened"
    kinds, said = files["said"][name]
    assert text in said
    assert kind in kinds.split()
    assert "\n" not in said


@pytest.mark.real
@pytest.mark.xdist_group("mindspore")
def test_every_hostile_file_is_looked_at(files: dict[str, Any]) -> None:
    assert files["said"].keys() - {"library"} == _REFUSED.keys()
    assert files["pickle_runs"], "the payload in the pickled checkpoints is none"


@pytest.mark.real
@pytest.mark.xdist_group("mindspore")
def test_library_that_a_mindir_names_is_not_loaded(files: dict[str, Any]) -> None:
    if "library" not in files["said"]:
        pytest.skip("no C compiler here to make a shared library with")
    kinds, said = files["said"]["library"]
    assert "UnsafeSource" in kinds.split()
    assert "uses Custom, which runs code" in said
    assert files["library_runs"], "MindSpore's own loader did not run it: the payload is none"
