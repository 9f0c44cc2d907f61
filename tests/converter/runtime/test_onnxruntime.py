"""The session builder: what runs is what was asked for, every dtype goes through, and faults are one line."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from paritygate.converter.errors import ModelInvalid, ModelRunError, RuntimeUnavailable
from paritygate.converter.runtime import onnxruntime as runtime
from paritygate.converter.runtime.onnxruntime import CPU, check_installation, open_session
from paritygate.converter.types import Array, DType, Signature, TensorSpec
from support.sealed import Classifier, model_of


def identity(dtype: DType, shape: tuple[int | str, ...] = ("n",)) -> bytes:
    signature = Signature((TensorSpec("x", dtype, shape),), (TensorSpec("y", dtype, shape),))
    return model_of([helper.make_node("Identity", ["x"], ["y"])], signature).SerializeToString()


def test_a_session_tells_signature_providers_and_version() -> None:
    session = open_session(Classifier().model().SerializeToString())
    assert session.signature == Classifier.signature
    assert session.providers == (CPU,)
    assert session.runtime_version == metadata.version("onnxruntime")
    assert session.optimized
    assert not open_session(Classifier().model().SerializeToString(), optimize=False).optimized


@pytest.mark.parametrize("optimize", [True, False])
def test_a_session_computes(optimize: bool) -> None:
    twin = Classifier()
    x = np.random.RandomState(0).standard_normal((5, 6)).astype(np.float32)
    found = open_session(twin.model().SerializeToString(), optimize=optimize).run({"x": x})
    expected = twin.source({"x": x})
    assert np.allclose(found["probs"], expected["probs"], atol=1e-6)
    assert np.array_equal(found["label"], expected["label"])


def test_outputs_can_be_chosen() -> None:
    session = open_session(Classifier().model().SerializeToString())
    assert list(session.run({"x": np.ones((1, 6), np.float32)}, ["label"])) == ["label"]


def example(dtype: DType, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    if dtype is DType.STRING:
        array = np.empty(count, object)
        array[:] = [f"ü{k}\0" for k in range(count)]
        return array.reshape(shape)
    return np.arange(count).astype(dtype.numpy).reshape(shape)


@pytest.mark.parametrize("shape", [(3,), (0,), (2, 2), ()], ids=str)
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_every_dtype_goes_through(dtype: DType, shape: tuple[int, ...]) -> None:
    array = example(dtype, shape)
    found = open_session(identity(dtype, shape)).run({"x": array})["y"]
    assert found.dtype == array.dtype
    assert found.shape == shape
    assert found.tolist() == array.tolist()


def test_bfloat16_beside_other_types_goes_through() -> None:
    signature = Signature(
        (TensorSpec("x", DType.BFLOAT16, (2,)), TensorSpec("z", DType.FLOAT32, (2,))),
        (TensorSpec("y", DType.FLOAT32, (2,)), TensorSpec("w", DType.BFLOAT16, (2,))),
    )
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=1), helper.make_node("Cast", ["z"], ["w"], to=16)]
    session = open_session(model_of(nodes, signature).SerializeToString())
    found = session.run({"x": np.array([1.5, -2], ml_dtypes.bfloat16), "z": np.array([3, 4], np.float32)})
    assert found["y"].tolist() == [1.5, -2.0]
    assert found["w"].dtype == ml_dtypes.bfloat16
    assert found["w"].tolist() == [3.0, 4.0]


def test_inputs_need_not_lie_in_order_in_memory() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(open_session(identity(DType.FLOAT32, (4, 3))).run({"x": array})["y"], array)


@pytest.mark.parametrize(
    ("feeds", "outputs", "message"),
    [
        ({}, None, "input 'x' is missing; the model takes x: float32"),
        ({"x": np.ones((1, 6), np.float32), "z": np.ones(1)}, None, "no input 'z'; its inputs are x"),
        ({"x": np.ones((1, 6))}, None, r"input 'x' is float64\[1, 6\]; the model takes x: float32"),
        ({"x": np.ones(6, np.float32)}, None, r"input 'x' is float32\[6\]"),
        ({"x": np.ones((1, 6), np.float32)}, ["prob"], "no output 'prob'; its outputs are probs, label"),
        ({"x": np.ones((1, 7), np.float32)}, None, "could not run the model: .*"),
    ],
)
def test_feeds_that_do_not_fit_are_one_line(feeds: Any, outputs: Any, message: str) -> None:
    session = open_session(Classifier().model().SerializeToString())
    with pytest.raises(ModelRunError, match=message) as caught:
        session.run(feeds, outputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"junk", Classifier().model().SerializeToString()[:-9]])
def test_a_truncated_model_is_one_line(data: bytes) -> None:
    with pytest.raises(ModelInvalid) as caught:
        open_session(data)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"cannot read .*absent.onnx: No such file"):
        open_session(tmp_path / "absent.onnx")


def side_file(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save_model(
        Classifier().model(), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return path


def test_weights_beside_the_file_are_taken_from_disk_or_from_memory(tmp_path: Path) -> None:
    path = side_file(tmp_path)
    x = {"x": np.ones((1, 6), np.float32)}
    from_disk = open_session(path).run(x)
    weights = (tmp_path / "w.bin").read_bytes()
    data = path.read_bytes()
    (tmp_path / "w.bin").unlink()
    from_memory = open_session(data, external_data={"w.bin": weights}).run(x)
    assert np.array_equal(from_disk["probs"], from_memory["probs"])


def test_bytes_never_read_weights_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = side_file(tmp_path).read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelInvalid, match=r"keeps weights in 'w\.bin', which was not given"):
        open_session(data)


def test_a_path_whose_weights_lie_outside_is_refused(tmp_path: Path) -> None:
    model = onnx.load(side_file(tmp_path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../w.bin"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelInvalid, match="not a file name inside the model's directory"):
        open_session(tmp_path / "m.onnx")


def test_a_provider_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeUnavailable, match="CUDAExecutionProvider is not in this onnxruntime"):
        open_session(identity(DType.FLOAT32), providers=("CUDAExecutionProvider", CPU))


def test_no_provider_is_refused() -> None:
    with pytest.raises(RuntimeUnavailable, match="no execution provider was asked for"):
        open_session(identity(DType.FLOAT32), providers=())


class Fallback:
    """An onnxruntime that lists CUDA and then silently runs on the CPU, as the real one does without a GPU."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", CPU]

    def InferenceSession(self, source: Any, options: Any, providers: list[str]) -> Any:
        return self._real.InferenceSession(source, options, providers=[CPU])


