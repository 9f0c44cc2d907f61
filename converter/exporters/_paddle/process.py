"""paddle2onnx in a process of its own: it ends the process that it runs in over what it cannot convert."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._paddle.programs import Operation
from paritygate.converter.processes import Ended, run_supervised

TIMEOUT_S = 1800.0

# Names under which paddle2onnx lists what it supports, where the program calls it otherwise. Source: paddle's
# paddle/phi/ops/yaml/op_compat.yaml. Only used to explain a refusal, never to decide one.
_OLD_NAMES = {
    "add": "elementwise_add", "subtract": "elementwise_sub", "multiply": "elementwise_mul",
    "divide": "elementwise_div", "floor_divide": "elementwise_floordiv", "remainder": "elementwise_mod",
    "maximum": "elementwise_max", "minimum": "elementwise_min", "matmul": "matmul_v2", "sum": "reduce_sum",
    "mean": "reduce_mean", "max": "reduce_max", "min": "reduce_min", "prod": "reduce_prod", "all": "reduce_all",
    "any": "reduce_any", "argmax": "arg_max", "argmin": "arg_min", "topk": "top_k_v2", "expand": "expand_v2",
    "nonzero": "where_index", "flatten": "flatten_contiguous_range", "arange": "range", "unsqueeze": "unsqueeze2",
    "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "batch_norm_": "batch_norm", "scatter_": "scatter",
    "fill_constant": "full", "assign_value_": "assign_value", "full_": "full", "grid_sample": "grid_sampler",
    "deformable_conv": "deformable_conv", "relu_": "relu", "scale_": "scale", "crop": "crop_tensor",
}  # fmt: skip

_STRUCTURE = {"data", "feed", "fetch", "combine", "split", "slice", "if", "while", "yield", "shadow_output"}


class Paddle2Onnx:
    """One conversion to come: the process that does it loads paddle's libraries while the program is made."""

    def __init__(self, orders_fd: int, ending: Future[Ended], said: _Said) -> None:
        self._orders_fd = orders_fd
        self._ending = ending
        self._said = said

    def convert(
        self, program: Path, parameters: Path | None, opset: int, target: Path, known: list[Operation]
    ) -> None:
        """Convert a program; can be called once.

        Args:
            program: The program in paddle's JSON form.
            parameters: Its weights, or None if it has none.
            opset: Version of the default operator set.
            target: The ONNX file to write.
            known: The operators of the program, to say where a refused one stands.

        Raises:
            UnsupportedOperator: If an operator cannot be converted.
            ExportError: If the conversion fails otherwise.
        """
        orders = [str(program), str(parameters or ""), str(opset), str(target)]
        with contextlib.suppress(BrokenPipeError):  # it is dead already; how it ended says more
            os.write(self._orders_fd, json.dumps(orders).encode() + b"\n")
        ended = self._ending.result()
        if not ended.ok or not target.exists():
            raise self._said.error(ended, known)


@contextlib.contextmanager
def paddle2onnx() -> Iterator[Paddle2Onnx]:
    """Start the process, and stop it at the end of the block whatever it does then.

    Raises:
        ExportError: If paddle2onnx is not wholly installed.
    """
    command: list[str | Path] = [
        sys.executable,
        "-I",
        Path(__file__).with_name("converting.py"),
        _extension(),
    ]
    said, over = _Said(), threading.Event()

    def stop_if_over() -> None:
        if over.is_set():
            raise _GivenUp

    with contextlib.ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="paddle2onnx"))
        stack.callback(over.set)
        stack.callback(os.close, writing)  # no orders came: the process ends by itself
        ending = thread.submit(
            run_supervised,
            command,
            timeout_s=TIMEOUT_S,
            environment=_environment(),
            stdin=reading,
            on_output=said.hear,
            on_tick=stop_if_over,
        )
        yield Paddle2Onnx(writing, ending, said)


class _GivenUp(Exception):
    """Nobody waits for the process any more."""


class _Said:
    """What paddle2onnx says while it works, as far as it tells where it stopped."""

    def __init__(self) -> None:
        self.exporting = ""
        self.unsupported = False
        self.fault = ""

    def hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        started = re.match(r"\[Paddle2ONNX\] Start export (\S+), op_id", text)
        if started is not None:
            self.exporting = started[1]
        elif text.startswith("[Paddle2ONNX] Finish export"):
            self.exporting = ""
        elif "unsupported operators" in text:
            self.unsupported = True
        elif not self.fault:
            self.fault = _fault_in(text)

    def error(self, ended: Ended, known: list[Operation]) -> ExportError:
        """Why there is no ONNX file."""
        if self.unsupported:
            return _unsupported(known)
        fault = self.fault or f"its process {ended.describe()}"
        if not self.exporting:
            return ExportError(f"paddle2onnx could not convert the model: {fault}")
        operation = _at(known, self.exporting)
        return UnsupportedOperator(
            f"paddle2onnx cannot convert {operation.name}{operation.where}: {fault}",
            operator=operation.name,
            module=operation.layer,
        )


def _at(known: list[Operation], name: str) -> Operation:
    plain = name.rpartition(".")[2]
    return next((entry for entry in known if entry.name == plain), Operation(plain, None))


def _fault_in(text: str) -> str:
    found = re.search(r"\[ERROR\](?:\[Paddle2ONNX\])?\s*(.+)|^RuntimeError: (.+)", text)
    return "" if found is None else (found[1] or found[2]).strip()[:300]


def _extension() -> Path:
    """paddle2onnx's extension module; its Python package is not imported."""
    spec = importlib.util.find_spec("paddle2onnx")
    assert spec is not None, "checked when the exporter was opened"
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("paddle2onnx_cpp2py_export*.so"))
    if not found:
        raise ExportError("paddle2onnx is installed without its extension module; install it again.")
    return found[0]


def _environment() -> dict[str, str]:
    """The extension needs paddle's own libraries, which its wheel looks for where it was built."""
    spec = importlib.util.find_spec("paddle")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    path = os.pathsep.join(
        filter(None, [str(package / "base"), str(package / "libs"), os.environ.get("LD_LIBRARY_PATH")])
    )
    return {**os.environ, "LD_LIBRARY_PATH": path}


def _unsupported(known: list[Operation]) -> UnsupportedOperator:
    import paddle2onnx.paddle2onnx_cpp2py_export as extension

    supported = set(extension.get_all_supported_operators_pir())
    lacking = [entry for entry in known if not _is_supported(entry.name, supported)]
    first = lacking[0] if lacking else Operation("an operator", None)
    names = ", ".join(dict.fromkeys(entry.name for entry in lacking)) or "an operator that it does not name"
    return UnsupportedOperator(
        f"paddle2onnx has no ONNX form of {names}{first.where}; write that part with other operators.",
        operator=first.name,
        module=first.layer,
    )


def _is_supported(name: str, supported: set[str]) -> bool:
    spellings = {name, _OLD_NAMES.get(name, name), name.rstrip("_"), f"builtin_{name}"}
    return name in _STRUCTURE or bool(spellings & supported)
