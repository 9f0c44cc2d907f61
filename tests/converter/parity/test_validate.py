"""The validator: sound models pass, changed ones fail, frozen dims are fixed, and nothing is never a proof."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from paritygate.converter.bundle import read_bundle
from paritygate.converter.errors import BundleCorrupt, ParityError
from paritygate.converter.parity import ToleranceConfig, validate_bundle
from paritygate.converter.parity.report import Certificate
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec
from support.sealed import TRACE, Classifier, classifier_bundle, model_of, scaled, seal


def frozen(name: str, shape: list[int]) -> Array:
    return np.array(shape, dtype=np.int64)


@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no_float64"])
def test_a_sound_model_passes_on_both_sessions(tmp_path: Path, float64: bool) -> None:
    certificate = validate_bundle(classifier_bundle(tmp_path, float64=float64))
    assert certificate.verdict == "pass", certificate.reason
    assert certificate.proven_ranges == {"batch": (1, 2, 3, 7, 17)}
    assert certificate.demoted == ()
    assert certificate.signature == Classifier.signature
    assert certificate.max_abs_diff < 1e-5


def test_there_is_a_figure_for_every_output_case_and_session(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    figures = validate_bundle(bundle).figures
    cases = {probe.case for probe in bundle.probes()}
    expected = {
        (output, case, mode) for output in ("probs", "label") for case in cases for mode in (True, False)
    }
    assert {(figure.output, figure.case, figure.optimized) for figure in figures} == expected
    assert len(figures) == len(expected)
    assert all(figure.worst is not None for figure in figures)


@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no_float64"])
@pytest.mark.parametrize("factor", [1.001, 1.01, 2.0, -1.0])
@pytest.mark.parametrize("weight", ["w1", "w2"])
def test_one_changed_weight_fails(tmp_path: Path, weight: str, factor: float, float64: bool) -> None:
    certificate = validate_bundle(
        classifier_bundle(tmp_path, change={weight: scaled(factor)}, float64=float64)
    )
    assert certificate.verdict == "fail"
    assert "output 'probs'" in certificate.reason
    assert certificate.demoted == ()


def test_a_failing_reason_names_output_figure_place_and_case(tmp_path: Path) -> None:
    certificate = validate_bundle(classifier_bundle(tmp_path, change={"w2": scaled(3.0)}))
    assert certificate.reason.startswith("output 'probs': max_abs_diff ")
    assert " at [" in certificate.reason
    assert "case 'base'" in certificate.reason
    assert "figures fail" in certificate.reason


def test_the_noise_key_catches_what_the_table_lets_pass(tmp_path: Path) -> None:
    certificate = validate_bundle(classifier_bundle(tmp_path, change={"w1": scaled(1.00002)}))
    bad = [figure for figure in certificate.figures if figure.verdict == "fail"]
    assert bad
    assert max(figure.scaled_error for figure in bad) < 1
    assert max(figure.noise_error or 0 for figure in bad) > 1


def test_weights_swapped_between_two_rows_fail(tmp_path: Path) -> None:
    def swap(weights: Array) -> Array:
        weights[[0, 1]] = weights[[1, 0]]
        return weights

    assert validate_bundle(classifier_bundle(tmp_path, change={"w1": swap})).verdict == "fail"


def test_a_bundle_without_probes_is_not_proven(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path, probes=())
    with pytest.raises(ParityError, match="carries no probes, so it is not proven"):
        validate_bundle(bundle)


def test_probes_without_the_base_case_are_not_proven(tmp_path: Path) -> None:
    twin = Classifier()
    bundle = seal(tmp_path, twin.model(), twin.signature, twin.source, cases=lambda cases: cases[1:])
    with pytest.raises(ParityError, match="not exactly one probe 'base' at the trace sizes"):
        validate_bundle(bundle)


def test_a_dim_that_was_never_swept_is_not_claimed(tmp_path: Path) -> None:
    twin = Classifier()
    bundle = seal(tmp_path, twin.model(), twin.signature, twin.source, cases=lambda cases: cases[:1])
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass"
    assert certificate.proven_ranges == {}
    assert [(entry.dim, entry.size) for entry in certificate.demoted] == [("batch", TRACE)]
    assert "no other size was tried" in certificate.demoted[0].reason
    assert certificate.signature == twin.signature.with_dims({"batch": TRACE})


SQUARE = Signature(
    (TensorSpec("x", DType.FLOAT32, ("batch", 4)),), (TensorSpec("y", DType.FLOAT32, ("batch", 4)),)
)


def square(feeds: Feeds) -> dict[str, Array]:
    return {"y": feeds["x"] * feeds["x"]}


def test_a_dim_baked_into_a_reshape_is_fixed_and_said_so(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("Reshape", ["s", "shape"], ["y"])]
    model = model_of(nodes, SQUARE, {"shape": frozen("shape", [TRACE, 4])})
    certificate = validate_bundle(seal(tmp_path, model, SQUARE, square))
    assert certificate.verdict == "pass"
    assert [(entry.dim, entry.size) for entry in certificate.demoted] == [("batch", TRACE)]
    assert "could not run" in certificate.demoted[0].reason
    assert certificate.signature.inputs[0].shape == (TRACE, 4)
    assert certificate.signature.outputs[0].shape == (TRACE, 4)
    assert any(not figure.counted for figure in certificate.figures)
    assert "batch is fixed at 2" in certificate.reason


def test_a_dim_frozen_as_a_divisor_is_fixed_because_numbers_are_wrong_at_every_other_size(
    tmp_path: Path,
) -> None:
    """A mean written as sum / traced size: it runs everywhere and is right at one size only."""
    signature = Signature((TensorSpec("x", DType.FLOAT32, ("n",)),), (TensorSpec("y", DType.FLOAT32, ()),))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Div", ["s", "size"], ["y"]),
    ]
    model = model_of(nodes, signature, {"size": np.array(4, np.float32)})

    def mean(feeds: Feeds) -> dict[str, Array]:
        return {"y": np.asarray(feeds["x"].mean(), dtype=np.float32)}

    certificate = validate_bundle(seal(tmp_path, model, signature, mean, trace_dims={"n": 4}))
    assert certificate.verdict == "pass", certificate.reason
    assert [(entry.dim, entry.size) for entry in certificate.demoted] == [("n", 4)]


def test_an_output_that_keeps_the_traced_shape_is_fixed(tmp_path: Path) -> None:
    """The source's outputs grow with the batch, the promised signature does not."""
    narrow = Signature(SQUARE.inputs, (TensorSpec("y", DType.FLOAT32, (TRACE, 4)),))
    model = model_of([helper.make_node("Mul", ["x", "x"], ["y"])], narrow, graph_signature=SQUARE)
    certificate = validate_bundle(seal(tmp_path, model, narrow, square))
    assert certificate.verdict == "pass"
    assert "the signature promises [2, 4]" in certificate.demoted[0].reason


