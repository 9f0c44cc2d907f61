"""TensorFlow models, exported where TensorFlow is and validated here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters import get_exporter
from paritygate.converter.exporters._tensorflow.harmless import HARMLESS, SAVER, WAITS, is_gradient
from paritygate.converter.exporters._tensorflow.imports import check_age, telling_line
from paritygate.converter.exporters._tensorflow.saved_model import choose_signature
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from support.environments import real_environment, run_in
from support.model_packages import fetch, unpacked

_ZOO = Path(__file__).parents[2] / "support" / "tensorflow_zoo.py"

_PITCH = unpacked("basic-pitch") / "basic_pitch" / "saved_models" / "icassp_2022"

_QUOTIENTS = "floor: {0}[n], cut: {0}[n], modulo: {0}[n], ceil: {0}[n], by_seven: {0}[n], modulo_five: {0}[n]"

_SIGNATURES = {
    "other_signature": "(first: float32[], second: float32[batch, 6]) "
    "-> (large: float32[batch, 3], small: float32[batch, 6])",
    "frozen_at_an_inner_node": "(x: float32[batch, 6]) -> (add: float32[batch, 3])",
    "checkpoint_of_other_values": "(x: float32[batch, 6]) -> (y: float32[batch, 3])",
    "several_inputs_and_nested_outputs": "(numbers: float32[batch, 4], ids: int64[batch], keep: bool[batch]) "
    "-> (z: float32[batch, 4], a_0: float32[batch, 4], a_1_m: float32[batch], a_1_b: int64[batch])",
    "words": "(words: string[n], places: int32[m]) -> (chosen: string[m], twice: string[twice_dim0])",
    "loop_as_long_as_its_input_says": "(x: float32[batch, 3], steps: int32[]) -> (y: float32[batch, 3])",
    "branch_by_value": "(x: float32[batch, 3], up: bool[]) -> (y: float32[batch, 3])",
    "loop_over_rows": "(x: float32[batch, x_dim1, 2]) -> (y: float32[batch, x_dim1, 2])",
    "near_zero": "(x: float32[batch, 3]) -> (log1p: float32[batch, 3], expm1: float32[batch, 3])",
    "casts": "(x: float32[batch, 3]) "
    "-> (cut: int32[batch, 3], floor: int32[batch, 3], ceil: int32[batch, 3], even: int32[batch, 3])",
}

_DIVISIONS = {
    **{
        f"quotients_{dtype}": f"(a: {dtype}[n], b: {dtype}[n]) -> ({_QUOTIENTS.format(dtype)}"
        + (f", rest: {dtype}[n])" if dtype in ("int32", "int64", "float32") else ")")
        for dtype in ("int8", "int16", "int32", "int64", "float32")
    },
    "quotients_of_keras": "(a: int32[batch], b: int32[batch]) "
    "-> (floor: int32[batch], modulo: int32[batch], ceil: int32[batch])",
}

_REFUSED = {
    "no_signature_named": (
        "SourceError",
        r"has the signatures 'plain', 'scaled', and none .* Name one: --signature",
    ),
    "ragged_input": ("ExportError", "total takes a RaggedTensorSpec; served models take dense tensors"),
    "sparse_input": ("ExportError", "dense takes a SparseTensorSpec; served models take dense tensors"),
    "sparse_output": (
        "ExportError",
        "gives a SparseTensor at output deep/0; served models give dense tensors",
    ),
    "text_operator": ("ExportError", "StringUpper has no ONNX form that computes the same on every machine"),
    "unsupported_operator": (
        "UnsupportedOperator",
        r"operator Erfinv in tail/cond/erfinv \(tensorflow_zoo\.py:{line}\) has no ONNX form at opset 18",
    ),
    "unsupported_operator_in_a_file": (
        "UnsupportedOperator",
        "operator Erfinv in tail/cond/erfinv has no ONNX form",
    ),
    "reads_a_file": ("UnsafeSource", "uses the operator ReadFile in node 'ReadFile' of function .*--trust"),
    "calls_numpy": ("UnsafeSource", "uses the operator PyFunc in node 'PyFunc' of function .*--trust"),
    "module_without_call": ("SourceError", "Holder cannot be called.* or pass one of its functions: serve"),
    "wrong_example": ("ExportError", "axis 1 of 'x' has size 4 in the example; the model takes 3"),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of many models, exported in one process of the tensorflow environment."""
    folder = tmp_path_factory.mktemp("tensorflow")
    (folder / "out").mkdir()
    fetch("basic-pitch")
    run_in(real_environment("tensorflow"), _ZOO, folder / "out", folder=folder)
    return folder / "out"


