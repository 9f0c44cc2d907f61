"""A request arrives in the child as it was sent, arrays bit for bit, and never as a pickle."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paritygate.converter.config import ExportConfig
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.types import DType, TensorSpec

_CONFIG = ExportConfig(name="m")


def _round_trip(config: ExportConfig, directory: Path) -> ExportConfig:
    ExportRequest("m.keras", config, "keras").write(directory)
    read = ExportRequest.read(directory)
    assert (read.source, read.exporter) == ("m.keras", "keras")
    return read.config


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([np.nan, -0.0, np.inf], np.float64),
        np.array(3, np.int64),
        np.array([True, False]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([["a", ""], ["ü\n", "x" * 300]], dtype=object),
        np.zeros((0, 4), np.float16),
    ],
    ids=["float32", "special-float64", "scalar", "bool", "bfloat16", "strings", "empty"],
)
def test_an_array_arrives_bit_for_bit(array: Any, tmp_path: Path) -> None:
    config = replace(_CONFIG, inputs={"x": array}, samples=({"x": array},))
    read = _round_trip(config, tmp_path)
    for back in (read.inputs["x"], read.samples[0]["x"]):
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        same = back.tolist() == array.tolist() if array.dtype == object else back.tobytes() == array.tobytes()
        assert same


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inputs": (np.ones(2, np.float32), np.ones(3, np.int32))},
        {"inputs": "x:float32[batch,3]"},
        {"inputs": (TensorSpec("x", DType.STRING, ("batch", 2)),)},
        {"dynamic": {"x": {0: "batch", 1: "time"}}, "integer_ranges": {"ids": (0, 9)}},
        {"input_names": ("a", "b"), "output_names": ("y",), "opset": 17, "trust": True, "seed": 7},
    ],
    ids=["defaults", "tuple", "words", "specs", "dynamic", "scalars"],
)
def test_every_other_field_arrives_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    config = replace(_CONFIG, **changes)
    read = _round_trip(config, tmp_path)
    for field in fields(ExportConfig):
        sent, got = getattr(config, field.name), getattr(read, field.name)
        assert type(got) is type(sent)
        assert repr(got) == repr(sent)


def test_a_function_cannot_go_to_another_process(tmp_path: Path) -> None:
    config = replace(_CONFIG, after_conversion=lambda path: None)
    with pytest.raises(EnvironmentFailure, match="after_conversion is a function of this process"):
        ExportRequest("m.keras", config, "keras").write(tmp_path)


def test_an_object_that_would_need_a_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="a complex cannot be handed to a framework environment"):
        ExportRequest("m.keras", replace(_CONFIG, inputs=1j), "keras").write(tmp_path)


def test_a_planted_pickle_in_the_arrays_is_not_opened(tmp_path: Path) -> None:
    _round_trip(replace(_CONFIG, inputs=np.ones(2)), tmp_path)
    np.savez(tmp_path / "arrays.npz", array_0=np.array([{"planted": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        ExportRequest.read(tmp_path)
