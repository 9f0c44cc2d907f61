"""ONNX files: the reference evaluator vouches for them, within limits, and the file's own words stay."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError, ExportError, SourceError, UnsafeSource
from paritygate.converter.exporters import detect, export_model
from paritygate.converter.exporters._onnx import answering, referee
from paritygate.converter.exporters._onnx.corrections import CORRECTIONS
from paritygate.converter.exporters._onnx.naming import Inputs
from paritygate.converter.exporters._onnx.referee import Limits
from paritygate.converter.exporters._onnx.scanning import scan
from paritygate.converter.exporters._onnx.sparse import store_densely
from paritygate.converter.exporters._onnx.widening import widen
from paritygate.converter.exporters.onnx_file import OnnxFileExporter, _origin
from paritygate.converter.parity.validate import validate_bundle
from support.mutations import mutated

_NET = "net (float[batch, 4] x) => (float[batch, 2] y) { y = MatMul(x, w) }"


def _model(text: str, *, opset: int = 18, ir: int = 8, **weights: Any) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return model


def _net() -> onnx.ModelProto:
    return _model(_NET, w=np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32))


def _export(source: Any, folder: Path, **options: Any) -> Bundle:
    return export_model(source, folder / "bundle", name="net", **options)


def _proven(source: Any, folder: Path, **options: Any) -> Bundle:
    bundle = _export(source, folder, **options)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    return bundle


# --- what stays as in the file ------------------------------------------------------------------------------


def test_file_and_model_in_memory_are_told_apart_from_other_sources(tmp_path: Path) -> None:
    onnx.save(_net(), tmp_path / "net.onnx")
    (tmp_path / "renamed.bin").write_bytes((tmp_path / "net.onnx").read_bytes())
    assert detect(tmp_path / "net.onnx") == "onnx"
    assert detect(tmp_path / "renamed.bin") == "onnx"
    assert detect(_net()) == "onnx"


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("tf2onnx", "1.17.0 None", "; it says that tf2onnx 1.17.0 wrote it. Its"),
        ("tf2onnx", "1.17.0 a1b2c3", "; it says that tf2onnx 1.17.0 a1b2c3 wrote it. Its"),
        ("trainer", "", "; it says that trainer wrote it. Its"),
        ("", "None", "is an ONNX file. Its"),
        ("a\x1b[2J", "x" * 1000, "; it says that a?[2J xxx"),
    ],
)
def test_note_says_who_wrote_the_file_in_words(name: str, version: str, told: str) -> None:
    model = _net()
    model.producer_name, model.producer_version = name, version
    (note,) = _origin(model)
    assert told in note
    assert len(note) < 300


def test_manifest_says_who_answered_and_what_the_file_was(tmp_path: Path) -> None:
    model = _net()
    model.producer_name, model.producer_version = "trainer", "7.1"
    model.metadata_props.add(key="labels", value="cat,dog")
    model.training_info.add()
    onnx.save(model, tmp_path / "net.onnx")
    bundle = _export(tmp_path / "net.onnx", tmp_path)
    manifest = bundle.manifest
    assert json.loads((bundle.path / "assets" / "metadata.json").read_text()) == {"labels": "cat,dog"}
    assert manifest["framework"] == {"name": "onnx.reference", "version": onnx.__version__}
    assert manifest["opsets"] == {"ai.onnx": 18}
    notes = " ".join(manifest["notes"])
    assert "it says that trainer 7.1 wrote it" in notes
    assert "show what the file computes, not what was trained" in notes
    assert "own opset 18 was kept" in notes
    assert "Metadata of the file (labels) lies in assets/metadata.json." in notes
    assert "training_info" in notes


def test_model_in_memory_is_left_as_it_was(tmp_path: Path) -> None:
    model = _net()
    model.ir_version = 3
    before = model.SerializeToString(deterministic=True)
    _export(model, tmp_path)
    assert model.SerializeToString(deterministic=True) == before


_DIMS = {
    "named": ("batch", "time", ("batch", "time")),
    "nameless": ("", "", (None, None)),
    "question-marks": ("?", "?", (None, None)),
    "tf2onnx": ("unk__12", "unk__13", (None, None)),
    "paddle2onnx": ("DynamicDimension.0", "p2o.DynamicDimension.1", (None, None)),
    "torch-equal": ("s77", "s77", ("batch", "batch")),
    "torch-other": ("s77", "s5", ("batch", "x_dim1")),
    "expression": ("2*batch", "2*batch", ("size_2_batch", "size_2_batch")),
    "two-expressions-alike": ("a+b", "a*b", ("a_b", "a_b_")),
    "number-as-text": ("batch", "4", ("batch", 4)),
    "negative": (-1, 0, (None, None)),
}


@pytest.mark.parametrize("case", _DIMS)
def test_sizes_keep_the_names_that_are_names(case: str) -> None:
    first, second, expected = _DIMS[case]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [first, second])
    graph = helper.make_graph([], "g", [value], [value])
    assert Inputs(graph, None).specs[0].shape == expected


def test_input_without_a_rank_takes_that_of_the_declaration_or_the_example(tmp_path: Path) -> None:
    model = _model("net (float[] x) => (float[] y) { y = Abs(x) }")
    declared = _export(model, tmp_path / "a", inputs=["x:float32[batch,3]"])
    assert str(declared.signature) == "(x: float32[batch, 3]) -> (y: float32[batch, 3])"
    shown = _export(model, tmp_path / "b", inputs={"x": np.ones((2, 3), np.float32)})
    assert str(shown.signature) == "(x: float32[batch, x_dim1]) -> (y: float32[batch, x_dim1])"


def test_user_renames_inputs_outputs_and_sizes(tmp_path: Path) -> None:
    bundle = _proven(_net(), tmp_path, input_names=["features"], output_names=["scores"],
                     dynamic={"features": {0: "rows"}})  # fmt: skip
    assert str(bundle.signature) == "(features: float32[rows, 4]) -> (scores: float32[rows, 2])"


def test_weights_that_an_old_file_lists_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    model = _net()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]))
    bundle = _proven(model, tmp_path)
    assert [spec.name for spec in bundle.signature.inputs] == ["x"]
    assert bundle.manifest["ir_version"] == 4


def test_default_value_of_an_input_is_sealed_and_said(tmp_path: Path) -> None:
    model = _net()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]))
    assert any("inputs 'w' default values" in note for note in _export(model, tmp_path).manifest["notes"])


def test_samples_are_answered_and_stay_out_of_the_bundle(tmp_path: Path) -> None:
    sample = {"x": np.full((2, 4), 1.5, np.float32)}
    bundle = _export(_net(), tmp_path, samples=[sample])
    assert bundle.manifest["samples"]["count"] == 1
    assert not any(np.array_equal(probe.inputs["x"], sample["x"]) for probe in bundle.probes())


def test_unsigned_integers_beside_constants_keep_every_digit(tmp_path: Path) -> None:
    """As Python numbers on both sides of 2**63 they became floats."""
    low, high = 1000, 2**63 + 4097
    outputs = "(bool[batch, 6] a, bool[batch, 6] b)"
    text = f"net (uint64[batch, 6] x) => {outputs} {{ a = Less(x, low) b = Less(x, high) }}"
    weights = {"low": np.array(low, np.uint64), "high": np.array(high, np.uint64)}
    bundle = _proven(_model(text, **weights), tmp_path)
    cases = [probe for probe in bundle.probes() if probe.case.startswith("extreme:constants")]
    asked = {int(number) for probe in cases for number in probe.inputs["x"].ravel()}
    assert asked == {low - 1, low, low + 1, high - 1, high, high + 1}


def test_rows_of_a_table_bound_the_indices(tmp_path: Path) -> None:
    model = _model("net (int64[batch] ids) => (float[batch, 3] y) { c = Cast<to=6>(ids)\n y = Gather(table, c) }",
                   table=np.arange(33, dtype=np.float32).reshape(11, 3))  # fmt: skip
    bundle = _proven(model, tmp_path)
    asked = np.concatenate([probe.inputs["ids"].ravel() for probe in bundle.probes()])
    assert asked.min() >= 0
    assert 5 < asked.max() <= 10


# --- every kind of graph ------------------------------------------------------------------------------------


def _half(dtype: int) -> onnx.ModelProto:
    kinds: dict[int, Any] = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}
    word = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}[dtype]
    weights = np.random.default_rng(1).normal(size=(4, 2)).astype(kinds[dtype])
    body = "{ a = Cast<to=1>(x)\n b = Cast<to=1>(w)\n y = MatMul(a, b) }"
    return _model(f"net ({word}[batch, 4] x) => (float[batch, 2] y) {body}", w=weights)


_WHOLE = np.array([-3, 2, 1, -4], np.int8)


def _quantised(kind: str) -> onnx.ModelProto:
    text = "net (float[batch, 4] x) => (float[batch, 4] y) { w = DequantizeLinear(q, s)\n y = Mul(x, w) }"
    model = _model(text, opset=21, ir=10, s=np.float32(0.25))
    types = {"int8": TensorProto.INT8, "int4": TensorProto.INT4, "float8": TensorProto.FLOAT8E4M3FN}
    model.graph.initializer.append(helper.make_tensor("q", types[kind], [4], _WHOLE.tolist()))
    return model


def _sparse() -> onnx.ModelProto:
    model = _model(_NET)
    values = numpy_helper.from_array(np.array([1.5, -2.0, 0.25], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 3, 6], np.int64), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 2]))
    return model


def _branches() -> onnx.ModelProto:
    return _model(
        """net (float[batch, 4] x, bool flag) => (float[batch, 4] y) {
            y = If (flag) <
                then_branch = on () => (float[batch, 4] a) { two = Constant<value = float {2.0}>()
                    a = Mul(x, two) },
                else_branch = off () => (float[batch, 4] b) { b = Neg(x) }
            >
        }"""
    )


_GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    "float16": lambda: _half(TensorProto.FLOAT16),
    "bfloat16": lambda: _half(TensorProto.BFLOAT16),
    "float64": lambda: _model(
        _NET.replace("float", "double"), w=np.random.default_rng(1).normal(size=(4, 2))
    ),
    "int8-weights": lambda: _quantised("int8"),
    "int4-weights": lambda: _quantised("int4"),
    "float8-weights": lambda: _quantised("float8"),
    "sparse-weights": _sparse,
    "branches": _branches,
    "input-handed-on": lambda: _model(
        "net (float[batch] x) => (float[batch] x, float[batch] y) { y = Neg(x) }"
    ),
    "bool-and-integers": lambda: _model(
        "net (int32[batch] a, int32[batch] b) => (bool[batch] y, int32[batch] z) "
        "{ y = Less(a, b)\n z = Mod(a, k) }",
        k=np.array(7, np.int32),
    ),
    "no-inputs": lambda: _model("net () => (float[2] y) { y = Identity(w) }", w=np.ones(2, np.float32)),
}


@pytest.mark.parametrize("case", _GRAPHS)
def test_graph_of_every_kind_is_proven(case: str, tmp_path: Path) -> None:
    _proven(_GRAPHS[case](), tmp_path)


def test_sparse_weight_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    model = _sparse()
    model.graph.sparse_initializer[0].dims[:] = [2**40, 2]
    with pytest.raises(ExportError, match=r"sparse weight 'w' .* would take 8796093022208 bytes"):
        _export(model, tmp_path)


def test_sparse_weights_are_bounded_in_sum(tmp_path: Path) -> None:
    model = _sparse()
    for name in ("second", "third"):
        model.graph.sparse_initializer.append(model.graph.sparse_initializer[0])
        model.graph.sparse_initializer[-1].values.name = name
    for sparse in model.graph.sparse_initializer:
        sparse.dims[:] = [2**26, 2]
    with pytest.raises(ExportError, match=r"sparse weight 'third' .* take 1610612736 bytes"):
        store_densely(model.graph)


def test_sparse_weight_whose_values_lie_in_another_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    monkeypatch.chdir(tmp_path)
    model = _sparse()
    values = model.graph.sparse_initializer[0].values
    values.ClearField("raw_data")
    values.ClearField("float_data")
    values.data_location = onnx.TensorProto.EXTERNAL
    values.external_data.add(key="location", value="secret.bin")
    with pytest.raises(SourceError, match=r"values in another file.*not read"):
        store_densely(model.graph)


def test_sparse_weight_with_foreign_indices_is_refused(tmp_path: Path) -> None:
    model = _sparse()
    model.graph.sparse_initializer[0].dims[:] = [2, 2]
    with pytest.raises(SourceError, match="has indices that do not fit it"):
        _export(model, tmp_path)


def test_double_precision_twin_is_another_computation(tmp_path: Path) -> None:
    probes = list(_export(_net(), tmp_path).probes())
    assert probes
    for probe in probes:
        assert probe.float64 is not None
        weights = numpy_helper.to_array(_net().graph.initializer[0]).astype(np.float64)
        np.testing.assert_allclose(
            probe.float64["y"], probe.inputs["x"].astype(np.float64) @ weights, rtol=1e-14
        )
    assert any(np.any(p.float64["y"] != p.outputs["y"]) for p in probes if p.float64 is not None)


def test_widening_reaches_constants_subgraphs_and_casts() -> None:
    model = _model(
        """net (float[n] x, bool c) => (float[n] y) {
            f = Constant<value_float = 0.1>()
            z = ConstantOfShape(s)
            h = Cast<to = 10>(x)
            g = Cast<to = 1>(h)
            y = If (c) < then_branch = t () => (float[n] a) { a = Mul(g, f) },
                         else_branch = e () => (float[n] b) { b = Add(x, z) } >
        }""",
        s=np.array([1], np.int64),
    )
    widen(model)
    x = np.array([1 / 3, 1e-9])
    evaluator = ReferenceEvaluator(model)
    (then,) = evaluator.run(None, {"x": x, "c": np.array(True)})
    (other,) = evaluator.run(None, {"x": x, "c": np.array(False)})
    assert then.dtype == other.dtype == np.float64
    np.testing.assert_allclose(then, x * np.float64(np.float32(0.1)), rtol=1e-15)
    np.testing.assert_array_equal(other, x)


# --- where the evaluator departs from the standard ----------------------------------------------------------


def _evaluated(text: str, x: Any, *, opset: int, **weights: Any) -> Any:
    return ReferenceEvaluator(_model(text, opset=opset, **weights), new_ops=CORRECTIONS).run(None, {"x": x})[
        0
    ]


def test_softmax_of_old_files_takes_all_later_axes_as_one() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    flat = np.exp(x.reshape(2, 12).astype(np.float64))
    text = "net (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {}(x) }}"
    old = _evaluated(text.format("Softmax"), x, opset=11)
    np.testing.assert_allclose(old.reshape(2, 12), flat / flat.sum(1, keepdims=True), rtol=1e-6)
    logged = _evaluated(text.format("LogSoftmax"), x, opset=11)
    np.testing.assert_allclose(np.exp(logged), old, rtol=1e-5)
    assert _evaluated(text.format("Hardmax"), x, opset=11).sum() == 2
    new = _evaluated(text.format("Softmax"), x, opset=13)
    np.testing.assert_allclose(new.sum(-1), np.ones((2, 3)), rtol=1e-6)
    assert _evaluated(text.format("Hardmax"), x, opset=13).sum() == 6


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6)], ids=str)
def test_global_max_pool_reduces_every_spatial_axis(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    dims = ", ".join(map(str, shape))
    y = _evaluated(f"net (float[{dims}] x) => (float[] y) {{ y = GlobalMaxPool(x) }}", x, opset=18)
    np.testing.assert_array_equal(y.ravel(), x.reshape(6, -1).max(1))
    assert y.shape == (2, 3, *(1,) * (len(shape) - 2))


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15, 18])
def test_batch_normalisation_uses_the_running_statistics(opset: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, size=(4, 3, 5)).astype(np.float32)
    scale, bias, mean, var = (rng.uniform(0.5, 2.0, 3).astype(np.float32) for _ in range(4))
    text = "net (float[4, 3, 5] x) => (float[4, 3, 5] y) { y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }"
    y = _evaluated(text, x, opset=opset, s=scale, b=bias, m=mean, v=var)
    s, b, m, v = (a.reshape(1, 3, 1).astype(np.float64) for a in (scale, bias, mean, var))
    np.testing.assert_allclose(y, s * (x - m) / np.sqrt(v + 0.01) + b, rtol=1e-5, atol=1e-6)


def test_corrections_are_needed_as_long_as_the_evaluator_departs() -> None:
    """Says when a correction can go: the evaluator alone still gives other answers."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    model = _model("net (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax(x) }", opset=11)
    alone = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert not np.allclose(alone.reshape(2, 12).sum(1), 1.0)


