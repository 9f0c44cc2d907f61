"""Certificates and attestations: JSON and back without loss, schema, and statements that contradict themselves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritygate.converter.parity import attest, validate_bundle
from paritygate.converter.parity.metrics import Specials
from paritygate.converter.parity.report import (
    Attestation,
    Certificate,
    Figure,
    RuntimeInfo,
    SelfTest,
    Worst,
    shown_share,
)
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.schemas import load_schema
from paritygate.converter.types import DemotedDim, DType, Signature, TensorSpec
from support.sealed import classifier_bundle, scaled


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return validate_bundle(classifier_bundle(tmp_path_factory.mktemp("passing")))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return validate_bundle(classifier_bundle(tmp_path_factory.mktemp("failing"), change={"w2": scaled(5.0)}))


def edited(certificate: Certificate, **changes: Any) -> dict[str, Any]:
    return certificate.to_json() | changes


def test_a_certificate_goes_to_bytes_and_back(passing: Certificate, failing: Certificate) -> None:
    for certificate in (passing, failing):
        assert Certificate.from_bytes(certificate.to_bytes()) == certificate


def test_a_real_certificate_follows_the_published_schema(passing: Certificate, failing: Certificate) -> None:
    validator = jsonschema.Draft202012Validator(load_schema("certificate.v1"))
    for certificate in (passing, failing):
        validator.validate(json.loads(certificate.to_bytes()))


def test_the_machine_form_holds_no_value_that_json_does_not_know(failing: Certificate) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(failing.to_bytes(), parse_constant=refuse)


def test_differences_are_told_in_their_unit_and_as_a_share_of_what_is_allowed(passing: Certificate) -> None:
    near = replace(passing.figures[0], max_abs_diff=0.001, scaled_error=0.5, noise_error=0.25)
    far = replace(passing.figures[1], max_abs_diff=0.25, scaled_error=0.125, noise_error=None)
    told = replace(passing, figures=(near, far))
    assert told.share == 0.5
    assert told.differences == "largest difference 2.50e-01, 50 % of what is allowed"
    noisy = replace(near, noise_error=0.75)
    demoted = replace(far, scaled_error=math.inf, counted=False)
    assert replace(passing, figures=(noisy, demoted)).share == 0.75
    assert replace(passing, figures=()).share == math.inf
    assert shown_share(math.inf) == "inf times what is allowed"
    assert 0 < passing.share <= 1
    assert shown_share(passing.share) in passing.reason


def test_the_largest_difference_leaves_out_figures_of_demoted_dims(passing: Certificate) -> None:
    figures = tuple(replace(f, max_abs_diff=math.inf, counted=False) for f in passing.figures[:1])
    assert replace(passing, figures=figures + passing.figures[1:]).max_abs_diff < 1
    assert replace(passing, figures=()).max_abs_diff == math.inf


def test_a_pass_with_a_failing_figure_is_refused(passing: Certificate, failing: Certificate) -> None:
    forged = edited(failing, verdict="pass")
    with pytest.raises(ValueError, match=r"the figures do not all pass @ \$.verdict"):
        Certificate.from_json(forged)


def test_a_pass_without_figures_is_refused(passing: Certificate) -> None:
    with pytest.raises(ValueError, match="the figures do not all pass"):
        Certificate.from_json(edited(passing, figures=[], max_abs_diff="Infinity"))


def test_a_pass_of_an_output_that_was_never_finite_is_refused(passing: Certificate) -> None:
    def only_nan(figure: Figure) -> Figure:
        counts = Specials((figure.elements, figure.elements), (0, 0), (0, 0), 0)
        return replace(figure, specials=counts) if figure.output == "probs" else figure

    hollow = replace(passing, figures=tuple(map(only_nan, passing.figures)))
    with pytest.raises(ValueError, match="output 'probs' was never finite"):
        Certificate.from_json(hollow.to_json())


def test_a_pass_of_one_session_only_is_refused(passing: Certificate) -> None:
    half = replace(passing, figures=tuple(f for f in passing.figures if f.optimized))
    with pytest.raises(ValueError, match="only one of the two sessions"):
        Certificate.from_json(half.to_json())


def test_a_pass_whose_comparator_did_not_prove_itself_is_refused(passing: Certificate) -> None:
    blind = replace(passing, self_test=SelfTest(2, 0.0, 8, 7))
    with pytest.raises(ValueError, match="the comparator did not prove itself"):
        Certificate.from_json(blind.to_json())


def test_a_pass_that_claims_an_unproven_dim_is_refused(passing: Certificate) -> None:
    with pytest.raises(ValueError, match="dim 'batch' was not proven"):
        Certificate.from_json(edited(passing, proven_ranges={}))


def test_a_largest_difference_that_is_not_that_of_the_figures_is_refused(failing: Certificate) -> None:
    with pytest.raises(ValueError, match="max_abs_diff is not the largest"):
        Certificate.from_json(edited(failing, max_abs_diff=0.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "paritygate.certificate/v2"}, r"expected \"paritygate.certificate/v1\""),
        ({"verdict": "passed"}, "expected one of pass, fail, error"),
        ({"bundle_digest": "sha256:00"}, "does not have the form"),
        ({"verdcit": "pass"}, r"unknown key \"verdcit\"; did you mean 'verdict'\?"),
        ({"figures": 3}, r"expected array, got 3 @ \$.figures"),
        ({"max_abs_diff": "big"}, "has none of the allowed forms"),
    ],
)
def test_a_document_of_another_form_is_refused(
    passing: Certificate, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Certificate.from_json(edited(passing, **change))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a":1,"a":2}'])
def test_hostile_bytes_give_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        Certificate.from_bytes(data)


def test_the_summary_fits_one_page_and_says_the_verdict(passing: Certificate, failing: Certificate) -> None:
    assert passing.summary().startswith("PASS")
    assert failing.summary().startswith("FAIL")
    many = tuple(replace(f, output=f"output_{k}") for k in range(200) for f in passing.figures[:2])
    for certificate in (passing, failing, replace(passing, figures=many, notes=("note",) * 50)):
        lines = certificate.summary().splitlines()
        assert len(lines) <= 60
        assert max(map(len, lines)) < 160 or certificate is failing


def test_the_summary_tells_the_largest_difference_and_the_worst_case_apart(passing: Certificate) -> None:
    """An extreme case may lie off by more in absolute numbers and by less of what it is allowed."""
    one = next(f for f in passing.figures if f.output == "probs" and f.optimized)
    large = replace(one, case="extreme:large", max_abs_diff=0.25, scaled_error=0.1, noise_error=0.1)
    tight = replace(one, case="sweep:batch=7", max_abs_diff=0.001, scaled_error=0.9, noise_error=0.1)
    text = replace(passing, figures=(large, tight)).summary()
    (line,) = (line for line in text.splitlines() if line.lstrip().startswith("probs"))
    assert line.split()[3:6] == ["0.25", "0.9x", "sweep:batch=7"]


def test_tolerances_that_are_no_full_table_are_refused(passing: Certificate) -> None:
    tolerances = passing.to_json()["tolerances"]
    del tolerances["rungs"]["float16"]
    with pytest.raises(ValueError, match=r"needs exactly the rungs .* @ \$.tolerances"):
        Certificate.from_json(edited(passing, tolerances=tolerances))


def test_the_summary_names_demoted_dims_omitted_cases_and_the_self_test(passing: Certificate) -> None:
    text = replace(
        passing,
        demoted=(DemotedDim("time", 5, "it raised"),),
        omitted=({"case": "sweep:batch=17", "reason": "too large"},),
    ).summary()
    assert "time is fixed at 5: it raised" in text
    assert "not asked: sweep:batch=17: too large" in text
    assert "wrong copies caught" in text


def test_an_attestation_goes_to_json_and_back_and_follows_its_schema(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    attestation = attest(bundle, validate_bundle(bundle), open_session(bundle.model_bytes()))
    document = json.loads(json.dumps(attestation.to_json()))
    jsonschema.Draft202012Validator(load_schema("attestation.v1")).validate(document)
    assert Attestation.from_json(document) == attestation


texts = st.text(max_size=20)
numbers = st.one_of(st.floats(min_value=0, allow_nan=False), st.just(math.inf), st.integers(0, 2**64))
floats = st.one_of(st.floats(min_value=0, allow_nan=False), st.just(math.inf))
counts = st.integers(0, 2**40)
pairs = st.tuples(counts, counts)
figures = st.builds(
    Figure,
    output=texts,
    case=texts,
    optimized=st.booleans(),
    rung=st.sampled_from(["float64", "float32", "float32-optimized", "float16", "bfloat16", "exact"]),
    verdict=st.sampled_from(["pass", "fail"]),
    fault=st.sampled_from(["form", "shape", "numbers", "raised", None]),
    reason=st.none() | texts,
    elements=counts,
    mismatches=counts,
    max_abs_diff=numbers,
    max_rel_diff=floats,
    scaled_error=floats,
    rmse=st.none() | floats,
    noise=st.none() | floats,
    noise_error=st.none() | floats,
    specials=st.none() | st.builds(Specials, pairs, pairs, pairs, counts),
    worst=st.none() | st.builds(Worst, st.lists(counts, max_size=4).map(tuple), texts, texts),
    counted=st.booleans(),
)
dims = st.one_of(st.integers(0, 2**31), st.text(min_size=1, max_size=8))
specs = st.builds(
    TensorSpec, st.text(min_size=1), st.sampled_from(DType), st.lists(dims, max_size=4).map(tuple)
)
certificates = st.builds(
    Certificate,
    bundle_digest=st.just("sha256:" + "0" * 64),
    model=texts,
    framework=texts,
    verdict=st.sampled_from(["fail", "error"]),
    reason=texts,
    runtime=st.builds(RuntimeInfo, texts, texts, texts, texts, texts),
    signature=st.builds(
        Signature, st.lists(specs, max_size=3).map(tuple), st.lists(specs, min_size=1, max_size=3).map(tuple)
    ),
    trace_dims=st.dictionaries(texts, counts, max_size=3),
    proven_ranges=st.dictionaries(texts, st.lists(counts, min_size=2, max_size=4).map(tuple), max_size=3),
    demoted=st.lists(st.builds(DemotedDim, texts, counts, texts), max_size=2).map(tuple),
    tolerances=st.just(ToleranceConfig().to_json()),
    self_test=st.none() | st.builds(SelfTest, counts, st.floats(0, 1), counts, counts),
    figures=st.lists(figures, max_size=4).map(tuple),
    omitted=st.lists(st.fixed_dictionaries({"case": texts, "reason": texts}), max_size=2).map(tuple),
    notes=st.lists(texts, max_size=2).map(tuple),
)


@given(certificates)
def test_any_certificate_survives_its_bytes(certificate: Certificate) -> None:
    data = certificate.to_bytes()
    assert Certificate.from_bytes(data) == certificate
    assert Certificate.from_bytes(data).to_bytes() == data
    jsonschema.Draft202012Validator(load_schema("certificate.v1")).validate(json.loads(data))
