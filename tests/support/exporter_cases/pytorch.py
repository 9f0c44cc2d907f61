"""The PyTorch models of the exporter conformance suite."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import Build, BuildIn, ExporterCases, Plant, Refusal, sample
from support.model_packages import unpacked


def _torch_scalar() -> tuple[Any, dict[str, Any]]:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5, -2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.weight * x)

    return Scaled(), {"inputs": {"x": np.array(0.25, np.float32)}}


def _torch_vector() -> tuple[Any, dict[str, Any]]:
    import torch

    class Curve(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5, -2.0, 1.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x[:, None] * self.weight)

    return Curve(), {"inputs": {"x": sample(5)}}


def _torch_matrix() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    return net, {"inputs": {"x": sample(4, 6)}}


def _torch_sequence() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer, {"inputs": {"src": sample(2, 5, 8)}, "dynamic": {"src": {0: "batch", 1: "time"}}}


def _torch_picture() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2), torch.nn.Softmax(-1),
    )  # fmt: skip
    return net, {"inputs": {"image": sample(2, 3, 8, 8)}}


def _torch_demoted() -> tuple[Any, dict[str, Any]]:
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y + 1 if x.shape[1] == 3 else y

    return Branches(), {"inputs": {"x": sample(2, 3, 4)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


# --- files --------------------------------------------------------------------------------------------------

CLASSIFIER = "support.torch_nets:classifier"


def _rows() -> dict[str, Any]:
    return {"inputs": {"input": sample(4, 6)}}


def _with_factory(write: Callable[[Any, Path], None], name: str) -> BuildIn:
    """A checkpoint of the classifier in a file of a name, for its factory."""

    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        from support.torch_nets import classifier

        write(classifier(), folder / name)
        return str(folder / name), {"factory": CLASSIFIER, **_rows()}

    return build


def _save(shape: Callable[[Any], Any], **options: Any) -> Callable[[Any, Path], None]:
    def write(net: Any, path: Path) -> None:
        import torch

        torch.save(shape(net), path, **options)

    return write


def _save_safetensors(net: Any, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(net.state_dict(), path)


def _lightning(net: Any) -> Any:
    from support.torch_nets import lightning_checkpoint

    return lightning_checkpoint(net)


def _with_optimiser(net: Any) -> Any:
    import torch

    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return {"step": 3, "model_state": net.state_dict(), "optimizer_state": optimiser.state_dict()}


def _program(folder: Path) -> tuple[Any, dict[str, Any]]:
    import torch

    from support.torch_nets import classifier

    rows = torch.export.Dim("rows")
    program = torch.export.export(classifier().eval(), (torch.ones(4, 6),), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "net.pt2")
    return str(folder / "net.pt2"), {"trust": True}


def _script(folder: Path) -> tuple[Any, dict[str, Any]]:
    import torch

    from support.torch_nets import Branching, save_script

    torch.manual_seed(0)
    save_script(Branching(), folder / "net.pt")
    ids = np.array([[0, 1, 6], [2, 2, 3], [5, 4, 1], [0, 0, 0], [3, 6, 2]])
    options = {"inputs": {"x": sample(5, 4), "ids": ids}, "trust": True}
    return str(folder / "net.pt"), options | {"dynamic": {"x": {0: "batch"}, "ids": {0: "batch", 1: "words"}}}


def _trace(folder: Path) -> tuple[Any, dict[str, Any]]:
    import torch

    from support.torch_nets import classifier, save_trace

    save_trace(classifier().eval(), torch.ones(4, 6), folder / "net.pt")
    return str(folder / "net.pt"), {"trust": True, **_rows()}


# --- trained ------------------------------------------------------------------------------------------------


def _face_net(name: str, size: int) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        file = unpacked("facenet-pytorch") / "facenet_pytorch" / "data" / f"{name}.pt"
        options: dict[str, Any] = {
            "inputs": {"x": sample(2, 3, size, size)},
            "output_names": ("boxes", "faces"),
        }
        if name == "onet":
            options["output_names"] = ("boxes", "points", "faces")
        if name == "pnet":
            options["dynamic"] = {"x": {0: "batch", 2: "height", 3: "width"}}
        return str(file), options | {"factory": f"support.torch_nets:{name}"}

    return build


def _voice() -> tuple[Any, dict[str, Any]]:
    """A voice encoder; its example has the size of mel energies, a tenth."""
    file = unpacked("resemblyzer") / "resemblyzer" / "pretrained.pt"
    energies = np.random.default_rng(1).standard_normal((3, 20, 40))
    return str(file), {
        "inputs": {"mels": np.abs(0.1 * energies).astype(np.float32)},
        "dynamic": {"mels": {0: "batch", 1: "frames"}},
        "factory": "support.torch_nets:VoiceEncoder",
        "output_names": ("embedding",),
    }


def _silero() -> tuple[Any, dict[str, Any]]:
    from support.torch_nets import silero

    options = {
        "inputs": {"x": 0.1 * sample(3, 576), "state": np.zeros((2, 3, 128), np.float32)},
        "dynamic": {"x": {0: "batch"}, "state": {1: "batch"}},
        "output_names": ("speech", "next_state"),
    }
    return silero(), options


def _digits() -> tuple[Any, dict[str, Any]]:
    from support.torch_nets import trained_on_digits

    net, pictures = trained_on_digits()
    return net, {"inputs": {"image": pictures[:8]}}


# --- planted ------------------------------------------------------------------------------------------------


class Payload:
    """Unpickling this makes a file: what an attacker would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def _planted_save(
    name: str, content: Callable[[Any], Any] = lambda payload: {"weight": payload}, **options: Any
) -> Plant:
    def plant(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
        import torch

        torch.save(content(Payload(canary)), folder / name, **options)
        return str(folder / name), {"factory": CLASSIFIER, **_rows()}

    return plant


def _planted_pickle(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    (folder / "net.pt").write_bytes(pickle.dumps(Payload(canary)))
    return str(folder / "net.pt"), {"factory": CLASSIFIER, **_rows()}


def _planted_program(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A real program whose example inputs, which torch unpickles where nothing else will do, are the payload."""
    import torch

    source, _ = _program(folder)
    planted, payload = folder / "planted.pt2", io.BytesIO()
    torch.save(Payload(canary), payload)
    with zipfile.ZipFile(source) as real, zipfile.ZipFile(planted, "w") as copy:
        for name in real.namelist():
            copy.writestr(name, payload.getvalue() if "sample_inputs" in name else real.read(name))
    return str(planted), {}


def _planted_script(kind: str) -> Plant:
    def plant(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
        from support import torch_nets

        torch_nets.save_script(getattr(torch_nets, kind)(str(canary)), folder / "net.pt")
        return str(folder / "net.pt"), {"inputs": {"x": sample(2, 1)}}

    return plant


# --- refused ------------------------------------------------------------------------------------------------


def _cut(share: float, **options: Any) -> BuildIn:
    """A checkpoint of which only a share was written."""

    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        source, given = _with_factory(_save(lambda net: net.state_dict(), **options), "net.pt")(folder)
        data = Path(source).read_bytes()
        Path(source).write_bytes(data[: int(len(data) * share)])
        return source, given

    return build


def _flipped(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A checkpoint with one changed byte among its weights."""
    source, given = _with_factory(_save(lambda net: net.state_dict()), "net.pt")(folder)
    from support.torch_nets import classifier

    data = bytearray(Path(source).read_bytes())
    data[data.index(classifier()[0].weight.detach().numpy().tobytes())] ^= 1
    Path(source).write_bytes(data)
    return source, given


def _misfit(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, given = _with_factory(_save(lambda net: net.state_dict()), "net.pt")(folder)
    return source, {**given, "factory": "support.torch_nets:another"}


def _without(name: str, **options: Any) -> BuildIn:
    """The classifier's checkpoint without one of the arguments, or with another one."""

    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        source, given = _with_factory(_save(lambda net: net.state_dict()), "net.pt")(folder)
        given.pop(name)
        return source, {**given, **options}

    return build


def _rejected_inputs(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, given = _with_factory(_save(lambda net: net.state_dict()), "net.pt")(folder)
    return source, {**given, "inputs": {"input": sample(4, 5)}}


def _of_keras(folder: Path) -> tuple[Any, dict[str, Any]]:
    with zipfile.ZipFile(folder / "net.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", "")
    return str(folder / "net.keras"), {"factory": CLASSIFIER}


def _garbage(folder: Path) -> tuple[Any, dict[str, Any]]:
    (folder / "net.pt").write_bytes(b"<!DOCTYPE html><title>Sign in</title>")
    return str(folder / "net.pt"), {"factory": CLASSIFIER}


DAMAGED = r"net\.pt cannot be read as a PyTorch file .*; it is damaged, cut short, or of another kind\."


CASES = ExporterCases(
    module="torch",
    environment="pytorch",
    ranks={
        "rank0": _torch_scalar,
        "rank1": _torch_vector,
        "rank2": _torch_matrix,
        "rank3": _torch_sequence,
        "rank4": _torch_picture,
    },
    demoted=_torch_demoted,
    guarded=_torch_matrix,
    files={
        "state_dict.pt": _with_factory(_save(lambda net: net.state_dict()), "net.pt"),
        "stream_of_old_torch.pth": _with_factory(
            _save(lambda net: net.state_dict(), _use_new_zipfile_serialization=False), "net.pth"
        ),
        "training_checkpoint.pt": _with_factory(_save(_with_optimiser), "net.pt"),
        "lightning.ckpt": _with_factory(_save(_lightning), "net.ckpt"),
        "whole_network_with_factory.pt": _with_factory(_save(lambda net: net), "net.pt"),
        "state_dict.safetensors": _with_factory(_save_safetensors, "net.safetensors"),
        "program.pt2": _program,
        "script.pt": _script,
        "trace.pt": _trace,
    },
    trained={
        "facenet_pnet": _face_net("pnet", 30),
        "facenet_rnet": _face_net("rnet", 24),
        "facenet_onet": _face_net("onet", 48),
        "resemblyzer": _voice,
        "silero_vad": _silero,
        "digits": _digits,
    },
    packages=("facenet-pytorch", "resemblyzer", "silero-vad", "scikit-learn"),
    planted={
        "pickle.pt": _planted_pickle,
        "torch.pt": _planted_save("net.pt"),
        "stream.pth": _planted_save("net.pth", _use_new_zipfile_serialization=False),
        "lightning.ckpt": _planted_save(
            "net.ckpt", lambda payload: {"state_dict": {"a": payload}, "epoch": 1}
        ),
        "program.pt2": _planted_program,
        "script_that_saves.pt": _planted_script("Saving"),
        "script_that_maps.pt": _planted_script("Mapping"),
    },
    refused={
        "cut_at_the_start": Refusal(_cut(0.02), "SourceError", DAMAGED),
        "cut_in_the_middle": Refusal(_cut(0.5), "SourceError", DAMAGED),
        "cut_at_the_end": Refusal(_cut(0.98), "SourceError", DAMAGED),
        "cut_stream": Refusal(_cut(0.98, _use_new_zipfile_serialization=False), "SourceError", DAMAGED),
        "changed_weights": Refusal(_flipped, "SourceError", "checksum differs"),
        "empty": Refusal(_cut(0), "SourceError", DAMAGED),
        "web_page": Refusal(_garbage, "SourceError", DAMAGED),
        "other_network": Refusal(
            _misfit,
            "SourceError",
            r"missing 2\.bias .*; unexpected 1\.bias, .*other shapes: 0\.bias is \[8\], the network has \[9\]",
        ),
        "no_factory": Refusal(_without("factory"), "SourceError", r"holds weights only; .*--factory"),
        "no_example": Refusal(
            _without("inputs"), "ExportError", r"does not say what it takes; give --samples"
        ),
        "rejected_inputs": Refusal(
            _rejected_inputs, "ExportError", r"refuses its own example inputs \(input float32\[4, 5\]\)"
        ),
        "keras_archive": Refusal(_of_keras, "SourceError", r"is a Keras archive, and the pytorch exporter"),
    },
)
