"""Networks that the PyTorch cases name as factories, and checkpoints as training frameworks leave them."""

from __future__ import annotations

import ast
import contextlib
import gzip
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.model_packages import unpacked


def classifier() -> torch.nn.Module:
    """A small classifier with a batch norm, whose buffers have to travel too."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )


def another() -> torch.nn.Module:
    """A network that the classifier's weights do not fit."""
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))


class EarlyStopping:
    """Stands for the callbacks whose state Lightning pickles into a checkpoint."""

    def __init__(self, patience: int) -> None:
        self.patience = patience


class Branching(torch.nn.Module):
    """Loops over an argument and branches on a size, which a trace would fix and a script keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.embed = torch.nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, rounds: int = 2) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        for number in range(rounds):
            y = torch.relu(y) + number
        if y.shape[0] > 3:
            y = y * 2
        return {"sum": y + self.embed(ids).sum(1), "plain": y}


class Saving(torch.nn.Module):
    """A script that writes a file when it is called."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x + 1


class Mapping(torch.nn.Module):
    """A script that maps a file, and makes it, when it is called."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file(self.path, True, 1)


# --- networks whose weights others trained ------------------------------------------------------------------


def _facenet(name: str) -> torch.nn.Module:
    """A network of facenet-pytorch from its own source; the rest of that module needs other packages."""
    source = unpacked("facenet-pytorch") / "facenet_pytorch" / "models" / "mtcnn.py"
    wanted = [
        node for node in ast.parse(source.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]  # fmt: skip
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "__name__": "mtcnn"}
    exec(compile(ast.Module(wanted, []), str(source), "exec"), space)
    network: torch.nn.Module = space[name](pretrained=False)
    return network


def pnet() -> torch.nn.Module:
    """Proposes faces at every place of a picture of any size."""
    return _facenet("PNet")


def rnet() -> torch.nn.Module:
    """Refines a proposal of 24 by 24 pixels."""
    return _facenet("RNet")


def onet() -> torch.nn.Module:
    """Decides on a proposal of 48 by 48 pixels."""
    return _facenet("ONet")


class VoiceEncoder(torch.nn.Module):
    """The network of resemblyzer's checkpoint, with the two numbers of its training loss."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)
        self.similarity_weight = torch.nn.Parameter(torch.zeros(1))
        self.similarity_bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        return raw / torch.norm(raw, dim=1, keepdim=True)


class VoiceEncoderForServing(VoiceEncoder):
    """The same without the numbers of the loss: a network that its checkpoint does not fit."""

    def __init__(self) -> None:
        super().__init__()
        del self.similarity_weight, self.similarity_bias


def silero() -> Any:
    """The 16 kHz network of silero-vad: chunk and state in, probability and state out."""
    file = unpacked("silero-vad") / "silero_vad" / "data" / "silero_vad.jit"
    with quietly():
        return torch.jit.load(file)._model


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """torch says that torch.jit is deprecated; people's files stay what they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def save_script(module: torch.nn.Module, path: Path) -> None:
    """Write a module as a TorchScript archive."""
    with quietly():
        torch.jit.save(torch.jit.script(module), path)


def save_trace(module: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    """Write what a module did with an example as a TorchScript archive."""
    with quietly():
        torch.jit.save(torch.jit.trace(module, example), path)


# --- trained here on real data ------------------------------------------------------------------------------


def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """float32[1797, 1, 8, 8] pictures of handwritten digits between 0 and 1, and int64[1797] their classes."""
    file = unpacked("scikit-learn") / "sklearn" / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].astype(np.int64)


def trained_on_digits() -> tuple[torch.nn.Module, np.ndarray[Any, Any]]:
    """A small convolutional network after two hundred steps on the digits, and the pictures."""
    pictures, classes = digits()
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(128, 32), torch.nn.GELU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 10),
    )  # fmt: skip
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    x, y = torch.from_numpy(pictures), torch.from_numpy(classes)
    for step in range(200):
        rows = torch.arange(step * 64, step * 64 + 64) % 1500
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    net.eval()
    with torch.no_grad():
        right = float((net(x[1500:]).argmax(1) == y[1500:]).float().mean())
    assert right > 0.8, f"the network has learned nothing: {right:.2f} of the held-out digits are right"
    return net, pictures


# --- checkpoints as others write them -----------------------------------------------------------------------


def lightning_checkpoint(module: torch.nn.Module) -> dict[str, Any]:
    """What a Lightning trainer saves of a LightningModule whose network is its attribute `net`."""
    import argparse
    from collections import OrderedDict, defaultdict

    optimiser = torch.optim.Adam(module.parameters())
    module(torch.ones(4, 6)).sum().backward()
    optimiser.step()
    state = OrderedDict((f"net.{name}", value) for name, value in module.state_dict().items())
    return {
        "epoch": 3,
        "global_step": 300,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": state | {"loss.weight": torch.ones(2)},
        "callbacks": {
            EarlyStopping: EarlyStopping(3),
            "ModelCheckpoint{'monitor': 'loss'}": {"best": np.float64(0.1)},
        },
        "optimizer_states": [optimiser.state_dict()],
        "lr_schedulers": [{"base_lrs": [0.001], "_get_lr_called_within_step": False}],
        "hparams_name": "kwargs",
        "hyper_parameters": {
            "arguments": argparse.Namespace(root=Path("/data"), seed=7),
            "shapes": np.arange(4),
            "counts": defaultdict(list, a=[1]),
            "names": {"a", "b"},
        },
    }
