"""PyTorch files: nothing they carry is run, training checkpoints are understood, faults are named."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.checkpoints.inert_pickle import Global, Stub
from paritygate.converter.checkpoints.torch_archive import StorageRef, TensorRef
from paritygate.converter.checkpoints.torch_state import has_weights
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError, SourceNotFound, UnsafeSource
from paritygate.converter.exporters import export_model, get_exporter
from paritygate.converter.parity.validate import validate_bundle

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

NETWORK = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
def with_example():
    return build(), torch.ones(2, 4)
def raises():
    raise RuntimeError("no such layer")
def leaves():
    raise SystemExit(2)
NOT_A_MODEL = {"a": 1}
class Sized(torch.nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """A network whose factory `network_under_test:build` lies in the working directory."""
    (tmp_path / "network_under_test.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "network_under_test", raising=False)
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def export(source: str, factory: str | None = "network_under_test:build", **options: Any) -> Bundle:
    return export_model(
        source,
        "bundle",
        name="net",
        framework="pytorch",
        inputs=np.ones((2, 4), np.float32),
        factory=factory,
        **options,
    )


def assert_has_weights_of(bundle: Bundle, network: torch.nn.Module) -> None:
    assert validate_bundle(bundle).verdict == "pass"
    probe = next(iter(bundle.probes()))
    with torch.no_grad():
        expected = network(torch.from_numpy(probe.inputs["input"])).numpy()
    np.testing.assert_array_equal(probe.outputs["output"], expected)


class Opened(NamedTuple):
    """What an exporter made of a file, without the seconds that converting it takes."""

    selection: str
    notes: list[str]


def opened_as(network: torch.nn.Module, source: str, **options: Any) -> Opened:
    """A file, opened for export, that computes what a network computes."""
    given = np.ones((2, 4), np.float32)
    config = ExportConfig(name="net", inputs=given, factory="network_under_test:build", **options)
    with get_exporter("pytorch").open_source(source, config) as model:
        answer = model.run({"input": given})["output"]
        with torch.no_grad():
            np.testing.assert_array_equal(answer, network(torch.from_numpy(given)).numpy())
        return Opened(model.weights.selection, list(model.notes))


class Payload:
    """Unpickling this creates a file: what an attacker would run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pt2"])
