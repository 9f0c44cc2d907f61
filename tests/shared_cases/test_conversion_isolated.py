"""The handed conversion cases of frameworks that are not installed here, through their own environments."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.environments.specs import find_spec
from paritygate.converter.errors import ConverterError
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from support.environments import real_environment, run_in
from support.shared import shared_dir

_EXPORTER = {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "sklearn": "sklearn",
    "scikit-learn": "sklearn",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
}
_HANDED = Path(__file__).parents[1] / "support" / "handed_case.py"


def _cases() -> list[Path]:
    """The files whose framework runs in an environment; their heads import no framework."""
    try:
        files = sorted(shared_dir("cases", "conversion").glob("case_*.py"))
    except pytest.skip.Exception:
        return []
    return [path for path in files if runpy.run_path(str(path))["CASE"]["framework"] in _EXPORTER]


def test_the_handed_cases_are_there() -> None:
    shared_dir("cases", "conversion")
    assert _cases(), "no handed case of TensorFlow, Keras or scikit-learn was found"


@pytest.mark.real
@pytest.mark.parametrize("path", _cases(), ids=lambda path: path.stem)
def test_case_ends_in_one_of_its_right_ways(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = runpy.run_path(str(path))
    exporter = _EXPORTER[case["CASE"]["framework"]]
    expect: dict[str, Any] = case["expect"]
    environment = real_environment(find_spec(exporter).name)
    run_in(environment, _HANDED, path, tmp_path, folder=tmp_path)
    described = np.load(tmp_path / "described.npz", allow_pickle=False)
    monkeypatch.chdir(tmp_path)
    bundle, refusal = _export(described, exporter, tmp_path)
    if bundle is None:
        assert "reject" in expect["outcome"], f"it had to convert, and: {refusal}"
        assert any(word in refusal for word in expect.get("names_any", [""]))
        return
    certificate = validate_bundle(bundle)
    if certificate.verdict == "pass":
        _assert_samples_agree(described, bundle, expect)
    else:
        assert "mismatch_reported" in expect["outcome"], certificate.reason
        assert any(name in (certificate.reason or "") for name in expect["report_must_name"])


def _export(described: Any, exporter: str, folder: Path) -> tuple[Bundle | None, str]:
    """The bundle, or None and the text with which the export was refused."""
    try:
        export_source(
            "handed:build",
            folder / "bundle",
            ExportConfig(
                name="case",
                dynamic=_dynamic(described),
                output_names=tuple(str(name) for name in described["output_names"]),
            ),
            framework=exporter,
            isolated=True,
        )
    except ConverterError as error:
        return None, str(error)
    return read_bundle(folder / "bundle"), ""


def _dynamic(described: Any) -> dict[str, dict[int, str]]:
    dynamic: dict[str, dict[int, str]] = {str(name): {} for name in described["input_names"]}
    for name, axis, dim in described["open"]:
        dynamic[str(name)][int(axis)] = str(dim)
    return dynamic


def _assert_samples_agree(described: Any, bundle: Bundle, expect: dict[str, Any]) -> None:
    session = open_session(bundle.model_bytes(), external_data=bundle.external_data())
    for index in range(int(described["num_samples"])):
        answers = session.run({str(n): described[f"{index}/in/{n}"] for n in described["input_names"]})
        for name in map(str, described["output_names"]):
            expected = described[f"{index}/out/{name}"]
            assert answers[name].dtype == expected.dtype
            np.testing.assert_allclose(answers[name], expected, rtol=expect["rtol"], atol=expect["atol"])
