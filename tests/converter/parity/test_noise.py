"""Noise: measured where it can be, robust against luck and branches, absent where it cannot."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity import validate_bundle
from paritygate.converter.parity.noise import Noise, measure_noise, nudge
from paritygate.converter.parity.replay import Replay
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import DType, Signature, TensorSpec
from support.sealed import Classifier, classifier_bundle, model_of, scaled, seal


def noise_of(bundle: Bundle) -> Noise:
    replay = Replay.of(bundle)
    session = open_session(bundle.model_bytes(), optimize=False, intra_op_threads=1)
    return measure_noise(replay.probes, session, replay.scales)


@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no_float64"])
def test_the_noise_of_a_float32_model_is_a_few_rounding_errors(tmp_path: Path, float64: bool) -> None:
    noise = noise_of(classifier_bundle(tmp_path, float64=float64))
    assert {output for _, output in noise} == {"probs"}
    ordinary = [value for (case, _), value in noise.items() if not case.startswith("extreme:large")]
    assert min(ordinary) > 1e-9
    assert max(ordinary) < 1e-6


def test_a_case_that_rounds_by_luck_has_the_noise_of_the_others(tmp_path: Path) -> None:
    noise = noise_of(classifier_bundle(tmp_path, float64=False))
    assert noise["extreme:zeros", "probs"] > 0


def test_a_model_of_whole_numbers_has_no_noise_to_measure(tmp_path: Path) -> None:
    signature = Signature((TensorSpec("x", DType.INT64, (4,)),), (TensorSpec("y", DType.FLOAT32, (4,)),))
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to=1)], signature)
    bundle = seal(tmp_path, model, signature, lambda feeds: {"y": feeds["x"].astype(np.float32)})
    assert noise_of(bundle) == {}


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.01, "fail")])
def test_a_wrong_float64_form_neither_excuses_nor_condemns(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    twin = Classifier()
    bundle = seal(
        tmp_path,
        twin.model(change={"w2": scaled(factor)}),
        twin.signature,
        twin.source,
        wide=lambda feeds: {"probs": twin.wide(feeds)["probs"] + 0.5},
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == verdict
    assert "the float64 form of output 'probs'" in certificate.notes[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_nudge_moves_every_float_by_one_unit_in_the_last_place(dtype: type) -> None:
    array = np.array([1.5, -2.5, 100.0], dtype)
    moved = nudge({"x": array})["x"]
    assert moved.dtype == array.dtype
    step = {np.float16: 2e-3, np.float32: 3e-7, np.float64: 1e-15, ml_dtypes.bfloat16: 1.6e-2}[dtype]
    relative = np.abs(moved.astype(np.float64) / array.astype(np.float64) - 1)
    assert (relative > 0).all()
    assert (relative < step).all()


def test_a_nudge_leaves_other_types_and_specials_alone() -> None:
    feeds = {"ids": np.array([1, 2]), "x": np.array([np.nan, np.inf, -np.inf], np.float32)}
    moved = nudge(feeds)
    assert moved["ids"].tolist() == [1, 2]
    assert np.array_equal(moved["x"], feeds["x"], equal_nan=True)


def test_a_nudge_is_the_same_each_time() -> None:
    feeds = {"x": np.linspace(0, 1, 50, dtype=np.float32)}
    assert np.array_equal(nudge(feeds)["x"], nudge(feeds)["x"])
