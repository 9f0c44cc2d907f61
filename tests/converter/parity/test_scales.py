"""Channels far below the rest of their output: held to their own size where they have one, and said where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from paritygate.converter.parity import attest, validate_bundle
from paritygate.converter.parity.report import Certificate
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec
from support.sealed import model_of, seal

TARGETS = Signature(
    (TensorSpec("x", DType.FLOAT32, ("batch", 4)),), (TensorSpec("y", DType.FLOAT32, ("batch", 3)),)
)
WEIGHTS = np.random.RandomState(0).standard_normal((4, 3)).astype(np.float32)


def proven(directory: Path, sizes: Array, change: Array) -> Certificate:
    """Three targets of these sizes in one output; the graph multiplies each by its entry of `change`."""
    weights = WEIGHTS * sizes.astype(np.float32)

    def source(feeds: Feeds) -> dict[str, Array]:
        return {"y": feeds["x"] @ weights}

    graph = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], TARGETS, {"w": weights * change.astype(np.float32)}
    )
    bundle = seal(directory, graph, TARGETS, source)
    certificate = validate_bundle(bundle)
    if certificate.verdict == "pass":
        session = open_session(bundle.model_bytes())
        assert attest(bundle, certificate, session).verdict == "pass"
    return certificate


@pytest.mark.parametrize("small", [3e-2, 1e-9, 1e-20], ids=str)
@pytest.mark.parametrize("factor", [0.0, 1.001, -1.0])
def test_a_small_target_beside_a_large_one_is_held_to_its_own_size(
    tmp_path: Path, small: float, factor: float
) -> None:
    sizes = np.array([1e7, 1.0, small])
    sound = proven(tmp_path / "sound", sizes, np.ones(3))
    assert sound.verdict == "pass", sound.reason
    assert not [note for note in sound.notes if "channel" in note]
    wrong = proven(tmp_path / "wrong", sizes, np.array([1.0, 1.0, factor]))
    assert wrong.verdict == "fail", wrong.reason


def test_what_a_cancellation_leaves_is_not_held_to_its_own_size_and_that_is_said(tmp_path: Path) -> None:
    """The third column is what float32 loses of a number near 1e4 by adding and taking away 1e4."""

    def source(feeds: Feeds) -> dict[str, Array]:
        y = (feeds["x"] @ WEIGHTS).astype(np.float32)
        lost = (y[:, :1] + np.float32(1e4)) - np.float32(1e4) - y[:, :1]
        return {"y": np.concatenate([y[:, :2] * np.float32(100), lost], axis=1)}

    def constant(value: float, name: str) -> tuple[str, Array]:
        return name, np.array([value], np.float32)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Slice", ["p", "zero", "one", "axis"], ["first"]),
        helper.make_node("Slice", ["p", "zero", "two", "axis"], ["both"]),
        helper.make_node("Add", ["first", "big"], ["up"]),
        helper.make_node("Sub", ["up", "big"], ["down"]),
        helper.make_node("Sub", ["down", "first"], ["lost"]),
        helper.make_node("Mul", ["both", "hundred"], ["large"]),
        helper.make_node("Concat", ["large", "lost"], ["y"], axis=1),
    ]
    numbers = dict(constant(value, name) for value, name in [(1e4, "big"), (100.0, "hundred")])
    indices = {
        name: np.array([value], np.int64)
        for name, value in [("zero", 0), ("one", 1), ("two", 2), ("axis", 1)]
    }
    graph = model_of(nodes, TARGETS, {"w": WEIGHTS, **numbers, **indices})
    certificate = validate_bundle(seal(tmp_path, graph, TARGETS, source))
    assert certificate.verdict == "pass", certificate.reason
    assert [note for note in certificate.notes if "channel 2 of output 'y'" in note]
