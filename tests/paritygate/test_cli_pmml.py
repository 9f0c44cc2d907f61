"""`paritygate pmml`: one line on success, one line on refusal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paritygate.cli import main
from paritygate.converter.exporters import export_model


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def _bundle(folder: Path) -> Path:
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LinearRegression().fit(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), [1.0, 2.0, 3.0])
    pytest.importorskip("skl2onnx")
    return export_model(model, folder / "bundle", name="m").path


def test_bundle_is_written_as_pmml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, target = _bundle(tmp_path), tmp_path / "model.pmml"
    capsys.readouterr()
    assert _run("pmml", str(bundle), "-o", str(target), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"pmml": str(target), "size_bytes": target.stat().st_size}
    assert target.read_text().startswith("<?xml")


def test_second_writing_is_refused_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, target = _bundle(tmp_path), tmp_path / "model.pmml"
    assert _run("pmml", str(bundle), "-o", str(target)) == 0
    capsys.readouterr()
    assert _run("pmml", str(bundle), "-o", str(target)) == 1
    said = capsys.readouterr().err
    assert "exists already" in said
    assert said.count("\n") == 1
