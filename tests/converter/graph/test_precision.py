"""Working precision: the coarsest float input or the type of most weights, never that of one odd constant."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from paritygate.converter.graph.precision import working_precision
from paritygate.converter.types import DType, Signature, TensorSpec
from support.sealed import model_of


@pytest.mark.parametrize(
    ("given", "weights", "expected"),
    [
        (DType.FLOAT32, {"a": np.ones(9, np.float32)}, DType.FLOAT32),
        (DType.FLOAT32, {"a": np.ones(9, np.float32), "b": np.ones(1, np.float16)}, DType.FLOAT32),
        (DType.FLOAT32, {"a": np.ones(1, np.float32), "b": np.ones(9, np.float16)}, DType.FLOAT16),
        (DType.FLOAT16, {"a": np.ones(9, np.float32)}, DType.FLOAT16),
        (DType.FLOAT64, {"a": np.ones(9, np.float64)}, DType.FLOAT64),
        (DType.INT64, {"a": np.ones(9, np.float16), "ids": np.ones(99, np.int64)}, DType.FLOAT16),
        (DType.INT64, {"ids": np.ones(9, np.int64)}, None),
    ],
)
def test_working_precision(given: DType, weights: dict[str, np.ndarray], expected: DType | None) -> None:  # type: ignore[type-arg]
    signature = Signature((TensorSpec("x", given, (1,)),), (TensorSpec("y", given, (1,)),))
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], signature, weights)
    assert working_precision(model) is expected
