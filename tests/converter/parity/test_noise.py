"""Noise: measured where it can be, robust against luck and branches, absent where it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.parity import attest, validate_bundle
from paritygate.converter.parity.noise import (
    Noise,
    Rounding,
    add_own_rounding,
    measure_noise,
    of_one_value,
)
from paritygate.converter.parity.replay import Replay
from paritygate.converter.runtime.onnxruntime import Session, open_session
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec
from support.sealed import Classifier, classifier_bundle, model_of, scaled, seal


def noise_of(bundle: Bundle) -> Noise:
    replay = Replay.of(bundle)
    session = open_session(bundle.model_bytes(), optimize=False, intra_op_threads=1)
    return measure_noise(replay.probes, session, replay.scales)


@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no_float64"])
def test_the_noise_of_a_float32_model_is_a_few_rounding_errors(tmp_path: Path, float64: bool) -> None:
    noise = noise_of(classifier_bundle(tmp_path, float64=float64))
    assert {output for _, output in noise} == {"probs"}
    ordinary = [value.rms for (case, _), value in noise.items() if not case.startswith("extreme:large")]
    assert min(ordinary) > 1e-9
    assert max(ordinary) < 1e-6


def test_a_case_that_rounds_by_luck_has_the_noise_of_the_others(tmp_path: Path) -> None:
    noise = noise_of(classifier_bundle(tmp_path, float64=False))
    assert noise["extreme:zeros", "probs"].rms > 0


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


class Cancelling:
    """Rows of a table less their mean, which cancels nearly all of them: much of any answer is rounding."""

    signature = Signature(
        (TensorSpec("ids", DType.INT64, ("batch", 8)),), (TensorSpec("y", DType.FLOAT32, ("batch", 8)),)
    )

    def __init__(self) -> None:
        rng = np.random.RandomState(0)
        # Far from zero, so that one unit in the last place is a good part of what the mean leaves.
        self.table = (300 + rng.standard_normal((64, 8))).astype(np.float32)

    def model(self, factor: float = 1.0) -> onnx.ModelProto:
        """The graph, with all rows but the first scaled."""
        table = self.table.copy()
        table[1:] *= np.float32(factor)
        nodes = [
            helper.make_node("Gather", ["table", "ids"], ["e"]),
            helper.make_node("ReduceMean", ["e", "axis"], ["m"]),
            helper.make_node("Sub", ["e", "m"], ["d"]),
            helper.make_node("Mul", ["d", "large"], ["s"]),
            helper.make_node("ReduceSum", ["s", "last"], ["y"], keepdims=0),
        ]
        weights = {
            "table": table,
            "axis": np.array([1]),
            "last": np.array([2]),
            "large": np.array(1.0, np.float32),
        }
        return model_of(nodes, self.signature, weights)

    def answer(self, feeds: Feeds, dtype: type, error: float = 0.0) -> dict[str, Array]:
        e = self.table.astype(dtype)[feeds["ids"]]
        y = (e - e.mean(axis=1, keepdims=True)).sum(axis=2)
        return {"y": (y * (1 + error)).astype(dtype)}


@pytest.mark.parametrize(
    ("error", "factor", "verdict"),
    [(2.5e-4, 1.0, "pass"), (2.5e-4, 1.001, "fail"), (2.5e-3, 1.0, "fail")],
    ids=["source_rounds", "candidate_wrong", "too_far_off"],
)
def test_a_float64_form_that_the_candidate_confirms_shows_that_the_source_rounds(
    tmp_path: Path, error: float, factor: float, verdict: str
) -> None:
    twin = Cancelling()
    bundle = seal(
        tmp_path,
        twin.model(factor),
        twin.signature,
        lambda feeds: twin.answer(feeds, np.float32, error),
        wide=lambda feeds: twin.answer(feeds, np.float64),
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == verdict, certificate.reason
    if verdict == "pass":
        assert certificate.notes == ()
        assert attest(bundle, certificate, open_session(bundle.model_bytes())).verdict == "pass"


def test_a_float64_form_that_shares_the_graphs_fault_excuses_nothing(tmp_path: Path) -> None:
    """Both may come of one trace; in a well-conditioned model rounding explains nothing of the distance."""
    twin, wrong = Classifier(), Classifier()
    wrong.weights["w2"] = (wrong.weights["w2"] * np.float32(1.0005)).astype(np.float32)
    bundle = seal(tmp_path, wrong.model(), twin.signature, twin.source, wide=wrong.wide)
    assert validate_bundle(bundle).verdict == "fail"


def test_integer_inputs_are_no_reason_to_measure_nothing(tmp_path: Path) -> None:
    twin = Cancelling()
    bundle = seal(tmp_path, twin.model(), twin.signature, lambda feeds: twin.answer(feeds, np.float32))
    figures = validate_bundle(bundle).figures
    assert all(figure.noise and figure.noise > 1e-9 for figure in figures if figure.output == "y")


def _kernel(out: int, into: int) -> Array:
    drawn = np.random.default_rng(0).standard_normal((out, into, 3, 3))
    return (drawn / np.sqrt(into * 9)).astype(np.float32)


class Pooled:
    """Three convolutions and a mean over all positions: x float32[batch, 3, 96, 96] -> y float32[batch, 48]."""

    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, ("batch", 3, 96, 96)),),
        (TensorSpec("y", DType.FLOAT32, ("batch", 48)),),
    )

    def __init__(self) -> None:
        self.weights = {
            f"w{k}": _kernel(out, into) for k, (into, out) in enumerate([(3, 32), (32, 48), (48, 48)])
        }

    def model(self, dtype: DType = DType.FLOAT32, factor: float = 1.0) -> onnx.ModelProto:
        """The graph, in one dtype throughout, with one weight of the last convolution times `factor`."""
        nodes = []
        for k in range(3):
            before = f"r{k - 1}" if k else "x"
            stride = [2, 2] if k else [1, 1]
            pads = [1, 1, 1, 1]
            nodes.append(helper.make_node("Conv", [before, f"w{k}"], [f"c{k}"], pads=pads, strides=stride))
            nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        nodes.append(helper.make_node("GlobalAveragePool", ["r2"], ["pooled"]))
        nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
        weights = {name: value.astype(dtype.numpy) for name, value in self.weights.items()}
        weights["w2"][0, 0, 1, 1] *= factor
        signature = Signature(
            *(
                tuple(TensorSpec(spec.name, dtype, spec.shape) for spec in side)
                for side in (self.signature.inputs, self.signature.outputs)
            )
        )
        return model_of(nodes, signature, weights)

    def bundle(self, directory: Path, factor: float = 1.0, model: onnx.ModelProto | None = None) -> Bundle:
        source = ReferenceEvaluator(self.model())
        wide = ReferenceEvaluator(self.model(DType.FLOAT64))  # onnxruntime convolves no float64
        return seal(
            directory,
            model or self.model(factor=factor),
            self.signature,
            lambda feeds: {"y": source.run(None, dict(feeds))[0]},
            wide=lambda feeds: {"y": wide.run(None, {"x": feeds["x"].astype(np.float64)})[0]},
            cases=lambda cases: [case for case in cases if case.name in ("base", "extreme:ones")],
        )


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.01, "fail")])
def test_what_the_optimiser_rounds_alike_at_all_positions_is_rounding(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    certificate = validate_bundle(Pooled().bundle(tmp_path, factor))
    assert certificate.verdict == verdict, certificate.reason


def test_no_rounding_of_the_optimiser_excuses_a_fault_of_the_graph(tmp_path: Path) -> None:
    """A fault where inputs repeat one value, below what the optimiser rounds there, is one of both sessions."""
    twin = Pooled()
    model = twin.model()
    for node in model.graph.node:
        if node.output[0] == "y":
            node.output[0] = "right"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(8e-6), "fault"))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Equal", ["least", "most"], ["repeats"]),
            helper.make_node("Cast", ["repeats"], ["as_number"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", ["as_number", "fault"], ["wrong"]),
            helper.make_node("Add", ["one", "wrong"], ["factor"]),
            helper.make_node("Mul", ["right", "factor"], ["y"]),
        ]
    )
    certificate = validate_bundle(twin.bundle(tmp_path, model=model))
    assert certificate.verdict == "fail"
    plain = [f.verdict for f in certificate.figures if f.case == "extreme:ones" and not f.optimized]
    assert plain == ["fail"]


def _session(*nodes: onnx.NodeProto, **weights: float) -> Session:
    signature = Signature((TensorSpec("x", DType.FLOAT32, (4,)),), (TensorSpec("y", DType.FLOAT32, (4,)),))
    constants = {name: np.float32([value]) for name, value in weights.items()}
    return open_session(model_of(list(nodes), signature, constants).SerializeToString())


def test_what_falls_anew_when_a_value_moves_is_the_sessions_own_rounding() -> None:
    """Two ways to the 64th power differ by rounding; a factor that one of them lacks is no rounding."""
    power = _session(helper.make_node("Pow", ["x", "n"], ["y"]), n=64.0)
    by_logarithm = _session(
        helper.make_node("Log", ["x"], ["log"]),
        helper.make_node("Mul", ["log", "n"], ["product"]),
        helper.make_node("Exp", ["product"], ["y"]),
        n=64.0,
    )
    wrong = _session(
        helper.make_node("Pow", ["x", "n"], ["right"]),
        helper.make_node("Mul", ["right", "factor"], ["y"]),
        n=64.0,
        factor=1.001,
    )
    inputs = {"x": np.full(4, 1.1, np.float32)}
    probe = Probe(0, "extreme:ones", {}, inputs, power.run(inputs), None)
    size = np.asarray(1.1**64)
    noise = {(case, "y"): Rounding(1e-9, np.array(1e-9)) for case in ("base", probe.case)}
    scales = dict.fromkeys(noise, size)
    own = add_own_rounding(noise, [probe], by_logarithm, power, scales)
    assert own["base", "y"] == noise["base", "y"]
    assert 1e-7 < own[probe.case, "y"].rms < 1e-5
    assert own[probe.case, "y"].peaks.max() >= own[probe.case, "y"].rms
    assert noise[probe.case, "y"].rms == 1e-9
    steady = add_own_rounding(noise, [probe], wrong, power, scales)
    assert steady[probe.case, "y"].rms < 1e-4  # a tenth of the fault, and a thirtieth is what x moves it by
    assert add_own_rounding({}, [probe], by_logarithm, power, scales) == {}


@pytest.mark.parametrize(
    ("inputs", "repeats"),
    [
        ({"x": np.ones((2, 3), np.float32)}, True),
        ({"x": np.ones((2, 3), np.float32), "ids": np.arange(3)}, True),
        ({"x": np.ones((2, 3), np.float32), "t": np.zeros(1, np.float32)}, True),
        ({"x": np.ones((2, 3), np.float32), "y": np.arange(3.0)}, False),
        ({"t": np.ones(1, np.float32)}, False),
        ({"ids": np.ones(3, np.int64)}, False),
        ({"x": np.full((2, 3), np.nan, np.float32)}, False),
    ],
)
def test_a_case_of_one_value_repeats_it_in_every_float_input(inputs: Feeds, repeats: bool) -> None:
    assert of_one_value(Probe(0, "extreme:ones", {}, inputs, {}, None)) is repeats