def _report(zoo: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((zoo / "report.json").read_text())[name]
    return report


@pytest.mark.real
@pytest.mark.parametrize("name", [*_SIGNATURES, *_DIVISIONS])
def test_a_model_becomes_a_proven_bundle_with_its_own_names(name: str, zoo: Path) -> None:
    report = _report(zoo, name)
    assert "error" not in report, report["message"]
    bundle = read_bundle(zoo / name)
    assert str(bundle.signature) == {**_SIGNATURES, **_DIVISIONS}[name]
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


@pytest.mark.real
@pytest.mark.parametrize("name", _SIGNATURES)
def test_the_sealed_answers_are_the_models_own(name: str, zoo: Path) -> None:
    assert _report(zoo, name)["farthest"] < 1e-6


@pytest.mark.real
@pytest.mark.parametrize("name", _REFUSED)
def test_what_cannot_be_exported_is_refused_in_one_clear_line(name: str, zoo: Path) -> None:
    report = _report(zoo, name)
    kind, match = _REFUSED[name]
    (line,) = [k for k, text in enumerate(_ZOO.read_text().splitlines(), 1) if "tf.math.erfinv(x)" in text]
    assert report["error"] == kind, report["message"]
    assert re.search(match.replace("{line}", str(line)), report["message"]), report["message"]
    assert "\n" not in report["message"]
    assert not (zoo / name).exists()


@pytest.mark.real
@pytest.mark.parametrize("name", _DIVISIONS)
def test_division_is_that_of_the_source_for_every_pair_of_signs(name: str, zoo: Path) -> None:
    bundle = read_bundle(zoo / name)
    a, b = _pairs(np.dtype(bundle.signature.inputs[0].dtype.value))
    answers = open_session(bundle.model_bytes()).run({"a": a, "b": b})
    for output, expected in _expected(a, b).items():
        if output in answers:
            np.testing.assert_array_equal(answers[output], expected, err_msg=output, strict=True)


def _pairs(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Every pair of telling values; division by zero, and the one quotient that does not fit, left out."""
    if dtype.kind == "f":
        telling = np.array([0.25, 0.3, 1, 2, 2.5, 3, 7, 100, 1e6], dtype)
        telling = np.concatenate([telling, -telling])
    else:
        info = np.iinfo(dtype)
        values = [0, 1, 2, 3, 4, 5, 7, 8, 100, 2**24 + 1, 2**53 + 9, info.max // 3, info.max - 1, info.max]
        values += [-value for value in values] + [info.min]
        telling = np.array(sorted({v for v in values if info.min <= v <= info.max}), dtype)
    a, b = np.repeat(telling, telling.size), np.tile(telling, telling.size)
    lowest = a == np.iinfo(dtype).min if dtype.kind == "i" else np.zeros(a.shape, bool)
    defined = (b != 0) & ~(lowest & (b == -1))
    return a[defined], b[defined]


def _expected(a: Any, b: Any) -> dict[str, Any]:
    """What NumPy gives; integers cut through Python's own, which have no width."""
    if a.dtype.kind == "f":
        return {
            "floor": np.floor(a / b), "cut": np.trunc(a / b), "modulo": np.mod(a, b), "rest": np.fmod(a, b),
            "ceil": -np.floor(-a / b), "by_seven": np.floor(a / a.dtype.type(7)),
            "modulo_five": np.mod(a, a.dtype.type(5)),
        }  # fmt: skip
    rest = np.fmod(a, b)
    return {
        "floor": a // b, "cut": (a - rest) // b, "modulo": a % b, "rest": rest, "ceil": -((-a) // b),
        "by_seven": a // a.dtype.type(7), "modulo_five": a % a.dtype.type(5),
    }  # fmt: skip


@pytest.mark.real
def test_a_network_of_others_answers_as_the_onnx_file_that_they_ship(zoo: Path) -> None:
    """Held to its authors' own conversion on music, not on a constant signal, whose spectrum is all rounding.

    How far onnxruntime is from TensorFlow hangs on the processor: the logarithm of quiet bins makes much of
    rounding. The authors' file, on the same runtime, is the measure of it.
    """
    report = _report(zoo, "basic_pitch")
    assert "error" not in report, report["message"]
    bundle = read_bundle(zoo / "basic_pitch")
    names = ("contour", "note", "onset")
    assert tuple(spec.name for spec in bundle.signature.outputs) == names
    (music,) = [probe for probe in bundle.probes() if probe.case.startswith("sample:")]
    given = music.inputs["input_2"]
    ours = open_session(bundle.model_bytes(), external_data=bundle.external_data()).run(music.inputs)
    shipped = open_session((_PITCH / "nmp.onnx").read_bytes())
    theirs = shipped.run({shipped.signature.inputs[0].name: given})
    by_size = {tuple(array.shape): [] for array in ours.values()}
    for array in theirs.values():
        by_size[tuple(array.shape)].append(array)
    for name in names:
        assert float(np.ptp(music.outputs[name])) > 0.2, "it hears no note, so this shows nothing"
        same = min(by_size[ours[name].shape], key=lambda array: float(np.abs(ours[name] - array).max()))
        np.testing.assert_allclose(ours[name], same, atol=1e-3, err_msg=name)
        rounding = float(np.abs(same - music.outputs[name]).max())
        assert rounding < 1e-2, "their file is no conversion of this network"
        np.testing.assert_allclose(ours[name], music.outputs[name], atol=1.5 * rounding + 1e-4, err_msg=name)


# --- what needs no TensorFlow -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "asked", "chosen"),
    [
        (["serving_default", "other"], None, "serving_default"),
        (["serve", "serving_default"], None, "serving_default"),
        (["serve", "other"], None, "serve"),
        (["only"], None, "only"),
        (["serving_default", "other"], "other", "other"),
    ],
)
def test_the_signature_is_the_named_one_else_a_usual_one_else_the_only_one(
    names: list[str], asked: str | None, chosen: str
) -> None:
    assert choose_signature(names, asked, "net") == chosen


@pytest.mark.parametrize(
    ("names", "asked", "match"),
    [
        ([], None, "net has no signature, so nothing says what it takes"),
        (["b", "a"], None, "net has the signatures 'a', 'b', and none is called serving_default or serve"),
        (
            ["encode", "decode"],
            "encod",
            "no signature 'encod'; it has 'decode', 'encode'. Did you mean 'encode'",
        ),
        (["encode"], "xyz", r"no signature 'xyz'; it has 'encode'\.$"),
    ],
)
def test_an_unclear_signature_is_refused_with_those_that_there_are(
    names: list[str], asked: str | None, match: str
) -> None:
    with pytest.raises(SourceError, match=match):
        choose_signature(names, asked, "net")


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0", "1.15.5"])
def test_an_old_tensorflow_says_how_to_export_all_the_same(version: str) -> None:
    with pytest.raises(
        ExportError, match=rf"TensorFlow {re.escape(version)} is older than 2\.16.*`paritygate export`"
    ):
        check_age(version)


@pytest.mark.parametrize("version", ["2.16.1", "2.21.0", "3.0.0-rc1"])
def test_a_recent_tensorflow_is_taken(version: str) -> None:
    check_age(version)


def test_the_telling_line_of_an_error_in_traced_code_is_the_error() -> None:
    traced = (
        'in user code:\n\n  File "net.py", line 9, in call  *\n    y = x @ w\n\n  ValueError: shapes differ\n'
    )
    assert telling_line(ValueError(traced)) == "ValueError: shapes differ"
    run = "Graph execution error:\n\nDetected at node m\nbad sizes [Op:MatMul]"
    assert telling_line(ValueError(run)) == "bad sizes"


@pytest.mark.parametrize(
    "operator",
    ["ReadFile", "WriteFile", "PyFunc", "EagerPyFunc", "MatchingFiles", "TFRecordReaderV2", "TextLineDataset",
     "InitializeTableFromTextFile", "InitializeTableFromTextFileV2", "Print", "PrintV2", "LoadAndRemapMatrix",
     "SaveV2", "RestoreV2", "IteratorGetNext", "QueueDequeueV2", "RemoteCall", "DebugIdentityV2", "XlaLaunch"],
)  # fmt: skip
def test_no_operator_that_reaches_out_of_the_graph_counts_as_harmless(operator: str) -> None:
    assert operator not in HARMLESS - WAITS
    assert not is_gradient(operator)


def test_the_operators_of_the_saver_are_allowed_for_the_saver_alone() -> None:
    assert not SAVER & HARMLESS


@pytest.mark.parametrize("source", ["m.pt", "m.keras", "module:factory", 3, None, dict, object()])
def test_other_sources_are_not_recognised(source: Any) -> None:
    assert not get_exporter("tensorflow").recognises(source)
