"""Weights files of PaddlePaddle, read without it: arrays of the file's own numbers, and nothing else."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._paddle.parameters import load_parameters
from paritygate.converter.exporters._paddle.programs import refuse_code

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


class Call:
    """A pickle that calls something with arguments of the file's choice."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def written(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "net.pdparams"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_arrays_are_read_as_they_were_written(kind: Any, protocol: int, tmp_path: Path) -> None:
    content = kind(w=WEIGHT, turned=np.asfortranarray(WEIGHT), half=WEIGHT.astype(np.float16))
    arrays, _ = load_parameters(written(tmp_path, content, protocol), None, trust=False)
    assert {name: array.tolist() for name, array in arrays.items()} == dict.fromkeys(content, WEIGHT.tolist())


@pytest.mark.parametrize(
    "content",
    [
        {"w": Call(np.ndarray, (8,), "f4")},
        {"w": Call(np.ndarray, (1,), "O", b"AAAAAAAA")},
        OrderedDict(w=Call(np.ndarray, (2**40,), "i1")),
        {"w": np.array([{"an": "object"}], dtype=object)},
    ],
    ids=["memory_of_nobody", "pointers", "terabytes", "objects"],
)
def test_arrays_of_anything_else_are_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises((SourceError, UnsafeSource)) as caught:
        load_parameters(written(tmp_path, content), None, trust=False)
    assert "\n" not in str(caught.value)


def test_a_place_in_the_memo_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "net.pdparams"
    path.write_bytes(b"N" + pickle.LONG_BINPUT + (2**31 - 1).to_bytes(4, "little") + b".")
    with pytest.raises(SourceError):
        load_parameters(path, None, trust=False)


@pytest.mark.parametrize(
    "name", ["save", "load_combine_", "p_recv_array", "c_gen_xccl_id", "tensorrt_engine"]
)
def test_an_operator_that_leaves_the_program_needs_trust(name: str) -> None:
    with pytest.raises(UnsafeSource, match=rf"holds the operator '{name}'.*--trust"):
        refuse_code(["conv2d", name], Path("net.json"), trust=False)
    refuse_code(["conv2d", name], Path("net.json"), trust=True)
    refuse_code(["conv2d", "c_identity", "graph_send_recv"], Path("net.json"), trust=False)