# --- files that would harm whoever opens them ---------------------------------------------------------------


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds and one GiB, so that a test need not wait for the real limits."""
    monkeypatch.setattr(
        "paritygate.converter.exporters.onnx_file.limits_for",
        lambda _bytes, *, trust: Limits(2.0, 2**30, trust),
    )


_ENDLESS = """net (float[2] x) => (float[2] y) {
    go = Constant<value = bool {1}>()
    y = Loop(trips, go, x) <body = step (int64 i, bool c, float[2] h) => (bool again, float[2] g) {
        again = Identity(c)
        g = Sin(h)
    }>
}"""

_DOUBLING = """net (float[2] x) => (float[] y) {
    go = Constant<value = bool {1}>()
    y = Loop(trips, go, x) <body = step (int64 i, bool c, float[n] h) => (bool again, float[m] g) {
        again = Identity(c)
        g = Concat<axis = 0>(h, h)
    }>
}"""


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("trust", [False, True])
def test_loop_without_end_is_stopped(trust: bool, tmp_path: Path) -> None:
    model = _model(_ENDLESS, trips=np.array(2**62, np.int64))
    with pytest.raises(
        ExportError, match=r"limits \(2 s an answer and 1\.0 GiB\): stopped after 2 s; "
    ) as caught:
        _export(model, tmp_path, trust=trust)
    assert ("--trust" in str(caught.value)) != trust


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    "model",
    [
        _model("net (float[2] x) => (float[] y) { y = ConstantOfShape(s) }", s=np.array([2**40], np.int64)),
        _model(_DOUBLING, trips=np.array(60, np.int64)),
    ],
    ids=["at-once", "step-by-step"],
)
def test_graph_that_asks_for_terabytes_gets_none(model: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="could not answer within its limits"):
        _export(model, tmp_path)
    assert not (tmp_path / "bundle").exists()


def test_case_that_overruns_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB a row: seven rows fit into the child, seventeen do not."""
    monkeypatch.setattr(
        "paritygate.converter.exporters.onnx_file.limits_for",
        lambda _bytes, *, trust: Limits(60.0, 2**30, trust),
    )
    text = (
        "net (float[batch] x) => (float[batch] y) { s = Shape(x)\n n = Mul(s, k)\n big = ConstantOfShape(n)\n"
        " t = ReduceMax<keepdims = 0>(big)\n y = Add(x, t) }"
    )
    bundle = _export(_model(text, k=np.array([2**24], np.int64)), tmp_path)
    assert [o["case"] for o in bundle.manifest["probes"]["omitted"]] == ["sweep:batch=17"]
    assert "needs more than it was allowed" in bundle.manifest["probes"]["omitted"][0]["reason"]


