"""Open dimensions that were asked for: kept, noted with the reason, or refused with what to add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters.binding import synthetic_sizes, trace_sizes
from paritygate.converter.types import DType, TensorSpec

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Joined(torch.nn.Module):
    def forward(self, ids: torch.Tensor, feats: torch.Tensor) -> torch.Tensor:
        return torch.cat([ids.float()[:, :3], feats], dim=1)


class Added(torch.nn.Module):
    """One row is broadcast over the other input, so a tie shows at larger sizes only."""

    def forward(self, ids: torch.Tensor, feats: torch.Tensor) -> torch.Tensor:
        return ids.float()[:, :3] + feats


def test_ten_open_sizes_are_all_unlike() -> None:
    specs = tuple(
        TensorSpec(f"x{k}", DType.FLOAT32, (f"first{k}", f"second{k}", f"third{k}")) for k in range(10)
    )
    sizes = synthetic_sizes(specs)
    assert len(sizes) == len(set(sizes.values())) == 30
    traced = trace_sizes(dict.fromkeys(sizes, 1))
    assert len(set(traced.values())) == 30


class ThreeJoined(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b, c], dim=1)


class OnSize(torch.nn.Module):
    """Fixed by its own code: the other input of that size has nothing to do with it."""

    def forward(self, ids: torch.Tensor, feats: torch.Tensor) -> torch.Tensor:
        return (ids * 2 if ids.shape[0] == 3 else ids).sum() + feats


def example(rows: int) -> dict[str, Any]:
    return {"ids": torch.ones(rows, 5, dtype=torch.int64), "feats": torch.ones(rows, 3)}


def export(model: Any, folder: Path, inputs: Any, **options: Any) -> Bundle:
    return export_model(model, folder / "bundle", name="net", inputs=inputs, **options)


@pytest.mark.parametrize("rows", [1, 2], ids=lambda rows: f"{rows} rows")
def test_dim_tied_to_an_axis_without_name_is_refused_with_what_to_add(rows: int, tmp_path: Path) -> None:
    said = (
        rf"'batch' of ids axis 0 was asked to be open, but the model ties it to feats axis 0, which is fixed at "
        rf"{rows}; add --dynamic feats:0=batch \(in Python, dynamic=\{{'feats': \{{0: 'batch'\}}\}}\)"
    )
    with pytest.raises(ExportError, match=said):
        export(Joined(), tmp_path, example(rows), dynamic={"ids": {0: "batch"}})
    assert not (tmp_path / "bundle").exists()


def test_what_the_error_advises_is_the_cure(tmp_path: Path) -> None:
    axes = {"ids": {0: "batch"}, "feats": {0: "batch"}}
    bundle = export(Joined(), tmp_path, example(2), dynamic=axes)
    assert [spec.shape[0] for spec in bundle.signature.inputs] == ["batch", "batch"]
    assert bundle.demoted == ()


def test_tie_that_broadcasting_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="ties it to feats axis 0"):
        export(Added(), tmp_path, example(2), dynamic={"ids": {0: "batch"}})


def test_dims_of_two_names_that_are_one_size_are_refused(tmp_path: Path) -> None:
    axes = {"ids": {0: "batch"}, "feats": {0: "rows"}}
    with pytest.raises(ExportError, match="ties it to feats axis 0, which is called 'rows'"):
        export(Joined(), tmp_path, example(2), dynamic=axes)


def test_every_tied_axis_is_named(tmp_path: Path) -> None:
    inputs = {name: torch.ones(2, 3) for name in "abc"}
    with pytest.raises(ExportError, match="add --dynamic b:0=batch --dynamic c:0=batch "):
        export(ThreeJoined(), tmp_path, inputs, dynamic={"a": {0: "batch"}})


def test_tie_of_declared_inputs_says_where_to_write_the_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="feats axis 0, which is fixed at 2; write 'batch' there too"):
        export(Joined(), tmp_path, ["ids:int64[batch,5]", "feats:float32[2,3]"])


def test_dim_that_the_model_alone_fixes_is_demoted_and_noted(tmp_path: Path) -> None:
    bundle = export(OnSize(), tmp_path, example(3), dynamic={"ids": {0: "batch"}})
    assert [(entry.dim, entry.size) for entry in bundle.demoted] == [("batch", 3)]
    (note,) = (note for note in bundle.manifest["notes"] if "was to stay open" in note)
    assert note.startswith(
        "'batch' (ids axis 0) was to stay open and is fixed at 3: torch.export fixes it at 3"
    )


def test_axis_asked_for_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match="axis 0 of input 'input' was asked to be open as 'rows', but came out"
    ):
        export(torch.nn.Linear(4, 2), tmp_path, torch.ones(2, 4), dynamic={"input": {0: "rows", -2: "batch"}})
