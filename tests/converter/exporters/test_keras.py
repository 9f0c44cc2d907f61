"""Keras models, exported where Keras is (in the tensorflow environment) and through that environment from here."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.errors import (
    ExportError,
    SourceError,
    SourceNotFound,
    UnsafeSource,
)
from paritygate.converter.exporters import export_model, get_exporter
from paritygate.converter.exporters._keras.carriers import code_carriers
from paritygate.converter.exporters._keras.loading import load_weights, said_by
from paritygate.converter.exporters._keras.twin import widened
from paritygate.converter.exporters._tensorflow.structure import name_outputs
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in

_ZOO = Path(__file__).parents[2] / "support" / "keras_zoo.py"

_SIGNATURES = {
    "dict_outputs": "(numbers: float32[batch, 4], ids: int32[batch, 3]) "
    "-> (probs: float32[batch, 2], aaa: float32[batch, 1])",
    "dict_inputs": "(ids: int32[batch, 3], numbers: float32[batch, 4]) "
    "-> (scores: float32[batch, 2], joined: float32[batch, 16])",
    "sequential": "(image: float32[batch, 12, 12, 1]) -> (probs: float32[batch, 10])",
    "trained_sequential": "(image: float32[batch, 12, 12, 1]) -> (probs: float32[batch, 10])",
    "built_by_its_first_call": "(x: float32[batch, 3]) -> (last: float32[batch, 2])",
    "gelu": "(x: float32[batch, 5]) -> (y: float32[batch, 8])",
    "recurrent": "(sequence: float32[batch, sequence_dim1, 6]) -> (tags: float32[batch, 2])",
    "attention": "(tokens: float32[batch, 6, 8]) -> (out: float32[batch, 6, 3])",
    "mixed_precision": "(x: float32[batch, 4]) -> (y: float32[batch, 2])",
    "input_handed_through": "(x: float32[batch, 4]) "
    "-> (x_2: float32[batch, 4], y: float32[batch, 2], x_3: float32[batch, 4])",
    "bytes_in": "(pixels: uint8[batch, 4]) -> (y: float32[batch, 2])",
    "side_file": "(x: float32[batch, 64]) -> (y: float32[batch, 64])",
    "subclassed": "(left: float32[batch, 3], right: float32[batch, 3]) "
    "-> (total: float32[batch, 2], both_0: float32[batch, 3], both_1: float32[batch, 3])",
    "subclassed_by_position": "(left: float32[batch, 3], right: float32[batch, 3]) "
    "-> (total: float32[batch, 2], both_0: float32[batch, 3], both_1: float32[batch, 3])",
    "legacy_keras": "(x: float32[batch, 6]) -> (y: float32[batch, 5])",
    "under_a_strategy": "(x: float32[batch, 6]) -> (y: float32[batch, 5])",
    "module": "(x: float32[batch, 3]) -> (y: float32[batch, 2])",
}

_REFUSED = {
    "never_called": ("ExportError", "has no weights yet: it was never called"),
    "unsupported_operator": ("UnsupportedOperator", "TensorFlow operator Erfinv in sequential"),
    "opset_too_new": ("ExportError", "opset 20 cannot be written for TensorFlow models: tf2onnx ends at 18"),
    "silent_about_inputs": ("ExportError", "Subclassed does not say what it takes. Give an example"),
    "keeps_state": ("ExportError", "the model changes a variable when it is called"),
    "ragged_output": ("ExportError", "gives a RaggedTensor"),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of many models, exported in one process of the tensorflow environment, and saved model files."""
    folder = tmp_path_factory.mktemp("keras")
    (folder / "out").mkdir()
    run_in(real_environment("tensorflow"), _ZOO, folder / "out", folder=folder)
    return folder / "out"