def _calling(calls: dict[str, list[str]]) -> onnx.ModelProto:
    """A model whose local functions call each other."""
    functions = []
    for name, called in calls.items():
        nodes = [helper.make_node(c, ["a" if k == 0 else f"v{k}"], [f"v{k + 1}"], domain="l" if c in calls else "")
                 for k, c in enumerate(called)]  # fmt: skip
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("l", 1)]
        functions.append(helper.make_function("l", name, ["a"], [f"v{len(called)}"], nodes, imports))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="l")], "g", [x], [y])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("l", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8)


def test_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"local function l\.f0 calls itself"):
        _export(_calling({"f0": ["f1"], "f1": ["Abs", "f0"]}), tmp_path)


def test_functions_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    calls = {f"f{k}": [f"f{k + 1}"] * 10 for k in range(12)} | {"f12": ["Abs"]}
    with pytest.raises(UnsafeSource, match=r"expand into 2\.11e\+12 nodes.*--trust"):
        _export(_calling(calls), tmp_path)


def test_long_chain_of_functions_is_no_harm() -> None:
    calls = {f"f{k}": [f"f{k + 1}"] for k in range(3000)} | {"f3000": ["Abs"]}
    assert scan(_calling(calls), ExportConfig(name="x"))


@pytest.mark.timeout(10)
def test_functions_that_call_many_others_are_counted_at_once() -> None:
    names = [f"f{k}" for k in range(1, 2001)]
    assert scan(_calling({"f0": names} | {name: ["Abs"] * 3 for name in names}), ExportConfig(name="x"))


