"""Python code that decides by a size: the sizes that it compares with are asked, so that a lost branch shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class OneSize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 37 else x + 1


class Above(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if 2 * x.shape[0] > 100 else x + 1


class FarAbove(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 50_000_000 else x + 1


class SameEverywhere(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x if x.shape[0] == 37 else 2 * x


@pytest.mark.parametrize(("model", "size"), [(OneSize(), 37), (Above(), 51)])
def test_a_branch_at_a_size_that_no_sweep_asks_fails(
    model: torch.nn.Module, size: int, tmp_path: Path
) -> None:
    certificate = validate_bundle(export_model(model, tmp_path / "b", name="net", inputs=torch.randn(4, 3)))
    assert certificate.verdict == "fail"
    wrong = {figure.case for figure in certificate.figures if figure.verdict == "fail"}
    assert f"sweep:batch={size}" in wrong
    assert not wrong & {"base", f"sweep:batch={size - 1}"}


def test_a_branch_that_computes_the_same_is_proven_at_its_size(tmp_path: Path) -> None:
    bundle = export_model(SameEverywhere(), tmp_path / "b", name="net", inputs=torch.randn(4, 3))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass"
    assert {36, 37, 38} <= set(certificate.proven_ranges["batch"])


def test_a_size_too_large_to_ask_is_noted(tmp_path: Path) -> None:
    bundle = export_model(FarAbove(), tmp_path / "b", name="net", inputs=torch.randn(4, 3))
    (note,) = [note for note in bundle.manifest["notes"] if "compares the size" in note]
    assert "'batch' with 49999999, 50000000, 50000001" in note
    assert validate_bundle(bundle).verdict == "pass"


def test_ordinary_networks_get_no_more_sizes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    bundle = export_model(model, tmp_path / "b", name="net", inputs=torch.randn(2, 1, 8, 8))
    sizes = {probe.dims["batch"] for probe in bundle.probes()}
    assert sizes == {1, 2, 3, 7, 17}