def _report(zoo: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((zoo / "report.json").read_text())[name]
    return report


@pytest.mark.real
@pytest.mark.parametrize("name", _SIGNATURES)
def test_a_model_becomes_a_proven_bundle_with_its_own_names_and_answers(name: str, zoo: Path) -> None:
    report = _report(zoo, name)
    assert "error" not in report, report["message"]
    assert report["detected"] == ("tensorflow" if name == "module" else "keras")
    bundle = read_bundle(zoo / name)
    assert str(bundle.signature) == _SIGNATURES[name]
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert report["farthest"] < 1e-5, "the sealed answers are not the model's own"
    has_float64 = [probe.float64 is not None for probe in bundle.probes()]
    assert all(has_float64)


@pytest.mark.real
@pytest.mark.parametrize("name", [*_SIGNATURES, *_REFUSED])
def test_the_model_comes_back_untouched(name: str, zoo: Path) -> None:
    assert _report(zoo, name)["untouched"]


@pytest.mark.real
@pytest.mark.parametrize("name", _REFUSED)
def test_what_cannot_be_exported_is_refused_in_one_clear_line(name: str, zoo: Path) -> None:
    report = _report(zoo, name)
    kind, text = _REFUSED[name]
    assert report["error"] == kind
    assert text in report["message"]
    assert "\n" not in report["message"]
    assert not (zoo / name).exists()


@pytest.mark.real
def test_an_unsupported_operator_names_the_layer_that_uses_it(zoo: Path) -> None:
    assert _report(zoo, "unsupported_operator")["module"].split("/")[1].startswith("odd")


@pytest.mark.real
def test_weights_changed_after_conversion_fail_parity(zoo: Path) -> None:
    certificate = validate_bundle(read_bundle(zoo / "spoiled"))
    assert certificate.verdict == "fail"
    assert "output 'y'" in (certificate.reason or "")


@pytest.mark.real
def test_a_side_file_is_sealed_beside_the_model(zoo: Path) -> None:
    files = read_bundle(zoo / "side_file").manifest["files"]
    assert files["model.onnx.data"]["size_bytes"] >= 2 * 64 * 64 * 4


@dataclass(frozen=True)
class FromHere:
    """A saved model, exported from here through the environment.

    Attributes:
        bundle: What became of it.
        events: What was said meanwhile.
    """

    bundle: Bundle
    events: list[str]


@pytest.fixture(scope="module")
def whole(zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> FromHere:
    events: list[str] = []
    bundle = export_source(
        str(zoo / "files" / "digits.keras"),
        tmp_path_factory.mktemp("whole") / "digits",
        ExportConfig(name="digits"),
        on_event=lambda e: events.append(e.message),
    )
    return FromHere(bundle, events)


@pytest.mark.real
def test_a_saved_model_is_exported_from_here_through_the_environment(whole: FromHere) -> None:
    bundle = whole.bundle
    assert str(bundle.signature) == _SIGNATURES["sequential"]
    assert bundle.manifest["framework"] == {"name": "keras", "version": "3.15.1+tensorflow.2.21.0"}
    assert bundle.manifest["opsets"]["ai.onnx"] == 18
    assert validate_bundle(bundle).verdict == "pass"
    assert any("exporting in its own environment" in event for event in whole.events)


@pytest.mark.real
def test_weights_go_into_the_network_that_a_factory_builds(
    whole: FromHere, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(zoo / "files" / "digits.weights.h5", "digits.weights.h5")
    (tmp_path / "digits_net.py").write_text(
        f"import sys; sys.path.insert(0, {str(_ZOO.parents[1])!r})\n"
        "from support.keras_zoo import sequential\n\n"
        "def build():\n    return sequential()[0]\n"
    )
    config = ExportConfig(name="digits", factory="digits_net:build")
    bundle = export_source("digits.weights.h5", tmp_path / "own", config, framework="keras")
    assert bundle.manifest["weights"]["selection"] == "weights of the file in digits_net:build"
    for one, other in zip(bundle.probes(), whole.bundle.probes(), strict=True):
        np.testing.assert_array_equal(one.outputs["probs"], other.outputs["probs"])


@pytest.mark.real
def test_a_planted_payload_runs_only_where_it_is_trusted(zoo: Path, tmp_path: Path) -> None:
    planted, marker = str(zoo / "files" / "planted.keras"), zoo / "files" / "payload-ran"
    assert not marker.exists()
    with pytest.raises(UnsafeSource, match=r"code in layer 'planted' \(a lambda\).*--trust") as refusal:
        export_source(planted, tmp_path / "out", ExportConfig(name="planted"))
    assert "\n" not in str(refusal.value)
    assert not marker.exists()
    assert not (tmp_path / "out").exists()
    bundle = export_source(planted, tmp_path / "trusted", ExportConfig(name="planted", trust=True))
    assert marker.exists(), "the payload does nothing, so this test shows nothing"
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.real
def test_weights_inside_a_keras_file_neither_fill_the_memory_nor_lie_elsewhere(
    zoo: Path, tmp_path: Path
) -> None:
    sound = next((zoo / "files").glob("[!p]*.keras"))
    run_in(
        real_environment("tensorflow"), _ZOO.with_name("keras_spoilt.py"), sound, tmp_path, folder=tmp_path
    )
    for name, kind, said in (
        ("huge", SourceError, "its datasets take 10995"),
        ("linked", UnsafeSource, "takes '//more' from another file"),
    ):
        with pytest.raises(kind, match=rf"model\.weights\.h5 in .*{name}\.keras.*{said}"):
            export_source(str(tmp_path / f"{name}.keras"), tmp_path / "out", ExportConfig(name=name))


# --- what is decided before Keras is imported: these run without it ------------------------------------------


def _archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return path


def _refuse(path: Path, match: str, kind: type[Exception] = SourceError) -> None:
    with pytest.raises(kind, match=match) as refusal:
        export_model(path, path.parent / "bundle", name="m")
    assert "\n" not in str(refusal.value)
    assert not (path.parent / "bundle").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    _refuse(tmp_path / "absent.keras", r"there is no file .*absent\.keras", SourceNotFound)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is not a whole Keras file .it is empty"),
        (b"hello", "it is no zip archive"),
        (b"PK\x03\x04 and then the disk was full", "a zip archive that is cut off or damaged"),
        (b"\x89HDF\r\n\x1a\n and more", r"it is HDF5: rename it to \.h5"),
    ],
    ids=["empty", "foreign", "half-written", "renamed-hdf5"],
)
def test_a_file_that_is_no_keras_file_says_what_it_is(content: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(content)
    _refuse(path, match)


def test_a_half_written_archive_is_refused(tmp_path: Path) -> None:
    path = _archive(
        tmp_path / "m.keras", metadata__json=b"{}", config__json=b"{}", model__weights__h5=b"x" * 9999
    )
    path.write_bytes(path.read_bytes()[:-300])
    _refuse(path, "cut off or damaged")


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    path = _archive(
        tmp_path / "m.keras", metadata__json=b"{}", config__json=b"{}", model__weights__h5=b"x" * 9999
    )
    content = bytearray(path.read_bytes())
    content[content.index(b"xxxx") + 50] ^= 1
    path.write_bytes(content)
    _refuse(path, r"the checksum of model\.weights\.h5 is wrong")


def test_another_zip_archive_is_refused(tmp_path: Path) -> None:
    _refuse(_archive(tmp_path / "m.keras", readme__txt=b"hi"), r"without metadata\.json, config\.json")


def test_a_configuration_that_is_no_json_is_refused(tmp_path: Path) -> None:
    for config in (b"{", b"[" * 200_000):
        path = _archive(
            tmp_path / "m.keras", metadata__json=b"{}", config__json=config, model__weights__h5=b""
        )
        _refuse(path, "its model configuration is no JSON")


def test_code_is_found_wherever_it_is_nested(tmp_path: Path) -> None:
    code = {"class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None, "closure": None}}
    inner = {"class_name": "Lambda", "config": {"name": "deep", "function": code}}
    nested = {"class_name": "Functional", "config": {"name": "outer", "layers": [{"class_name": "Functional",
              "config": {"name": "middle", "layers": [inner]}}]}}  # fmt: skip
    path = _archive(
        tmp_path / "m.keras",
        metadata__json=b"{}",
        config__json=json.dumps(nested).encode(),
        model__weights__h5=b"",
    )
    _refuse(path, "carries Python code in layer 'deep'", UnsafeSource)


def _old_lambda(**config: Any) -> dict[str, Any]:
    return {"class_name": "Lambda", "config": {"name": "old", **config}}


_CODE = {"class_name": "__lambda__", "config": {}}


@pytest.mark.parametrize(
    "config",
    [
        _old_lambda(function=["4wEA", None, None], function_type="lambda"),
        _old_lambda(function=["4wEA", None, None]),
        _old_lambda(output_shape=["4wEA"], output_shape_type="lambda"),
        {"class_name": "TimeDistributed", "config": {"name": "wrap", "layer": _old_lambda(function=_CODE)}},
    ],
    ids=["keras-2", "keras-2-without-type", "output-shape", "wrapped"],
)
def test_every_form_of_marshalled_code_is_recognised(config: dict[str, Any]) -> None:
    assert list(dict.fromkeys(code_carriers(config))) == ["old"]


def test_a_lambda_layer_with_a_registered_function_carries_no_code() -> None:
    function = {"class_name": "function", "config": "relu", "registered_name": "function"}
    assert not list(
        code_carriers({"class_name": "Lambda", "config": {"name": "named", "function": function}})
    )


def test_without_keras_here_the_error_says_how_to_export(tmp_path: Path) -> None:
    path = _archive(tmp_path / "m.keras", metadata__json=b"{}", config__json=b"{}", model__weights__h5=b"")
    _refuse(path, r"needs keras, which cannot be imported here.*paritygate export", ExportError)


@pytest.mark.parametrize("source", ["m.keras", Path("m.h5"), "deep/m.hdf5"])
def test_keras_files_are_recognised(source: str | Path) -> None:
    assert get_exporter("keras").recognises(source)


@pytest.mark.parametrize("source", ["m.pt", "module:factory", 3, None, dict, object()])
def test_other_sources_are_not(source: Any) -> None:
    assert not get_exporter("keras").recognises(source)


def test_outputs_are_named_by_their_path_or_their_place() -> None:
    def named(
        *paths: tuple[str | int, ...], positional: tuple[str, ...] = (), taken: tuple[str, ...] = ()
    ) -> list[str]:
        return [name for name, _ in name_outputs([(path, None) for path in paths], positional, taken)]

    assert named(()) == ["output"]
    assert named((0,), (1,)) == ["output_0", "output_1"]
    assert named((0,), (1,), positional=("a", "a")) == ["a", "a_2"]
    assert named(("logits",), ("states", 0), ("states", 1)) == ["logits", "states_0", "states_1"]
    assert named((), positional=("x",), taken=("x",)) == ["x_2"]


def test_a_configuration_iswidened_in_every_form_of_dtype() -> None:
    config = {
        "dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}},
        "layers": [{"config": {"dtype": "float32", "name": "float32"}}, {"config": {"dtype": "int32"}}],
    }
    assert widened(config) == {
        "dtype": {"class_name": "DTypePolicy", "config": {"name": "float64"}},
        "layers": [{"config": {"dtype": "float64", "name": "float32"}}, {"config": {"dtype": "int32"}}],
    }


# --- what Keras says of weights that do not fit -------------------------------------------------------------

_VALUES = "\n".join(["[[0.1 0.2 0.3]"] + [" [0.1 0.2 0.3]"] * 200)
_FIRST = "A total of {} objects could not be loaded. Example error message for object {}:\n\n"
_LAST = "\n\nList of objects that could not be loaded:\n[<Dense name=dense, built=True>]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            _FIRST.format(2, "<Dense name=dense, built=True>")
            + "The shape of the target variable and the shape of the target value in `variable.assign(value)` "
            "must match. variable.shape=(4, 9), Received: value.shape=(4, 8). Target variable: <Variable "
            f"path=net/dense/kernel, shape=(4, 9), dtype=float32, value={_VALUES}>" + _LAST,
            "2 layers, such as Dense 'dense': net/dense/kernel is [4, 8] in the file, the model has [4, 9]",
        ),
        (
            _FIRST.format(1, "<Conv1D name=conv1d, built=True>")
            + "Layer 'conv1d' expected 2 variables, but received 0 variables during loading. Expected: ['kernel']"
            + _LAST,
            "Conv1D 'conv1d': Layer 'conv1d' expected 2 variables, but received 0 variables during loading. "
            "Expected: ['kernel']",
        ),
        (
            "<class 'Functional'> could not be deserialized properly.\n\nconfig={}.\n\nException encountered: "
            "Error when deserializing class 'L'.\n\nException encountered: L.__init__() missing 1 argument: 'k'",
            "L.__init__() missing 1 argument: 'k'",
        ),
        ("Layer count mismatch when loading weights.\nMore.", "Layer count mismatch when loading weights."),
        ("", "ValueError"),
    ],
    ids=["shapes", "variables", "nested", "plain", "nothing"],
)
def test_telling_part_of_a_loading_error_is_one_line(text: str, said: str) -> None:
    assert said_by(ValueError(text)) == said


class _Net:
    """Looks like a Keras model, and loads nothing."""

    def __init__(self, said: str) -> None:
        self._said = said

    def load_weights(self, _path: Path) -> None:
        raise ValueError(self._said)


def _keras_model(said: str) -> Any:
    return type("Model", (_Net,), {"__module__": "keras.models"})(said)


def test_weights_of_another_model_say_what_differs_and_what_to_do() -> None:
    text = _FIRST.format(1, "<Dense name=dense, built=True>") + "Layer 'dense' expected 2 variables." + _LAST
    said = (
        r"weights in m\.weights\.h5 do not fit the model that nets:build builds: Dense 'dense': Layer 'dense' "
        r"expected 2 variables\. Use the factory and the settings that they were trained with\.$"
    )
    with pytest.raises(SourceError, match=said):
        load_weights(_keras_model(text), Path("m.weights.h5"), "nets:build")


def test_model_without_weights_is_told_to_be_called_first() -> None:
    said = r"nets:build builds has no weights yet.*call it once on an example"
    with pytest.raises(SourceError, match=said):
        load_weights(
            _keras_model("You are loading weights into a model that has not yet been built."),
            Path("m.h5"),
            "nets:build",
        )