def test_input_of_absurd_size_is_not_made_up(tmp_path: Path) -> None:
    model = _model("net (float[batch, 2147483647] x) => (float[] y) { y = Abs(x) }")
    with pytest.raises(
        ExportError, match=r"'x' of shape \[2, 2147483647\].*no example of more than 67108864"
    ):
        _export(model, tmp_path)


def test_weights_that_name_the_same_bytes_again_and_again_are_not_copied(tmp_path: Path) -> None:
    model = _net()
    del model.graph.initializer[:]
    (tmp_path / "w.bin").write_bytes(bytes(32))
    for index in range(100):
        tensor = model.graph.initializer.add(name=f"w{index}", data_type=1, dims=[4, 2], data_location=1)
        tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer[0].name = "w"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(
        SourceError, match=r"take 3200 bytes out of files of 32 bytes: they name the same ones"
    ):
        _export(tmp_path / "net.onnx", tmp_path)


@pytest.mark.parametrize(
    "place", [b"graph", b"dim", b"input", b"operator"], ids=lambda place: str(place.decode())
)
def test_text_that_is_no_text_is_named(place: bytes, tmp_path: Path) -> None:
    """protobuf gives such a text as bytes, where everyone expects a `str`."""
    text = "graph (float[dim, 4] input) => (float[dim, 4] y) { y = Operator(input) }"
    data = _model(text).SerializeToString()
    for name in (place, place.capitalize()):
        data = data.replace(name, b"\xff" * len(name))
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises(SourceError, match=r"is damaged: a text \(onnx\.[\w.]+\) in it is no UTF-8"):
        _export(tmp_path / "net.onnx", tmp_path)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Gather", ["w"], ["y"]),
        helper.make_node("Identity", [], ["y"]),
        helper.make_node("Constant", [], [], value=numpy_helper.from_array(np.array(False))),
        helper.make_node("Dropout", ["x", "", ""], ["y"]),
    ],
    ids=["gather-of-nothing", "identity-of-nothing", "constant-for-nobody", "unknown-ratio"],
)
def test_node_that_lacks_its_inputs_or_outputs_is_refused_by_onnx_alone(
    node: onnx.NodeProto, tmp_path: Path
) -> None:
    model = _net()
    model.graph.node.insert(0, node)
    with pytest.raises(SourceError, match="onnx refuses the file"):
        _export(model, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("raw_data", b"123"), ("data_type", 0), ("data_type", 99), ("dims", [2**62])]
)
def test_sparse_weight_that_contradicts_itself_is_refused(field: str, value: Any) -> None:
    graph = _net().graph
    values = numpy_helper.from_array(np.ones(2, np.float32), "s")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "i")
    if field == "dims":
        values.dims[:] = value
    else:
        setattr(values, field, value)
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 2]))
    with pytest.raises(SourceError, match="the sparse weight 's'"):
        store_densely(graph)