def test_a_model_wrong_at_some_sizes_only_fails_and_is_not_excused(tmp_path: Path) -> None:
    """y = x*x, but rows past the fifth are zeroed: sizes 1 and 3 agree, 7 and 17 do not."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "five", "zero"], ["head"]),
        helper.make_node("Slice", ["s", "five", "many", "zero"], ["tail"]),
        helper.make_node("Sub", ["tail", "tail"], ["none"]),
        helper.make_node("Concat", ["head", "none"], ["y"], axis=0),
    ]
    numbers = {
        name: np.array([value], np.int64) for name, value in (("zero", 0), ("five", 5), ("many", 1000))
    }
    certificate = validate_bundle(seal(tmp_path, model_of(nodes, SQUARE, numbers), SQUARE, square))
    assert certificate.verdict == "fail"
    assert "sweep:batch=" in certificate.reason


def test_dims_that_vary_alone_but_not_together_leave_the_first_free(tmp_path: Path) -> None:
    """The graph takes any batch at the traced time and any time at the traced batch, but asserts b*t <= 34."""
    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, ("batch", "time")),),
        (TensorSpec("y", DType.FLOAT32, ("batch", "time")),),
    )
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]

    def double(feeds: Feeds) -> dict[str, Array]:
        return {"y": feeds["x"] + feeds["x"]}

    certificate = validate_bundle(seal(tmp_path, model_of(nodes, signature), signature, double))
    assert certificate.verdict == "pass"
    assert set(certificate.proven_ranges) == {"batch", "time"}
    assert any(figure.case.startswith("joint:") for figure in certificate.figures)


def test_a_model_that_cannot_be_loaded_is_an_error_and_not_a_pass(tmp_path: Path) -> None:
    model = model_of([helper.make_node("NoSuchOperator", ["x"], ["y"])], SQUARE)
    certificate = validate_bundle(seal(tmp_path, model, SQUARE, square))
    assert certificate.verdict == "error"
    assert "cannot load the model" in certificate.reason
    assert "\n" not in certificate.reason
    assert certificate.proven_ranges == {}
    assert Certificate.from_bytes(certificate.to_bytes()) == certificate


def test_a_model_that_cannot_be_run_at_the_base_case_is_an_error(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, SQUARE, {"shape": frozen("shape", [5, 5])})
    certificate = validate_bundle(seal(tmp_path, model, SQUARE, square))
    assert certificate.verdict == "error"
    assert "could not run the model" in certificate.reason


def test_a_model_that_is_not_repeatable_fails(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    assert validate_bundle(seal(tmp_path, model_of(nodes, SQUARE), SQUARE, square)).verdict == "fail"


def test_nan_and_infinity_of_the_source_must_be_met(tmp_path: Path) -> None:
    def log(feeds: Feeds) -> dict[str, Array]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return {"y": np.log(feeds["x"])}

    sound = seal(tmp_path / "a", model_of([helper.make_node("Log", ["x"], ["y"])], SQUARE), SQUARE, log)
    certificate = validate_bundle(sound)
    assert certificate.verdict == "pass", certificate.reason
    base = next(figure for figure in certificate.figures if figure.case == "base")
    assert base.specials is not None
    assert base.specials.nan[0] == base.specials.nan[1] > 0
    clipped = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Log", ["a"], ["y"])]
    wrong = validate_bundle(seal(tmp_path / "b", model_of(clipped, SQUARE), SQUARE, log))
    assert wrong.verdict == "fail"
    assert "NaN or infinite on one side only" in wrong.reason


def test_a_source_that_only_answers_nan_proves_nothing(tmp_path: Path) -> None:
    """NaN agrees with NaN, so any graph that divides by zero would pass."""

    def broken(feeds: Feeds) -> dict[str, Array]:
        return {"y": np.full_like(feeds["x"], np.nan)}

    nodes = [helper.make_node("Div", ["x", "zero"], ["a"]), helper.make_node("Sub", ["a", "a"], ["y"])]
    model = model_of(nodes, SQUARE, {"zero": np.array(0, np.float32)})
    certificate = validate_bundle(seal(tmp_path, model, SQUARE, broken))
    assert certificate.verdict == "error"
    assert certificate.reason == "output 'y': nothing finite was compared in any case"


def test_a_case_without_a_finite_number_among_others_is_no_fault(tmp_path: Path) -> None:
    def quotient(feeds: Feeds) -> dict[str, Array]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return {"y": feeds["x"] / feeds["x"]}

    model = model_of([helper.make_node("Div", ["x", "x"], ["y"])], SQUARE)
    certificate = validate_bundle(seal(tmp_path, model, SQUARE, quotient))
    assert certificate.verdict == "pass", certificate.reason
    assert all(figure.finite == 0 for figure in certificate.figures if figure.case == "extreme:zeros")


@pytest.mark.parametrize(
    ("dtype", "operator"),
    [
        (DType.INT64, "Identity"),
        (DType.UINT8, "Identity"),
        (DType.INT8, "Identity"),
        (DType.BOOL, "Identity"),
        (DType.STRING, "Identity"),
        (DType.FLOAT16, "Identity"),
        (DType.BFLOAT16, "Identity"),
        (DType.FLOAT64, "Identity"),
    ],
)
def test_every_kind_of_tensor_goes_through(tmp_path: Path, dtype: DType, operator: str) -> None:
    signature = Signature((TensorSpec("x", dtype, ("n", 3)),), (TensorSpec("y", dtype, ("n", 3)),))
    model = model_of([helper.make_node(operator, ["x"], ["y"])], signature)
    certificate = validate_bundle(seal(tmp_path, model, signature, lambda feeds: {"y": feeds["x"]}))
    assert certificate.verdict == "pass", certificate.reason
    assert certificate.max_abs_diff == 0


def test_an_integer_beyond_2_to_53_is_compared_exactly(tmp_path: Path) -> None:
    signature = Signature((TensorSpec("x", DType.INT64, (2,)),), (TensorSpec("y", DType.INT64, (2,)),))
    model = model_of([helper.make_node("Add", ["x", "c"], ["y"])], signature, {"c": np.array(2**60 + 1)})

    def source(feeds: Feeds) -> dict[str, Array]:
        return {"y": feeds["x"] + np.int64(2**60)}

    certificate = validate_bundle(seal(tmp_path, model, signature, source))
    assert certificate.verdict == "fail"
    assert certificate.max_abs_diff == 1


def test_a_bundle_that_was_changed_is_not_validated(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    path = bundle.path / "model.onnx"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleCorrupt, match="changed after sealing"):
        validate_bundle(bundle)


def test_weights_in_a_side_file_are_proven_too(tmp_path: Path) -> None:
    import onnx

    twin = Classifier()
    tmp_path.joinpath("src").mkdir()
    path = tmp_path / "src" / "exported.onnx"
    onnx.save_model(twin.model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    bundle = seal(tmp_path / "src", path.read_bytes(), twin.signature, twin.source, wide=twin.wide)
    assert list(bundle.external_data()) == ["model.onnx.data"]
    assert validate_bundle(read_bundle(bundle.path)).verdict == "pass"


@pytest.mark.parametrize("rung", ["float32", "float32-optimized"])
def test_tolerances_too_loose_to_tell_right_from_wrong_are_refused(tmp_path: Path, rung: str) -> None:
    loose = ToleranceConfig().changed(rung, atol=1e6, noise_floor=1e6)
    with pytest.raises(ParityError, match="does not tell right from wrong"):
        validate_bundle(classifier_bundle(tmp_path), tolerance=loose)


def test_changed_tolerances_are_recorded(tmp_path: Path) -> None:
    config = ToleranceConfig().changed("float32", rtol=1e-2)
    certificate = validate_bundle(classifier_bundle(tmp_path), tolerance=config)
    assert certificate.tolerances["default"] is False
    assert certificate.tolerances["rungs"]["float32"]["rtol"] == 1e-2
    assert "tolerances were changed" in certificate.summary()


def test_the_self_test_stands_in_the_certificate(tmp_path: Path) -> None:
    test = validate_bundle(classifier_bundle(tmp_path)).self_test
    assert test is not None
    assert test.ok
    assert test.outputs == 2
    assert test.itself_max_abs_diff == 0
    assert test.caught == test.perturbations >= 8


def test_the_certificate_of_the_same_bundle_is_the_same(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    assert validate_bundle(bundle).to_bytes() == validate_bundle(bundle).to_bytes()


@pytest.mark.parametrize("shape", [("batch", 3, 4, 4), ("batch", 4, 4, 3), ("batch", 3, "h", 4)])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (0.0, "fail"), (1.01, "fail")])
def test_a_small_channel_beside_large_ones_is_held_to_its_own_size(
    tmp_path: Path, shape: tuple[int | str, ...], factor: float, verdict: str
) -> None:
    """Pressure, temperature and humidity as images, channels first or last."""
    size = np.float32([1e3, 300.0, 1.0]).reshape((3, 1, 1) if shape[1] == 3 else (3,))
    signature = Signature((TensorSpec("x", DType.FLOAT32, shape),), (TensorSpec("y", DType.FLOAT32, shape),))
    changed = size.copy()
    changed.flat[2] *= np.float32(factor)
    nodes = [helper.make_node("Mul", ["x", "size"], ["y"])]
    bundle = seal(
        tmp_path,
        model_of(nodes, signature, {"size": changed}),
        signature,
        lambda feeds: {"y": feeds["x"] * size},
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == verdict, certificate.reason


def test_a_mask_that_leaves_nothing_of_a_row_is_named(tmp_path: Path) -> None:
    """A mean over nothing is NaN in the graph and 0 in the source."""
    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, ("batch", 4)), TensorSpec("mask", DType.INT64, ("batch", 4))),
        (TensorSpec("y", DType.FLOAT32, ("batch",)),),
    )

    def source(feeds: Feeds) -> dict[str, Array]:
        mask = feeds["mask"].astype(np.float32)
        return {"y": (feeds["x"] * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)}

    nodes = [
        helper.make_node("Cast", ["mask"], ["m"], to=1),
        helper.make_node("Mul", ["x", "m"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["m", "axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    bundle = seal(tmp_path, model_of(nodes, signature, {"axis": np.array([1])}), signature, source)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "of 'mask' is all 0 in this case" in certificate.reason
