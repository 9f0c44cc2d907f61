"""The PyTorch exporter: what it leaves untouched, what it names, what it demotes, what it refuses and how."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters import detect, export_model, get_exporter
from paritygate.converter.parity.validate import validate_bundle

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Dropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.layer(x)))


class Fails(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Dropped()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y if x.sum() > 0 else y * 2


def export(model: Any, folder: Path, inputs: Any = None, **options: Any) -> Bundle:
    given = torch.linspace(-1, 1, 8).reshape(2, 4) if inputs is None else inputs
    return export_model(model, folder / "bundle", name="net", inputs=given, **options)


def fingerprint(model: torch.nn.Module) -> Any:
    """Everything of a module and of the process that an export might disturb."""
    return (
        {name: (value.clone(), value.data_ptr(), value.device) for name, value in model.state_dict().items()},
        {name: part.training for name, part in model.named_modules()},
        {
            name: (p.requires_grad, None if p.grad is None else p.grad.clone())
            for name, p in model.named_parameters()
        },
        {
            name: list(part._forward_hooks) + list(part._forward_pre_hooks)
            for name, part in model.named_modules()
        },
        torch.get_rng_state(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def trained(model: torch.nn.Module) -> torch.nn.Module:
    """A module in the middle of training: gradients, a frozen weight, a hook, one part in evaluation already."""
    model.train()
    model(torch.randn(6, 4)).sum().backward()
    inner = getattr(model, "inner", model)
    inner.layer.bias.requires_grad_(False)
    inner.norm.eval()
    model.register_forward_hook(lambda _module, _args, output: output)
    return model


@pytest.mark.parametrize("build", [Dropped, Fails], ids=["exports", "raises"])
def test_module_and_process_come_back_untouched(build: Callable[[], Any], tmp_path: Path) -> None:
    model = trained(Dropped() if build is Dropped else Fails())
    before = fingerprint(model)
    if build is Fails:
        with pytest.raises(ExportError):
            export(model, tmp_path)
        assert not (tmp_path / "bundle").exists()
    else:
        export(model, tmp_path)
    after = fingerprint(model)
    for one, other in zip(before, after, strict=True):
        assert same(one, other)


def test_fingerprint_sees_a_changed_flag() -> None:
    model = trained(Dropped())
    before = fingerprint(model)
    model.drop.eval()
    assert not same(before, fingerprint(model))


def test_submodule_left_in_training_is_exported_in_evaluation(tmp_path: Path) -> None:
    model = Dropped().eval()
    model.drop.train()
    bundle = export(model, tmp_path)
    assert validate_bundle(bundle).verdict == "pass"
    assert "Dropout" not in {node.op_type for node in onnx.load(bundle.path / "model.onnx").graph.node}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Record:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, torch.Tensor]
    cache: None = None


ANSWERS: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "tensor": (lambda x: x + 1, ["output"]),
    "tuple": (lambda x: (x + 1, x * 2), ["output_0", "output_1"]),
    "dict": (lambda x: {"a": x + 1, "b": {"c": x * 2}}, ["a", "b_c"]),
    "namedtuple": (lambda x: Pair(x + 1, x * 2), ["first", "second"]),
    "dataclass": (lambda x: Record(x + 1, (x * 2, x * 3)), ["logits", "hidden_0", "hidden_1"]),
    "same twice": (lambda x: [x.exp()] * 2, ["output_0", "output_1"]),
    "input handed through": (lambda x: {"x": x, "y": x + 1}, ["x_out", "y"]),
}


class Answering(torch.nn.Module):
    def __init__(self, answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(x)


@pytest.mark.parametrize("kind", ANSWERS)
def test_structured_answers_become_named_outputs(kind: str, tmp_path: Path) -> None:
    answer, names = ANSWERS[kind]
    bundle = export(Answering(answer), tmp_path)
    assert [spec.name for spec in bundle.signature.outputs] == names
    assert validate_bundle(bundle).verdict == "pass"


class Sides(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (self.table(ids) * mask[..., None]).sum(1) * scale


def test_keyword_integer_and_bool_inputs_keep_their_names(tmp_path: Path) -> None:
    ids, mask = np.array([[1, 2, 3]]), np.array([[True, False, True]])
    axes = {0: "batch", 1: "time"}
    bundle = export(
        Sides(), tmp_path, {"ids": ids, "mask": mask, "scale": 0.5}, dynamic={"ids": axes, "mask": axes},
        output_names=["pooled"],
    )  # fmt: skip
    assert (
        str(bundle.signature)
        == "(ids: int64[batch, time], mask: bool[batch, time]) -> (pooled: float32[batch, 4])"
    )
    assert "Argument 'scale' is fixed at 0.5 in the graph." in bundle.manifest["notes"]
    assert validate_bundle(bundle).verdict == "pass"


def test_ids_of_the_probes_reach_the_last_row_of_the_embedding_and_no_further(tmp_path: Path) -> None:
    bundle = export(Sides(), tmp_path, {"ids": np.array([[1, 2]]), "mask": np.ones((1, 2), bool)})
    highest = max(int(probe.inputs["ids"].max()) for probe in bundle.probes())
    assert highest == 10
    assert bundle.manifest["probes"]["omitted"] == []


def test_case_that_the_source_refuses_is_omitted_with_its_reason(tmp_path: Path) -> None:
    bundle = export(
        Sides(),
        tmp_path,
        {"ids": np.array([[1, 2]]), "mask": np.ones((1, 2), bool)},
        integer_ranges={"ids": (0, 11)},
    )
    omitted = {entry["case"]: entry["reason"] for entry in bundle.manifest["probes"]["omitted"]}
    assert "index out of range" in omitted["extreme:ones"]


def test_batch_of_one_is_traced_with_more(tmp_path: Path) -> None:
    bundle = export(torch.nn.Linear(4, 2), tmp_path, torch.randn(1, 4))
    assert bundle.trace_dims == {"batch": 2}
    assert str(bundle.signature) == "(input: float32[batch, 4]) -> (output: float32[batch, 2])"


def test_declared_inputs_need_no_example(tmp_path: Path) -> None:
    bundle = export(torch.nn.Linear(4, 2), tmp_path, "x:float32[rows,4]")
    assert str(bundle.signature.inputs[0]) == "x: float32[rows, 4]"
    assert validate_bundle(bundle).verdict == "pass"


def test_input_that_acts_on_nothing_is_still_accepted(tmp_path: Path) -> None:
    class Ignores(torch.nn.Module):
        def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return x * 2

    bundle = export(Ignores(), tmp_path, (torch.randn(2, 4), torch.randn(2, 4)))
    assert [spec.name for spec in bundle.signature.inputs] == ["x", "unused"]
    assert validate_bundle(bundle).verdict == "pass"


FIXED = r"fixes it at 3, because of forward of OnSize, test_pytorch.py:\d+"


class OnSize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 3 else x


class ViewedAsOne(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(1, 4)


@pytest.mark.parametrize(
    ("model", "rows", "reason"),
    [
        pytest.param(OnSize(), 3, FIXED, id="python if"),
        pytest.param(ViewedAsOne(), 1, "the source takes no other size: RuntimeError: shape", id="source refuses"),
    ],
)  # fmt: skip
def test_demoted_dim_names_the_reason(model: Any, rows: int, reason: str, tmp_path: Path) -> None:
    bundle = export(model, tmp_path, torch.randn(rows, 4))
    assert [(entry.dim, entry.size) for entry in bundle.demoted] == [("batch", rows)]
    assert re.search(reason, bundle.demoted[0].reason)
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_recurrent_layers_keep_their_length_open(kind: str, tmp_path: Path) -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = getattr(torch.nn, kind)(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x)[0]

    bundle = export(Last(), tmp_path, torch.randn(2, 5, 4), dynamic={"x": {0: "batch", 1: "time"}})
    assert bundle.demoted == ()
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass"
    assert {1, 17} <= set(certificate.proven_ranges["time"])


class Bessel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def test_operator_without_onnx_form_is_named_with_its_module(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(Bessel()))
    with pytest.raises(
        UnsupportedOperator, match=r"bessel_j0, used in 1\.0 \(Bessel\), test_pytorch\.py:\d+, has no"
    ) as caught:
        export(model, tmp_path)
    assert caught.value.module == "1.0"
    assert "bessel_j0" in caught.value.operator


def test_custom_operator_is_named_with_its_module(tmp_path: Path) -> None:
    @torch.library.custom_op("paritygate_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Uses(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(x)

    with pytest.raises(
        UnsupportedOperator, match=r"paritygate_test::twice, used in 0 \(Uses\), test_pytorch\.py:\d+, has no"
    ):
        export(torch.nn.Sequential(Uses()), tmp_path)


def test_decision_on_values_is_named_with_module_and_line(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"^torch\.export cannot capture forward of Fails, test_pytorch\.py:\d+: a Python decision",
    ):
        export(Fails(), tmp_path)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        pytest.param(torch.randn(2, 5), r"its own example inputs \(input float32\[2, 5\]\)", id="wrong width"),
        pytest.param(np.zeros((2, 4)), r"pass input\.astype\('float32'\)", id="float64"),
        pytest.param({"a": torch.ones(2, 4), "b": torch.ones(2)}, "example inputs", id="wrong names"),
        pytest.param(torch.zeros(0, 4), "empty along axis 0", id="empty"),
        pytest.param((3,), "holds no tensor", id="no tensor"),
    ],
)  # fmt: skip
def test_example_that_does_not_fit_gets_a_clear_line(inputs: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said):
        export(torch.nn.Linear(4, 2), tmp_path, inputs)


def test_model_that_is_random_at_inference_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="differs between two runs on the same input"):
        export(Answering(lambda x: x + torch.rand(1)), tmp_path)


def test_buffer_that_counts_calls_does_not_act_on_the_answers(tmp_path: Path) -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    model = Counts()
    first = next(iter(export(model, tmp_path).probes()))
    np.testing.assert_array_equal(first.outputs["output"], first.inputs["x"])
    assert float(model.calls) == 0


def test_wrappers_are_taken_off_and_said(tmp_path: Path) -> None:
    bundle = export(torch.nn.DataParallel(torch.compile(torch.nn.Linear(4, 2), backend="eager")), tmp_path)
    notes = " ".join(bundle.manifest["notes"])
    assert "DataParallel" in notes
    assert "OptimizedModule" in notes
    weights = {tensor.name for tensor in onnx.load(bundle.path / "model.onnx").graph.initializer}
    assert {"weight", "bias"} <= weights


def test_meta_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="weight 'weight' holds no values yet"):
        export(torch.nn.Linear(4, 2, device="meta"), tmp_path)


def test_no_example_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"--samples x\.npz, or --input .x:float32\[batch,3,32,32\].; in Python, inputs="
    ):
        export_model(torch.nn.Linear(4, 2), tmp_path / "bundle", name="net")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_precision_of_the_weights_is_kept_outside(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(kind)
    bundle = export(model, tmp_path, torch.randn(2, 4).to(kind))
    assert {spec.dtype.value for spec in (*bundle.signature.inputs, *bundle.signature.outputs)} == {dtype}
    assert validate_bundle(bundle).verdict == "pass"


def test_float64_answers_are_sealed_where_the_model_has_them(tmp_path: Path) -> None:
    probe = next(iter(export(torch.nn.Linear(4, 2), tmp_path).probes()))
    assert probe.float64 is not None
    wide, narrow = probe.float64["output"], probe.outputs["output"]
    assert wide.dtype == np.float64
    assert 0 < float(np.abs(wide - narrow).max()) < 1e-5


def test_missing_float64_reference_is_said(tmp_path: Path) -> None:
    bundle = export(Answering(lambda x: x.float() * 0.1), tmp_path)
    assert all(probe.float64 is None for probe in bundle.probes())
    assert any("no float64 reference" in note and "float32" in note for note in bundle.manifest["notes"])


def test_graph_names_no_path_of_this_machine(tmp_path: Path) -> None:
    data = (export(Dropped(), tmp_path).path / "model.onnx").read_bytes()
    assert str(Path(__file__).parent).encode() not in data
    assert str(Path(sys.prefix)).encode() not in data
    assert b"stack_trace" not in data


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys, torch; from paritygate.converter.exporters import export_model\n"
        "torch.manual_seed(3); model = torch.nn.Linear(4, 2)\n"
        "print(export_model(model, sys.argv[1], name='net', inputs=torch.ones(2, 4)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / f"b{k}")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[-1]
        for k in range(2)
    }
    assert len(digests) == 1


def test_export_writes_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export(Dropped(), tmp_path)
    with pytest.raises(ExportError):
        export_model(Fails(), tmp_path / "other", name="net", inputs=torch.ones(2, 4))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_module_is_recognised_without_being_told() -> None:
    assert detect(torch.nn.Linear(4, 2)) == "pytorch"
    assert get_exporter("pytorch").recognises("weights.safetensors")


def test_copy_of_the_model_is_what_runs(tmp_path: Path) -> None:
    """A module whose forward remembers is not changed: the copy remembers instead."""

    class Remembers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(self.seen))
            return x * 2

    model = Remembers()
    before = copy.deepcopy(model.seen)
    export(model, tmp_path)
    assert model.seen == before