def test_child_that_dies_is_reported_with_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referee, "_BOOTSTRAP", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ExportError, match="its process was killed by SIGSEGV"):
        _export(_net(), tmp_path)


def test_child_that_writes_without_end_is_reported_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = (
        "import os, sys; os.ftruncate(2, 2**29); os.lseek(2, 0, os.SEEK_END); sys.exit('\\nits last word')"
    )
    monkeypatch.setattr(referee, "_BOOTSTRAP", flood)
    tracemalloc.start()
    try:
        with pytest.raises(ExportError, match="exit code 1; its last line: its last word"):
            _export(_net(), tmp_path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**27


def test_no_child_is_left_behind(tmp_path: Path) -> None:
    def children() -> set[str]:
        found = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
        )
        return {line for line in found.stdout.splitlines() if "supervise.py" in line}

    _export(_net(), tmp_path / "a")
    with pytest.raises(ConverterError):
        _export(
            _model("net (float[2] x) => (float[3] y) { y = Abs(x) }"), tmp_path / "b", input_names=["a", "b"]
        )
    assert children() == set()


def test_no_runtime_takes_part(tmp_path: Path) -> None:
    """With onnxruntime out of reach in this process; the child imports none, as its list of modules says."""
    onnx.save(_net(), tmp_path / "net.onnx")
    script = textwrap.dedent(
        """
        import sys
        sys.modules["onnxruntime"] = None
        from paritygate.converter.exporters import export_model
        from paritygate.converter.exporters._onnx import answering, referee
        referee._BOOTSTRAP = referee._BOOTSTRAP.replace("main(", "sys.modules['onnxruntime'] = None; main(")
        export_model(sys.argv[1], sys.argv[2], name="net")
        """
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "net.onnx", tmp_path / "bundle"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert validate_bundle(read_bundle(tmp_path / "bundle")).verdict == "pass"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("net (float[2] x) => (float[2] y) { y = Dropout(x) }", {}),
        ("net (float[2] x) => (float[2] y) { y = Dropout(x, r, t) }",
         {"r": np.float32(0.5), "t": np.bool_(False)}),
        ("net (float[2] x) => (float[2] y) { t = Constant<value = bool {0}>()\n y = Dropout(x, r, t) }",
         {"r": np.float32(0.5)}),
    ],
    ids=["default", "initializer", "constant"],
)  # fmt: skip
def test_dropout_that_is_off_is_let_through(text: str, weights: dict[str, Any], tmp_path: Path) -> None:
    _proven(_model(text, **weights), tmp_path)


