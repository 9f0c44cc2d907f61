"""Runs inside the paddle environment: exports there under watch, and says what it saw.

paddle_zoo.py OUT      writes OUT/<name>/ (bundles) and OUT/report.json
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import get_exporter
from paritygate.converter.exporters._paddle import conversion, process

REACHES_OUT = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
               "socket.getaddrinfo")  # fmt: skip
"""What Python says (audit events) when it starts a process or opens a connection."""

WATCH = """
import json, runpy, sys
seen, reaches_out, log, script = [], sys.argv.pop(1).split(","), sys.argv.pop(1), sys.argv[1]
sys.addaudithook(lambda event, details: event in reaches_out and seen.append(f"{event} {details[:1]}"))
sys.argv.pop(0)
runpy.run_path(script, run_name="__main__")
parts = [name for name in ("pip", "polygraphy", "paddle2onnx", "onnxruntime", "onnx") if name in sys.modules]
open(log, "w").write(json.dumps({"reached": seen, "imported": parts}))
"""


class _Made:
    """A pickle of this makes a file when it is opened."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


class Foldable(paddle.nn.Layer):  # type: ignore[misc]
    """Half of it depends on no input, so that a folder of constants has work."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = paddle.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        scale = paddle.exp(paddle.arange(3, dtype="float32") / 3.0) * paddle.ones([3])
        return self.layer(x) * scale


class Branching(paddle.nn.Layer):  # type: ignore[misc]
    """What it computes depends on the numbers: traced once, it must not be taken for what it always does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = paddle.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if y.sum() > 0:
            return y * 2
        return y - 1


def _export(out: Path, name: str, source: Any, **options: Any) -> None:
    get_exporter("paddle").export(source, out / name, ExportConfig(name=name.replace("_", "-"), **options))


def watched(out: Path) -> dict[str, Any]:
    """Export with both processes under watch: this one and the one that converts."""
    started: list[str] = []
    reached: list[str] = []
    logs: list[Path] = []
    original = process.run_supervised

    def run(command: Any, **options: Any) -> Any:
        command = [str(part) for part in command]
        if "converting.py" in " ".join(command):
            logs.append(out / f"child_{len(logs)}.json")
            place = next(k for k, part in enumerate(command) if part.endswith("converting.py"))
            watch = ["-c", WATCH, ",".join(REACHES_OUT), str(logs[-1])]
            command = [*command[:place], *watch, *command[place:]]
        return original(command, **options)

    def listen(event: str, details: Any) -> None:
        if event == "subprocess.Popen":
            started.append(" ".join(map(str, details[1])))
        elif event in REACHES_OUT:
            reached.append(event)

    process.run_supervised = run
    sys.addaudithook(listen)
    try:
        _export(out, "foldable", Foldable(), inputs={"x": np.ones((2, 4), np.float32)})
    finally:
        process.run_supervised = original
    children = [json.loads(log.read_text()) for log in logs]
    listening, started[:] = list(started), []
    subprocess.run([sys.executable, "-c", ""], check=True)
    return {"started": listening, "reached": reached, "children": children, "hears": len(started) == 1}


def traced(out: Path) -> dict[str, Any]:
    """A layer that the user has handed to paddle.jit.to_static."""
    paddle.seed(0)
    _export(out, "traced", paddle.jit.to_static(Foldable()), inputs={"x": np.ones((2, 4), np.float32)})
    return {}


def branching(out: Path) -> dict[str, Any]:
    paddle.seed(0)
    _export(out, "branching", Branching(), inputs={"x": np.ones((2, 4), np.float32)})
    return {}


def beside(out: Path) -> dict[str, Any]:
    """A clean program beside which lies a pickle that paddle's own loader would open."""
    net = paddle.nn.Linear(4, 3)
    spec = [paddle.static.InputSpec([None, 4], "float32", name="x")]
    paddle.jit.save(net, str(out / "files" / "net"), input_spec=spec)
    canary = out / "canary"
    (out / "files" / "net.pdiparams.info").write_bytes(pickle.dumps(_Made(canary)))
    _export(out, "beside", out / "files" / "net.json")
    opened = canary.exists()
    pickle.loads((out / "files" / "net.pdiparams.info").read_bytes())
    return {"opened": opened, "alive": canary.exists()}


class TwoInputs(paddle.nn.Layer):  # type: ignore[misc]
    def forward(self, left: Any, right: Any) -> Any:
        return left - right * 2


PAIR = {"a": np.ones((2, 4), np.float32), "b": np.zeros((2, 4), np.float32)}


class NearZero(paddle.nn.Layer):
    """Its answers are of one size over all inputs, so that no digit hides behind a larger answer."""

    def forward(self, x: Any) -> Any:
        return paddle.log1p(x) / x, paddle.expm1(x) / x, paddle.log(1.0 + x), paddle.acos(x / 8.0)


def near_zero(out: Path) -> dict[str, Any]:
    """log1p and expm1 beside a user's own sum, and beside an operator that else stands in for one of them."""
    x = np.array([[1e-6, -2e-7, 3e-8], [1e-20, -0.5, 5.0]], np.float32)
    _export(out, "near_zero", NearZero(), inputs={"x": x}, samples=[{"x": x}], include_samples=True)
    return {}


def renamed(out: Path) -> dict[str, Any]:
    """One input by a name of the user's own, as `--input 'flower:float32[batch,4]' --input-name x` gives it."""
    net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Tanh())
    _export(
        out, "renamed", net, inputs={"flower": np.ones((2, 4), np.float32)}, dynamic={"flower": {0: "rows"}},
        input_names=("x",),
    )  # fmt: skip
    return {}


def two_by_other_names(out: Path) -> dict[str, Any]:
    _export(out, "two", TwoInputs(), inputs=PAIR)
    return {}


def one_of_two(out: Path) -> dict[str, Any]:
    _export(out, "one", TwoInputs(), inputs={"a": PAIR["a"]})
    return {}


def two_mistyped(out: Path) -> dict[str, Any]:
    """By position they would change places."""
    _export(out, "mistyped", TwoInputs(), inputs=["rigth:float32[batch,4]", "left:float32[batch,4]"])
    return {}


def killed(out: Path) -> dict[str, Any]:
    """paddle2onnx ends its process over an opset; the check that spares it is set aside."""
    before = conversion.check_opset
    conversion.check_opset = lambda _opset: None
    try:
        program = out / "files" / "net.json"
        with process.paddle2onnx() as converter:
            conversion.convert_program(converter, program, program.with_suffix(".pdiparams"), 99)
    finally:
        conversion.check_opset = before
    return {}


def crashed(out: Path) -> dict[str, Any]:
    """Its extension module dies of a signal."""
    fake = out / "extension.py"
    fake.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    before = process._extension
    process._extension = lambda: fake
    try:
        program = out / "files" / "net.json"
        with process.paddle2onnx() as converter:
            conversion.convert_program(converter, program, program.with_suffix(".pdiparams"), 18)
    finally:
        process._extension = before
    return {}


def main(out: Path) -> None:
    (out / "files").mkdir()
    report: dict[str, Any] = {}
    cases: list[Callable[[Path], dict[str, Any]]] = [
        watched, traced, branching, beside, renamed, two_by_other_names, one_of_two, two_mistyped, killed, crashed,
        near_zero,
    ]  # fmt: skip
    for case in cases:
        try:
            report[case.__name__] = case(out)
        except ConverterError as error:
            report[case.__name__] = {"error": type(error).__name__, "said": str(error)}
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