def test_a_silent_fall_back_to_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(runtime, "_onnxruntime", lambda: Fallback(onnxruntime))
    with pytest.raises(RuntimeUnavailable, match=r"CUDAExecutionProvider did not start; .* fell back to CPU"):
        open_session(identity(DType.FLOAT32), providers=("CUDAExecutionProvider",))


def test_two_wheels_that_overwrite_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "onnxruntime_gpu-1.31.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeUnavailable, match="onnxruntime and onnxruntime-gpu are both installed"):
        check_installation()


def test_no_wheel_names_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WHEELS", ("no-such-wheel",))
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'paritygate\[cpu\]'"):
        check_installation()


def test_a_session_runs_from_many_threads() -> None:
    session = open_session(identity(DType.FLOAT32))
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(20):
            if session.run({"x": np.full(8, k, np.float32)})["y"].tolist() != [k] * 8:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


EXPORTER_HALF = (
    "types",
    "errors",
    "bundle",
    "graph.inspect",
    "graph.external",
    "graph.precision",
    "parity",
    "parity.feeds",
    "parity.report",
    "schemas",
)


def test_the_exporter_half_imports_without_a_runtime() -> None:
    block: Callable[[str], str] = lambda name: f"sys.modules[{name!r}] = None"  # noqa: E731
    blocked = "; ".join(
        map(block, ("onnxruntime", "torch", "tensorflow", "grpc", "fastapi", "yaml", "typer"))
    )
    imports = "; ".join(f"import paritygate.converter.{name}" for name in EXPORTER_HALF)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {blocked}; {imports}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