def test_random_numbers_are_found_in_functions_and_branches() -> None:
    model = _branches()
    branch = model.graph.node[0].attribute[0].g
    branch.node.append(helper.make_node("RandomUniformLike", ["x"], ["noise"]))
    with pytest.raises(ExportError, match=r"draws random numbers: RandomUniformLike \(node 'noise'\)"):
        scan(model, ExportConfig(name="x"))


# --- files that others wrote --------------------------------------------------------------------------------


def _light() -> list[Path]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("light_*.onnx"))


class _InProcess(referee.Referee):
    """Answers in this process, so that thousands of files can be asked."""

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.inside = getattr(self, "inside", None) or answering._Referee(self._folder)
        return dict(json.loads(json.dumps(answering._told(self.inside, question))))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what the evaluator computes with broken weights
@pytest.mark.parametrize("seed", range(4))
def test_damage_of_any_kind_ends_in_an_error_of_ours(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export ends, or says in its own words why not; that the child ends is shown by other tests."""
    monkeypatch.setattr("paritygate.converter.exporters.onnx_file.Referee", _InProcess)
    sparse = _sparse_net()
    models = [_net(), sparse, _model(_IF, w=np.ones((4, 2), np.float32)), _calling({"f0": ["Abs", "Neg"]})]
    random = np.random.default_rng(seed)
    path = tmp_path / "net.onnx"
    for _ in range(200):
        path.write_bytes(mutated(models[random.integers(len(models))], random))
        with contextlib.suppress(ConverterError), tempfile.TemporaryDirectory() as folder:
            OnnxFileExporter().export(path, Path(folder) / "bundle", ExportConfig(name="net"))


_IF = """net (float[batch, 4] x, bool b) => (float[batch, 2] y) {
    y = If (b) <
        then_branch = yes () => (float[batch, 2] p) { p = MatMul(x, w) },
        else_branch = no () => (float[batch, 2] q) { n = MatMul(x, w) q = Neg(n) }
    >
}"""


def _sparse_net() -> onnx.ModelProto:
    model = _model(_NET)
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 2]))
    return model


@pytest.mark.soak
@pytest.mark.parametrize("path", _light(), ids=lambda path: path.stem)
def test_light_model_gives_the_output_that_onnx_ships(path: Path, tmp_path: Path) -> None:
    """The feeds are those of onnx's own runner (onnx/backend/test/runner): a ramp from 0 to 1."""
    with OnnxFileExporter().open_source(path, ExportConfig(name="light")) as model:
        feeds = {}
        for spec in model.inputs:
            shape = [int(dim or 1) for dim in spec.shape]
            feeds[spec.name] = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
        (answer,) = model.run(feeds).values()
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    np.testing.assert_allclose(answer, numpy_helper.to_array(expected), rtol=2e-3, atol=1e-7)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # cases that overflow and divide by zero on purpose
def test_operators_of_the_standard_are_answered_as_the_standard_says() -> None:
    """Every operator test of onnx: scanned, named, evaluated; nothing fails in an unknown way."""
    from onnx.backend.test.case.node import collect_testcases

    wrong = []
    for case in collect_testcases(None):
        model = case.model
        try:
            scan(model, ExportConfig(name="x"))
            Inputs(model.graph, None)
        except ConverterError:
            continue
        given = [
            numpy_helper.to_array(t) if isinstance(t, onnx.TensorProto) else t for t in case.data_sets[0][0]
        ]
        feeds = dict(zip([value.name for value in model.graph.input], given, strict=True))
        try:
            answers = ReferenceEvaluator(model, new_ops=CORRECTIONS).run(None, feeds)
        except (NotImplementedError, ImportError, RuntimeError):
            continue
        for answer, proto in zip(answers, case.data_sets[0][1], strict=True):
            expected = (
                numpy_helper.to_array(proto) if isinstance(proto, onnx.TensorProto) else np.asarray(proto)
            )
            if expected.dtype.kind in "OU" or np.asarray(answer).shape != expected.shape:
                continue
            wide = np.asarray(answer).astype(np.float64), expected.astype(np.float64)
            if not np.allclose(*wide, rtol=1e-3, atol=1e-5, equal_nan=True):
                wrong.append(case.name)
    assert wrong == []


@pytest.mark.parametrize("kind", ["forest", "histogram"])
def test_file_of_trees_in_double_is_proven(kind: str, tmp_path: Path) -> None:
    from sklearn.datasets import load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    kinds = {
        "forest": lambda: RandomForestClassifier(3, random_state=0),
        "histogram": lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
    }
    model = kinds[kind]().fit(*load_iris(return_X_y=True))
    first = export_model(model, tmp_path / "first", name="trees")
    assert "NaN was not asked" not in " ".join(first.manifest["notes"])  # both take it for a missing value
    _proven(tmp_path / "first" / "model.onnx", tmp_path)