def test_planted_code_is_never_run_and_the_file_is_refused(suffix: str, network: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    planted = tmp_path / f"planted{suffix}"
    if suffix == ".pt2":
        planted.write_bytes(pickle.dumps(Payload(marker)))
    else:
        torch.save({"weight": Payload(marker)}, planted)
    with pytest.raises(UnsafeSource, match="--trust"):
        export(str(planted))
    assert not marker.exists()


def test_planted_code_in_an_archive_is_not_run(network: Any, tmp_path: Path) -> None:
    import zipfile

    marker, planted = tmp_path / "ran", tmp_path / "model.pt2"
    torch.export.save(torch.export.export(network, (torch.ones(2, 4),)), planted)
    with zipfile.ZipFile(planted, "a") as archive:
        archive.writestr("model/data/sample_inputs/extra.pt", pickle.dumps(Payload(marker)))
    with pytest.raises(UnsafeSource, match="with pickles inside"):
        export(str(planted))
    assert not marker.exists()


def test_the_planted_code_is_real(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(Payload(marker))).close()
    assert marker.exists()


def test_refusal_names_the_global(network: Any, tmp_path: Path) -> None:
    torch.save({"weight": Payload(tmp_path / "ran")}, tmp_path / "x.pt")
    with pytest.raises(UnsafeSource, match=r"asks for \w+\.open"):
        export("x.pt")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trusted_program_is_exported(network: Any) -> None:
    rows = torch.export.Dim("rows")
    torch.export.save(
        torch.export.export(network, (torch.ones(2, 4),), dynamic_shapes=({0: rows},)), "model.pt2"
    )
    bundle = export("model.pt2", None, trust=True)
    assert bundle.manifest["weights"]["source_sha256"]
    assert_has_weights_of(bundle, network)


WHOLE = """
import torch
class Whole(torch.nn.Linear):
    pass
"""


def saved_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A whole module pickled from `net_of_whole.py`, which lies beside it and is imported no more."""
    (folder / "net_of_whole.py").write_text(WHOLE)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        torch.save(importlib.import_module("net_of_whole").Whole(4, 2), folder / "whole.pt")
    sys.modules.pop("net_of_whole")
    importlib.invalidate_caches()
    return str(folder / "whole.pt")


@pytest.fixture
def forgotten() -> Iterator[None]:
    yield
    sys.modules.pop("net_of_whole", None)


@pytest.mark.usefixtures("forgotten")
def test_trusted_whole_module_finds_its_code_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_whole(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    bundle = export(saved, None, trust=True)
    assert bundle.manifest["weights"]["selection"] == "raw: whole module"


@pytest.mark.usefixtures("forgotten")
def test_trusted_whole_module_without_its_code_names_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_whole(tmp_path, monkeypatch)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(
        SourceError, match="needs the module 'net_of_whole', which cannot be imported"
    ) as caught:
        export(saved, None, trust=True)
    assert "damaged" not in str(caught.value)


@pytest.mark.usefixtures("forgotten")
def test_trusted_whole_module_whose_code_has_changed_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_whole(tmp_path, monkeypatch)
    (tmp_path / "net_of_whole.py").write_text("Other = 1 + 1 + 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"names code that is not there any more.*'Whole'"):
        export(saved, None, trust=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_program_captured_in_training_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout())
    with pytest.raises(ExportError, match="captured in training mode"):
        export_model(torch.export.export(model, (torch.ones(2, 4),)), "unused-bundle", name="net")


CHECKPOINTS = {
    "plain": (lambda state: state, "raw"),
    "model_state beside an optimizer": (
        lambda state: {"step": 3, "model_state": state, "optimizer_state": {"a": {"m": torch.ones(1)}}},
        "raw: checkpoint entry model_state",
    ),
    "module. of DDP": (lambda state: {f"module.{name}": value for name, value in state.items()}, "raw"),
    "_orig_mod. of compile": (
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
        "raw",
    ),
    "state_dict of Lightning": (
        lambda state: {
            "state_dict": {f"model.{n}": v for n, v in state.items()} | {"loss.weight": torch.ones(2)}
        },
        "raw: checkpoint entry state_dict",
    ),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_training_checkpoints_are_understood_and_said(kind: str, network: Any) -> None:
    shape, selection = CHECKPOINTS[kind]
    torch.save(shape(network.state_dict()), "weights.pt")
    opened = opened_as(network, "weights.pt")
    assert opened.selection == selection
    if kind != "plain":
        assert opened.notes


def test_averaged_weights_are_taken_only_when_named(network: Any) -> None:
    averaged = {name: value * 2 for name, value in network.state_dict().items()}
    torch.save({"state_dict": network.state_dict(), "ema_state_dict": averaged}, "weights.pt")
    raw = opened_as(network, "weights.pt")
    assert any("ema_state_dict" in note and "not taken" in note for note in raw.notes)
    network.load_state_dict(averaged)
    opened_as(network, "weights.pt", weights="ema_state_dict")


def test_safetensors_are_read(network: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(network.state_dict(), "weights.safetensors")
    opened_as(network, "weights.safetensors")


def test_factory_may_give_the_example(network: Any) -> None:
    bundle = export_model("network_under_test:with_example", "bundle", name="net", framework="pytorch")
    assert bundle.manifest["weights"]["selection"] == "as built by network_under_test:with_example"


def test_names_that_do_not_fit_are_listed_with_the_nearest(network: Any) -> None:
    state = network.state_dict()
    state["0.wieght"] = state.pop("0.weight")
    state["1.bias"] = torch.ones(7)
    torch.save(state, "weights.pt")
    with pytest.raises(
        SourceError,
        match=r"missing 0\.weight \(nearest: 0\.wieght\); unexpected 0\.wieght; other shapes: 1\.bias is \[7\]",
    ):
        export("weights.pt")


def _cut(network: Any) -> str:
    torch.save(network.state_dict(), "cut.pt")
    data = Path("cut.pt").read_bytes()
    Path("cut.pt").write_bytes(data[: len(data) // 2])
    return "cut.pt"


def test_truncated_file_is_told(network: Any) -> None:
    with pytest.raises(SourceError, match="damaged, cut short"):
        export(_cut(network))


def test_missing_file_names_the_nearest(network: Any) -> None:
    torch.save(network.state_dict(), "weights.pt")
    with pytest.raises(SourceNotFound, match=r"no file wieghts\.pt\. Did you mean weights\.pt"):
        export("wieghts.pt")


@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [
        (None, SourceError, "holds weights only"),
        ("network_under_test:raises", FactoryError, r"RuntimeError: no such layer \(network_under_test\.py:8\)"),
        ("network_under_test:leaves", FactoryError, r"raised SystemExit: 2 \(network_under_test\.py:10\)"),
        ("network_under_test:biuld", FactoryError, "Did you mean 'build'"),
        ("network_under_test:Sized", FactoryError, "Sized needs width, and a factory is called without arguments"),
        ("network_under_test:NOT_A_MODEL", FactoryError, "gave a dict; expected an nn.Module"),
        ("no_such_module:build", SourceNotFound, "there is no module 'no_such_module'"),
    ],
    ids=["none", "raises", "exits", "misspelt", "with arguments", "no model", "no module"],
)  # fmt: skip
def test_factory_faults_are_one_line(
    factory: str | None, error: type[Exception], said: str, network: Any
) -> None:
    torch.save(network.state_dict(), "weights.pt")
    with pytest.raises(error, match=said) as caught:
        export("weights.pt", factory)
    assert "\n" not in str(caught.value)


# --- what training frameworks leave beside weights ----------------------------------------------------------


class Callback:
    """Stands for what a training framework pickles beside the weights; making one leaves a mark."""

    marker: Path

    def __init__(self) -> None:
        self.best = 0.5

    def __setstate__(self, state: Any) -> None:
        Callback.marker.touch()
        self.__dict__.update(state)


@pytest.fixture
def lightning(network: Any, tmp_path: Path) -> str:
    """A Lightning checkpoint with a callback that would leave `ran` behind if it were built."""
    Callback.marker = tmp_path / "ran"
    state = {f"model.{name}": value for name, value in network.state_dict().items()}
    content = {
        "epoch": 1,
        "state_dict": state,
        "callbacks": {Callback: Callback()},
        "hyper_parameters": argparse.Namespace(root=Path("/data"), rate=np.float64(0.1)),
    }
    torch.save(content, "net.ckpt")
    return "net.ckpt"


def test_lightning_checkpoint_needs_no_trust_and_runs_nothing(
    lightning: str, network: Any, tmp_path: Path
) -> None:
    opened = opened_as(network, lightning)
    assert opened.selection == "raw: checkpoint entry state_dict"
    assert "Names in the checkpoint lost the prefix 'model.'." in opened.notes
    assert not (tmp_path / "ran").exists()


def test_trust_does_not_run_what_is_not_needed(lightning: str, network: Any, tmp_path: Path) -> None:
    opened_as(network, lightning, trust=True)
    assert not (tmp_path / "ran").exists()


def test_the_callback_is_real(lightning: str, tmp_path: Path) -> None:
    torch.load(lightning, weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("kind", ["alone", "in a checkpoint"])
def test_weights_come_out_of_a_pickled_network_whose_code_is_gone(
    kind: str, network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_of_whole.py").write_text(
        "import torch\nclass Whole(torch.nn.Sequential):\n"
        "    def __setstate__(self, state):\n        raise RuntimeError('this must not run')\n"
    )
    importlib.invalidate_caches()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        whole = importlib.import_module("net_of_whole").Whole(*network)
        torch.save(whole if kind == "alone" else {"epoch": 3, "model": whole}, "whole.pt")
    sys.modules.pop("net_of_whole")
    (tmp_path / "net_of_whole.py").unlink()
    opened = opened_as(network, "whole.pt")
    assert any("net_of_whole.Whole), without running" in note for note in opened.notes)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("kind", ["alone", "in a checkpoint"])
def test_pickled_network_itself_needs_trust(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_whole(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    if kind == "in a checkpoint":
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            torch.save({"model": torch.load(saved, weights_only=False)}, saved)
        sys.modules.pop("net_of_whole")
    with pytest.raises(UnsafeSource, match=r"asks for .*Whole.*--trust"):
        export(saved, None)
    assert export(saved, None, trust=True).manifest["weights"]["selection"] == "raw: whole module"


def test_tensors_that_only_torch_can_build_are_no_harm_beside_the_weights(network: Any) -> None:
    torch.save({"state_dict": network.state_dict(), "mask": torch.eye(3).to_sparse()}, "weights.pt")
    opened_as(network, "weights.pt")


def test_tensors_that_only_torch_can_build_need_trust_among_the_weights(network: Any) -> None:
    torch.save({**network.state_dict(), "mask": torch.eye(3).to_sparse()}, "weights.pt")
    with pytest.raises(UnsafeSource, match=r"_rebuild_sparse_tensor: sparse.*to_dense\(\).*--trust"):
        export("weights.pt")


def _leaf(state: dict[str, Any]) -> Stub:
    part = Stub(Global("nets", "Net"))
    part.state = {"_modules": {}, "_parameters": {}, "_buffers": {}, **state}
    return part


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["contains-itself", "doubles", "is-named-often"])
def test_network_without_end_is_refused_at_once(kind: str) -> None:
    weight = TensorRef(StorageRef("0", "float32", 1), "float32", 0, (1,), (1,))
    module = _leaf({"_parameters": {"w": weight}})
    content: Any = module
    if kind == "contains-itself":
        module.state["_modules"][""] = module
    elif kind == "doubles":
        for _ in range(60):
            content = _leaf({"_modules": {"a": content, "b": content}})
    else:
        names = {f"w{k}": weight for k in range(10_000)}
        content = {f"net{k}": _leaf({"_parameters": names}) for k in range(2_000)}
    with pytest.raises(SourceError, match="contains itself, or has more parts than any real one"):
        has_weights(content)


@pytest.mark.timeout(20)
def test_entry_that_is_named_a_million_times_is_looked_into_once() -> None:
    weight = TensorRef(StorageRef("0", "float32", 1), "float32", 0, (1,), (1,))
    inner = {f"w{k}": weight for k in range(50_000)}
    assert has_weights({f"net{k}": inner for k in range(50_000)} | {"epoch": 1})


def test_checkpoint_of_old_torch_is_exported(network: Any) -> None:
    """Before torch 1.6 a file was a stream of pickles, which can still be written."""
    torch.save(network.state_dict(), "weights.pt", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile("weights.pt")
    opened_as(network, "weights.pt")


@pytest.mark.parametrize("key", ["model_state", "nested.deeper"])
def test_named_entry_of_a_training_checkpoint_is_taken(key: str, network: Any) -> None:
    content = {"model_state": network.state_dict(), "nested": {"deeper": network.state_dict()}}
    torch.save(content | {"model_state": network.state_dict()}, "weights.pt")
    assert opened_as(network, "weights.pt", weights=key).selection == f"raw: checkpoint entry {key}"


def test_entry_that_is_not_there_lists_those_that_are(network: Any) -> None:
    torch.save({"state_dict": network.state_dict(), "epoch": 1}, "weights.pt")
    with pytest.raises(SourceError, match=r"has no entry 'ema'; it holds a dict .*'state_dict', 'epoch'"):
        export("weights.pt", weights="ema")
