"""The handed conversion cases for PyTorch: faults that people met elsewhere, each with what is right."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.errors import BundleCorrupt
from paritygate.converter.parity.validate import validate_bundle
from support.conversion import (
    assert_declares,
    assert_parity,
    assert_samples_agree,
    export_conversion,
    load_case,
)

torch = pytest.importorskip("torch")


def test_module_left_in_training_is_exported_in_evaluation_and_comes_back_training(tmp_path: Path) -> None:
    case = load_case("case_02")
    before = copy.deepcopy(case.model.state_dict())
    bundle = export_conversion(case, tmp_path / "bundle")
    assert_parity(case, bundle)
    assert all(part.training for part in case.model.modules())
    for name, value in case.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_gru_keeps_batch_and_length_open(tmp_path: Path) -> None:
    case = load_case("case_03")
    bundle = export_conversion(case, tmp_path / "bundle")
    assert bundle.demoted == ()
    assert_declares(case, bundle)
    assert_parity(case, bundle)


def test_antialiased_resize_agrees_within_the_cases_tolerance(tmp_path: Path) -> None:
    case = load_case("case_08")
    assert_parity(case, export_conversion(case, tmp_path / "bundle"))


def test_int64_stays_int64_or_the_report_names_the_output_that_left_it(tmp_path: Path) -> None:
    case = load_case("case_10")
    bundle = export_conversion(case, tmp_path / "bundle", samples=case.samples, include_samples=True)
    assert_declares(case, bundle)
    certificate = validate_bundle(bundle)
    if certificate.verdict == "pass":
        assert_parity(case, bundle)
    else:
        assert any(word in str(certificate.reason) for word in case.expect["report_must_name"])


def test_bfloat16_model_declares_bfloat16_and_works(tmp_path: Path) -> None:
    case = load_case("case_15")
    bundle = export_conversion(case, tmp_path / "bundle")
    assert [spec.dtype.value for spec in bundle.signature.outputs] == ["bfloat16"]
    assert any("bfloat16" in note for note in bundle.manifest["notes"])
    assert_parity(case, bundle)


def test_weights_in_side_files_stay_apart_and_survive_a_move(tmp_path: Path) -> None:
    case = load_case("case_16")
    staging = tmp_path / "staging"
    staging.mkdir()
    for name in ("A", "B"):
        bundle = export_conversion(case, staging / name, case.model[name], external_data_threshold_bytes=0)
        assert bundle.external_data()
    moved = shutil.move(staging, tmp_path / "elsewhere")
    for name in ("A", "B"):
        bundle = read_bundle(Path(moved) / name)
        assert validate_bundle(bundle).verdict == "pass"
        assert_samples_agree(
            case, bundle, lambda feed, which=name: case.module.reference(case.model, feed, which)
        )


@pytest.mark.parametrize("fault", ["missing", "shorter"])
def test_side_file_that_is_missing_or_short_is_refused(fault: str, tmp_path: Path) -> None:
    case = load_case("case_16")
    bundle = export_conversion(case, tmp_path / "bundle", case.model["A"], external_data_threshold_bytes=0)
    data = bundle.path / "model.onnx.data"
    if fault == "missing":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(BundleCorrupt, match=r"model\.onnx\.data"):
        read_bundle(bundle.path)
