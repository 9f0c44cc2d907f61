"""Open dimensions that were asked for: kept, noted with the reason, or refused with what to add."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters.binding import Binding, synthetic_sizes, trace_sizes
from paritygate.converter.exporters.named_source import NamedSource, SourceRejected
from paritygate.converter.exporters.tying import tie_open_sizes
from paritygate.converter.parity.validate import validate_bundle
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


class Plus(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_a_tie_that_shows_only_when_both_sizes_grow_is_refused(tmp_path: Path) -> None:
    one = torch.randn(1, 4)
    with pytest.raises(ExportError, match=r"'a' of x axis 0 .* ties it to y axis 0, which is called 'b'"):
        export(Plus(), tmp_path, (one, one), dynamic={"x": {0: "a"}, "y": {0: "b"}})


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


# --- under another name -------------------------------------------------------------------------------------


def test_open_size_follows_the_new_name_of_its_input(tmp_path: Path) -> None:
    bundle = export(
        torch.nn.Linear(4, 2), tmp_path, {"flower": torch.ones(2, 4)},
        dynamic={"flower": {0: "rows"}}, input_names=["x"],
    )  # fmt: skip
    assert [(spec.name, spec.shape) for spec in bundle.signature.inputs] == [("x", ("rows", 4))]


def test_ranges_and_samples_follow_the_new_names_too(tmp_path: Path) -> None:
    sample = {name: tensor.numpy() for name, tensor in example(2).items()}
    bundle = export(
        Joined(), tmp_path, example(2), input_names=["tokens", "x"], integer_ranges={"ids": (3, 5)},
        dynamic={"ids": {0: "batch"}, "x": {0: "batch"}}, samples=[sample], include_samples=True,
    )  # fmt: skip
    tokens = [probe.inputs["tokens"] for probe in bundle.probes() if not probe.case.startswith("sample")]
    assert {(int(array.min()) >= 3, int(array.max()) <= 5) for array in tokens if array.size} == {
        (True, True)
    }
    assert any(probe.case == "sample:0" for probe in bundle.probes())


def test_name_that_is_new_and_own_is_the_new_one(tmp_path: Path) -> None:
    bundle = export(
        Joined(), tmp_path, example(2), input_names=["feats", "ids"], dynamic={"feats": {1: "width"}}
    )
    assert [spec.shape for spec in bundle.signature.inputs] == [(2, "width"), (2, 3)]


def test_axis_with_two_names_under_both_names_of_its_input_is_refused(tmp_path: Path) -> None:
    axes = {"flower": {0: "rows"}, "x": {0: "batch"}}
    with pytest.raises(
        ExportError, match="axis 0 of input 'x' is called 'rows' and 'batch', under its new and"
    ):
        export(torch.nn.Linear(4, 2), tmp_path, {"flower": torch.ones(2, 4)}, dynamic=axes, input_names=["x"])


def test_input_with_two_ranges_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    ranges = {"ids": (0, 3), "tokens": (0, 5)}
    with pytest.raises(ExportError, match=r"'tokens' has two ranges, \[0, 3\] and \[0, 5\].*--integer-range"):
        export(Joined(), tmp_path, example(2), integer_ranges=ranges, input_names=["tokens", "feats"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"dynamic": {"imput": {0: "rows"}}},
            r"--dynamic \(dynamic=\) names the input 'imput'; .*mean 'input'",
        ),
        ({"integer_ranges": {"n": (0, 1)}}, r"--integer-range \(integer_ranges=\) names the input 'n'"),
    ],
    ids=["dynamic", "range"],
)
def test_name_of_no_input_is_refused_in_the_words_it_was_given_in(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=said):
        export(torch.nn.Linear(4, 2), tmp_path, torch.ones(2, 4), **options)


def _summed(path: Path, *, apart: bool) -> Path:
    """Two inputs whose second axes the file leaves open under names of their own."""
    body = (
        "left = ReduceSum<keepdims=0>(a, one) right = ReduceSum<keepdims=0>(b, one) y = Add(left, right)"
        if apart
        else "both = Mul(a, b) y = ReduceSum<keepdims=0>(both, one)"
    )
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    net (float[batch, m] a, float[batch, n] b) => (float[batch] y)
    <int64[1] one = {{1}}> {{ {body} }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize(
    ("apart", "given"), [(True, None), (False, None), (False, 10)], ids=["apart", "made_up", "of_an_example"]
)
def test_open_sizes_that_vary_together_only_share_a_name(
    tmp_path: Path, apart: bool, given: int | None
) -> None:
    inputs = None if given is None else {name: np.ones((4, given), np.float32) for name in "ab"}
    bundle = export(_summed(tmp_path / "net.onnx", apart=apart), tmp_path, inputs)
    shapes = [spec.shape for spec in bundle.signature.inputs]
    assert shapes == ([("batch", "m"), ("batch", "n")] if apart else [("batch", "dim1")] * 2)
    assert validate_bundle(bundle).verdict == "pass"
    assert any("vary together only" in note for note in bundle.manifest["notes"]) is not apart


class ThreeSizes(torch.nn.Module):
    """Two sequences of one length, a third of its own."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (a * b).sum(1) + c.sum(1)


def test_a_size_that_varies_alone_keeps_its_name() -> None:
    specs = tuple(TensorSpec(name, DType.FLOAT32, ("batch", f"{name}_dim1")) for name in "abc")
    sizes = synthetic_sizes(specs)
    example = {spec.name: np.ones((2, sizes[str(spec.shape[1])]), np.float32) for spec in specs}
    binding = Binding(tuple("abc"), specs, example, sizes, trace_sizes(sizes))

    class Source:
        def run(self, _: Binding, feeds: dict[str, Any]) -> None:
            try:
                ThreeSizes()(**{name: torch.from_numpy(array) for name, array in feeds.items()})
            except RuntimeError as error:
                raise SourceRejected(str(error)) from error

    tied = tie_open_sizes(cast(NamedSource, Source()), binding, ())
    assert [spec.shape[1] for spec in tied.inputs] == ["dim1", "dim1", "c_dim1"]
    assert tied.example["a"].shape == tied.example["b"].shape


def test_an_input_that_is_missing_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="it is not given 'feats', which it needs"):
        export(Joined(), tmp_path, {"ids": torch.ones(3, 5, dtype=torch.int64)})
