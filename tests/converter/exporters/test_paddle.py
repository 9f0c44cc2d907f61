"""PaddlePaddle: weights files that are read without running them, and the process that converts."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._paddle.parameters import load_parameters
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in

_ZOO = Path(__file__).parents[2] / "support" / "paddle_zoo.py"

# --- weights files ------------------------------------------------------------------------------------------


def _weights() -> dict[str, Any]:
    return {"body.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "body.bias": np.zeros(3)}


def _written(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "net.pdparams"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("content", "selection"),
    [
        (_weights(), "raw"),
        (collections.OrderedDict(_weights()), "raw"),
        ({**_weights(), "StructuredToParameterName@@": {"body.weight": "linear_0.w_0"}}, "raw"),
        ({"model": _weights(), "epoch": 3}, "checkpoint key model"),
        ({"state_dict": {k: (f"p_{k}", a) for k, a in _weights().items()}}, "checkpoint key state_dict"),
    ],
    ids=["plain", "ordered", "with-names", "training", "named-tuples"],
)
def test_weights_are_read_from_every_form_that_paddle_writes(
    content: Any, selection: str, protocol: int, tmp_path: Path
) -> None:
    arrays, chosen = load_parameters(_written(tmp_path, content, protocol), None, trust=False)
    assert chosen == selection
    assert set(arrays) == set(_weights())
    for name, array in _weights().items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def _payloads(canary: Path) -> dict[str, bytes]:
    path = str(canary).encode()
    return {
        "called": pickle.dumps({"w": np.zeros(2), "x": _Calls(os.mkdir, str(canary))}),
        "called-by-its-old-opcode": b"(S'" + path + b"'\nios\nmkdir\n.",
        "by-its-global-name": b"cos\nmkdir\n(S'" + path + b"'\ntR.",
        "under-an-allowed-module": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__mro__"
        b"\x93\x8c\x05numpy\x8c\x0cf2py.compile\x93.",
        "through-another-codec": b"c_codecs\nencode\n(Vx\nVbz2\ntR.",
        "through-a-builtin": pickle.dumps(_Calls(eval, f"__import__('os').mkdir({str(canary)!r})")),
    }


@pytest.mark.parametrize("name", _payloads(Path("/canary")))
def test_code_in_weights_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = _written(tmp_path, _payloads(canary)[name])
    with pytest.raises(UnsafeSource, match=r"asks for .* when it is opened, which could run code.*--trust"):
        load_parameters(path, None, trust=False)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["called", "called-by-its-old-opcode", "by-its-global-name"])
def test_the_same_code_runs_with_trust_so_the_payload_is_alive(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = _written(tmp_path, _payloads(canary)[name])
    with contextlib.suppress(SourceError):  # what two of them leave behind is no dict of weights
        load_parameters(path, None, trust=True)
    assert canary.exists()


def test_array_of_terabytes_in_a_few_bytes_takes_no_memory(tmp_path: Path) -> None:
    bomb = pickle.dumps({"w": _Calls(np.ndarray, (2**45,), "f8")})
    with pytest.raises(SourceError, match="cannot be read as weights"):
        load_parameters(_written(tmp_path, bomb), None, trust=False)


@pytest.mark.parametrize(
    ("content", "key", "match"),
    [
        ([1, 2], None, "holds a list, not a dict of weights"),
        ({"epoch": 3}, None, "holds no weights, but epoch"),
        ({"model": _weights()}, "modle", r"no entry 'modle'; it holds model\. Did you mean 'model'\?"),
        ({"model": _weights(), "epoch": 3}, "epoch", "'epoch' holds no weights"),
        (pickle.dumps(_weights())[:-30], None, "cut short"),
        (b"", None, "cut short"),
    ],
    ids=["list", "no-weights", "misspelt-key", "key-of-no-weights", "cut", "empty"],
)
def test_file_without_weights_is_refused_in_one_line(
    content: Any, key: str | None, match: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        load_parameters(_written(tmp_path, content), key, trust=False)
    assert "\n" not in str(caught.value)


# --- in the environment -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `support/paddle_zoo.py` exported and saw, in one process of the paddle environment."""
    folder = tmp_path_factory.mktemp("paddle")
    (folder / "out").mkdir()
    run_in(real_environment("paddle"), _ZOO, folder / "out", folder=folder)
    return folder / "out"


def _report(zoo: Path, case: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((zoo / "report.json").read_text())[case]
    return report


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
def test_constants_are_folded_without_pip_and_without_network(zoo: Path) -> None:
    """paddle2onnx's Python part would have polygraphy install what it lacks; here nothing reaches out."""
    seen = _report(zoo, "watched")
    assert "error" not in seen, seen
    assert seen["hears"], "the watch heard nothing, not even a process that was started for it"
    assert seen["reached"] == []
    assert seen["started"], "the conversion did not run in a process of its own"
    assert all("converting.py" in command for command in seen["started"]), seen["started"]
    assert len(seen["children"]) == len(seen["started"])
    assert all(child == {"reached": [], "imported": []} for child in seen["children"]), seen["children"]


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
@pytest.mark.parametrize("name", ["foldable", "traced", "branching", "beside", "renamed", "near_zero"])
def test_layer_becomes_a_bundle_that_computes_the_same(name: str, zoo: Path) -> None:
    case = {"foldable": "watched"}.get(name, name)
    assert "error" not in _report(zoo, case), _report(zoo, case)
    certificate = validate_bundle(read_bundle(zoo / name))
    assert certificate.verdict == "pass", certificate.reason


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
def test_lone_input_may_have_a_name_of_its_own(zoo: Path) -> None:
    assert "error" not in _report(zoo, "renamed"), _report(zoo, "renamed")
    (spec,) = read_bundle(zoo / "renamed").signature.inputs
    assert (spec.name, spec.shape) == ("x", ("rows", 4))


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            "two_by_other_names",
            "the example has the inputs ['a', 'b'], but forward of TwoInputs takes ['left', 'right']; use those "
            "names (--input, ",
        ),
        (
            "one_of_two",
            "the example has the inputs ['a'], but forward of TwoInputs takes ['left', 'right']; use",
        ),
        ("two_mistyped", "forward of TwoInputs takes ['left', 'right'], and none 'rigth': is 'right' meant?"),
    ],
)
def test_several_inputs_by_other_names_are_told_which_to_use(case: str, text: str, zoo: Path) -> None:
    seen = _report(zoo, case)
    assert seen["error"] == "ExportError"
    assert text in seen["said"]


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
def test_pickle_beside_a_program_is_never_opened(zoo: Path) -> None:
    assert _report(zoo, "beside") == {"opened": False, "alive": True}


@pytest.mark.real
@pytest.mark.xdist_group("paddle")
@pytest.mark.parametrize(
    ("case", "text"),
    [("killed", "paddle2onnx could not convert the model: "), ("crashed", "killed by SIGSEGV")],
)
def test_end_of_the_converting_process_is_one_clear_line(case: str, text: str, zoo: Path) -> None:
    seen = _report(zoo, case)
    assert seen["error"] == "ExportError"
    assert text in seen["said"]
    assert "\n" not in seen["said"]
