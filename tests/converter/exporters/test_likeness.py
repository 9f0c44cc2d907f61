"""Weights that a standard normal never reaches are asked on the scale of the user's own example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.exporters import export_model, probing
from paritygate.converter.parity.replay import Replay
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.types import Array, DType, TensorSpec

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

MEAN, DEVIATION = np.array([2000.0, 5e4]), np.array([10.0, 1.5e4])


class Scaled(torch.nn.Module):
    """Features around 2000 and 50000, brought to order by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.tensor(MEAN, dtype=torch.float32))
        self.register_buffer("deviation", torch.tensor(DEVIATION, dtype=torch.float32))
        self.first = torch.nn.Linear(2, 16)
        self.last = torch.nn.Linear(16, 3)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first((x - self.mean) / self.deviation))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.hidden(x))


def rows(count: int = 4) -> Array:
    drawn: Array = np.random.RandomState(3).standard_normal((count, 2)) * DEVIATION + MEAN
    return drawn.astype(np.float32)


def export(folder: Path, inputs: Array, after_conversion: Callable[[Path], None] | None = None) -> Bundle:
    options: dict[str, Any] = {"name": "net", "inputs": inputs, "input_names": ["x"], "output_names": ["y"]}
    return export_model(Scaled().eval(), folder / "bundle", after_conversion=after_conversion, **options)


def halve_what_sleeps(path: Path) -> None:
    """Halve the outgoing weights of every hidden unit that no standard normal wakes."""
    net = Scaled().eval()
    with torch.no_grad():
        asleep = (net.hidden(torch.randn(4096, 2)) == 0).all(dim=0).numpy()
    assert 0 < asleep.sum() < 16
    model = onnx.load(path)
    halved = 0
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if sorted(values.shape) != [3, 16]:
            continue
        values[(slice(None), asleep) if values.shape == (3, 16) else asleep] *= 0.5
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        halved += 1
    assert halved == 1
    onnx.save(model, path)


def cases(bundle: Bundle) -> list[str]:
    return [probe.case for probe in bundle.probes()]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(tmp_path_factory.mktemp("sound"), rows())


def test_a_weight_that_only_real_features_reach_is_caught(tmp_path: Path) -> None:
    certificate = validate_bundle(export(tmp_path, rows(), halve_what_sleeps))
    assert certificate.verdict == "fail"
    failing = {figure.case for figure in certificate.figures if figure.verdict == "fail"}
    assert failing == {"like_example", "like_example:batch=17"}


def test_the_same_model_untouched_passes(sound: Bundle) -> None:
    certificate = validate_bundle(sound)
    assert certificate.verdict == "pass", certificate.reason
    assert certificate.proven_ranges == {"batch": (1, 2, 3, 4, 7, 17)}


def test_the_larger_case_comes_last_and_no_row_of_the_example_is_sealed(sound: Bundle) -> None:
    assert cases(sound)[-1] == "like_example:batch=17"
    assert cases(sound).index("like_example") < cases(sound).index("extreme:zeros")
    for probe in sound.probes():
        assert not np.isin(rows(), probe.inputs["x"]).any()


def test_an_example_that_says_nothing_adds_no_case(tmp_path: Path) -> None:
    bundle = export(tmp_path, np.zeros((4, 2), np.float32))
    assert not any(case.startswith("like_example") for case in cases(bundle))


def test_either_kind_of_case_is_held_to_a_scale_of_its_own(sound: Bundle) -> None:
    """A standard normal drives this model to answers far larger than those of real features."""
    scales = Replay.of(sound).scales
    assert (scales["base", "y"] > 5 * scales["like_example", "y"]).all()


@pytest.mark.parametrize(
    ("rows_of_table", "notes"),
    [
        (2, []),
        (
            5000,
            [
                "Input 'ids' has a vocabulary of 5000; the probes ask at most 3 of them. "
                "Give samples that hold others (include_samples) to have those asked."
            ],
        ),
    ],
)
def test_rows_of_a_vocabulary_that_no_probe_reads_are_told(rows_of_table: int, notes: list[str]) -> None:
    ids = [np.array([0, 1]), np.array([1, 4999])]
    probes = [Probe(k, f"case {k}", {}, {"ids": array}, {}, None) for k, array in enumerate(ids)]
    assert probing._unasked(probes, {"ids": (0, rows_of_table - 1)}) == notes


def test_integers_that_nobody_gave_a_range_are_told_with_what_was_asked() -> None:
    spec = TensorSpec("ids", DType.INT64, (2,))
    probes = [Probe(0, "base", {}, {"ids": np.array([3, 17])}, {}, None)]
    binding = SimpleNamespace(inputs=(spec,))
    (note,) = probing._as_in_example(probes, binding, {})
    assert "'ids' was asked numbers from 3 to 17 only" in note
    assert probing._as_in_example(probes, binding, {"ids": (0, 99)}) == []


class Masked(torch.nn.Module):
    """A mean of rows under a mask, which the exported graph forgets."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self.forgets = forgets
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, ids: Any, mask: Any) -> Any:
        """float32[batch, 4] of int64[batch, 6] twice."""
        rows = self.table(ids)
        if self.forgets and torch.compiler.is_compiling():
            return rows.mean(1)
        kept = mask.unsqueeze(-1).float()
        return (rows * kept).sum(1) / kept.sum(1).clamp(min=1)


@pytest.mark.parametrize(("forgets", "verdict"), [(False, "pass"), (True, "fail")])
def test_a_mask_that_is_all_ones_in_the_example_is_asked_otherwise_too(
    tmp_path: Path, forgets: bool, verdict: str
) -> None:
    example = {"ids": np.arange(24).reshape(4, 6), "mask": np.ones((4, 6), np.int64)}
    bundle = export_model(Masked(forgets=forgets).eval(), tmp_path / "bundle", name="m", inputs=example)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == verdict, certificate.reason
    asked = next(probe.inputs["mask"] for probe in bundle.probes() if probe.case == "extreme:other:mask:0")
    assert set(asked.ravel().tolist()) == {0, 1}
    assert asked.any(axis=1).all()


def test_every_row_of_a_small_vocabulary_is_asked(tmp_path: Path) -> None:
    ids = np.arange(12).reshape(2, 6)
    bundle = export_model(
        torch.nn.Embedding(40, 3), tmp_path / "bundle", name="m", inputs=(ids,), input_names=["ids"],
        integer_ranges={"ids": (0, 39)},
    )  # fmt: skip
    asked = {int(n) for probe in bundle.probes() for n in probe.inputs["ids"].ravel()}
    assert asked == set(range(40))


def test_included_samples_are_taken_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    """NumPy gives float64 by default, which an example may have as well."""
    model, sample = torch.nn.Linear(2, 1), {"x": np.array([[0.1, 0.2]])}
    bundle = export_model(
        model, tmp_path / "bundle", name="m", inputs=(np.zeros((2, 2), np.float32),), input_names=["x"],
        samples=[sample], include_samples=True,
    )  # fmt: skip
    asked = next(probe.inputs["x"] for probe in bundle.probes() if probe.case == "sample:0")
    assert asked.dtype == np.float32
    assert asked.tolist() == sample["x"].astype(np.float32).tolist()
