"""TorchScript: loops, branches and sizes stay what they are, answers keep their names, faults name the place."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ExportError, SourceError, UnsupportedOperator
from paritygate.converter.exporters import detect, export_model
from paritygate.converter.parity.validate import validate_bundle
from support.model_packages import fetch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from support.torch_nets import Branching, save_script, silero  # noqa: E402 - needs torch

IDS = np.array([[0, 1, 6], [2, 2, 3], [5, 4, 1], [0, 0, 0], [3, 6, 2]])
ROWS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture(autouse=True)
def scripting_is_deprecated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        yield


def script(module: Any) -> Any:
    torch.manual_seed(0)
    return torch.jit.script(module)


def export(source: Any, folder: Path, **options: Any) -> Bundle:
    return export_model(source, folder / "bundle", name="net", **{"inputs": {"x": ROWS}, **options})


def proven(bundle: Bundle) -> Bundle:
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    return bundle


def test_loops_and_branches_on_sizes_are_kept(tmp_path: Path) -> None:
    """The branch acts above three rows: a trace would have fixed it one way or the other."""
    bundle = proven(export(script(Branching()), tmp_path, inputs={"x": ROWS, "ids": IDS}))
    assert str(bundle.signature) == (
        "(x: float32[batch, 4], ids: int64[batch, 3]) -> (sum: float32[batch, 4], plain: float32[batch, 4])"
    )
    kinds = {node.op_type for node in onnx.load_from_string(bundle.model_bytes()).graph.node}
    assert "If" in kinds
    rows = {probe.dims["batch"] for probe in bundle.probes()}
    assert {1, 2, 7} <= rows


def test_argument_that_is_no_tensor_is_fixed_and_said(tmp_path: Path) -> None:
    scripted = script(Branching())
    bundle = proven(export(scripted, tmp_path, inputs={"x": ROWS, "ids": IDS, "rounds": 4}))
    assert "Argument 'rounds' is fixed at 4 in the graph." in bundle.manifest["notes"]
    probe = next(iter(bundle.probes()))
    feeds = {name: torch.from_numpy(value) for name, value in probe.inputs.items()}
    expected = scripted(**feeds, rounds=4)
    np.testing.assert_array_equal(probe.outputs["sum"], expected["sum"].detach().numpy())


def test_ids_reach_the_last_row_of_the_embedding_and_no_further(tmp_path: Path) -> None:
    bundle = export(script(Branching()), tmp_path, inputs={"x": ROWS, "ids": IDS})
    asked = np.concatenate([probe.inputs["ids"].ravel() for probe in bundle.probes()])
    assert (asked.min(), asked.max()) == (0, 6)


def test_declared_inputs_need_no_example(tmp_path: Path) -> None:
    declared = ("x:float32[batch,4]", "ids:int64[batch,words]")
    bundle = proven(export(script(Branching()), tmp_path, inputs=declared))
    assert set(bundle.signature.dynamic_dims()) == {"batch", "words"}


class Pair(NamedTuple):
    first: torch.Tensor
    rest: list[torch.Tensor]


class Structured(torch.nn.Module):
    def forward(self, x: torch.Tensor, more: list[torch.Tensor], last: torch.Tensor | None = None) -> Pair:
        total = x
        for part in more:
            total = total + part
        return Pair(total, [x, total if last is None else total + last])


class Maybe(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return x + 1, None


def test_nested_inputs_and_answers_get_joined_names(tmp_path: Path) -> None:
    bundle = proven(export(script(Structured()), tmp_path, inputs={"x": ROWS, "more": [ROWS, ROWS]}))
    assert [spec.name for spec in bundle.signature.inputs] == ["x", "more_0", "more_1"]
    assert [spec.name for spec in bundle.signature.outputs] == ["first", "rest_0", "rest_1"]


def test_answer_that_may_be_none_is_given_where_it_is_there(tmp_path: Path) -> None:
    bundle = proven(export(script(Maybe()), tmp_path))
    assert [spec.name for spec in bundle.signature.outputs] == ["output_0"]


def test_frozen_and_traced_scripts_are_exported(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Tanh())
    for name, made in {
        "frozen": torch.jit.freeze(torch.jit.script(net.eval())),
        "traced": torch.jit.trace(net.eval(), torch.ones(2, 4)),
        "training": torch.jit.script(net.train()),
    }.items():
        proven(export(made, tmp_path / name, inputs=ROWS))


def test_users_own_script_is_not_worked_on(tmp_path: Path) -> None:
    made = script(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).train())
    before = {name: value.clone() for name, value in made.state_dict().items()}
    export(made, tmp_path, inputs=ROWS)
    assert made.training
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_weights_keep_their_names(tmp_path: Path) -> None:
    bundle = export(script(Branching()), tmp_path, inputs={"x": ROWS, "ids": IDS})
    names = {value.name for value in onnx.load_from_string(bundle.model_bytes()).graph.initializer}
    assert {"layer.bias", "embed.weight"} <= names


def test_large_weights_go_to_the_side_file(tmp_path: Path) -> None:
    bundle = proven(
        export(script(torch.nn.Linear(4, 600)), tmp_path, inputs=ROWS, external_data_threshold_bytes=0)
    )
    assert bundle.external_data()


class Special(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.erfcx(x)


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.inner = Special()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.layer(x))


def test_operator_without_onnx_form_is_named_with_its_module_and_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = r"aten::special_erfcx, used in inner \(Special\), test_pytorch_scripts\.py:\d+, has no ONNX form"
    with pytest.raises(UnsupportedOperator, match=said) as caught:
        export(script(Outer()), tmp_path)
    assert (caught.value.operator, caught.value.module) == ("aten::special_erfcx", "inner")
    assert capfd.readouterr() == ("", "")


def test_opset_that_cannot_be_written_names_the_range(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"opset 21 cannot be written .* 13 to 20"):
        export(script(Outer()), tmp_path, opset=21)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def test_script_that_keeps_state_between_calls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="differs between two runs"):
        export(script(Counting()), tmp_path)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (np.ones((2, 5), np.float32), "refuses its own example inputs"),
        ({"y": ROWS, "z": ROWS}, r"refuses its own example inputs .*argument 'x'"),
        (None, "does not say what it takes"),
    ],
    ids=["shape", "names", "none"],
)  # fmt: skip
def test_example_that_does_not_fit_gets_one_line(inputs: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said) as caught:
        export(script(Outer()), tmp_path, inputs=inputs)
    assert "\n" not in str(caught.value)


def test_damaged_archive_is_told(tmp_path: Path) -> None:
    save_script(Outer(), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "net.pt", "w") as copy:
        for name in whole.namelist():
            copy.writestr(name, b"def " if name.endswith(".py") else whole.read(name))
    assert detect(tmp_path / "net.pt") == "pytorch"
    with pytest.raises(SourceError, match=r"net\.pt cannot be read as a PyTorch file") as caught:
        export(tmp_path / "net.pt", tmp_path, trust=True)
    assert "\n" not in str(caught.value)


@pytest.mark.real
def test_silero_computes_what_its_own_onnx_file_computes(tmp_path: Path) -> None:
    """The package ships the same network as ONNX, converted by its authors: an independent reference."""
    import onnxruntime

    shipped = fetch("silero-vad") / "silero_vad" / "data" / "silero_vad_op18_ifless.onnx"
    generator = np.random.default_rng(0)
    feeds = {
        "x": 0.1 * generator.standard_normal((3, 576)).astype(np.float32),
        "state": generator.standard_normal((2, 3, 128)).astype(np.float32),
    }
    dynamic = {"x": {0: "batch"}, "state": {1: "batch"}}
    bundle = proven(export(silero(), tmp_path, inputs=feeds, dynamic=dynamic))
    theirs = onnxruntime.InferenceSession(shipped, providers=["CPUExecutionProvider"])
    ours = onnxruntime.InferenceSession(bundle.model_bytes(), providers=["CPUExecutionProvider"])
    rate = np.array(16000, np.int64)
    names = {spec.name for spec in theirs.get_inputs()}
    given = {"input": feeds["x"], "state": feeds["state"], "sr": rate}
    expected = theirs.run(None, {name: value for name, value in given.items() if name in names})
    for mine, reference in zip(ours.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5)
