"""Integers through the PyTorch exporter: exact at any magnitude, and asked where floats cannot hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from support.conversion import assert_parity, export_conversion, load_case

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Applied(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def quotients(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.div(a, b, rounding_mode="floor"),
        torch.div(a, b, rounding_mode="trunc"),
        a // b,
        torch.remainder(a, b),
        torch.fmod(a, b),
        torch.div(a, 4, rounding_mode="floor"),
        torch.div(a, 3, rounding_mode="trunc"),
        torch.floor_divide(a, 7),
        torch.fmod(a, 3),
        a % 5,
        torch.remainder(100, b),
        torch.div(a, b[:1], rounding_mode="floor"),
    ]


def export(function: Callable[..., Any], folder: Path, inputs: Any, **options: Any) -> Bundle:
    return export_model(Applied(function), folder / "bundle", name="net", inputs=inputs, **options)


def pairs(dtype: str, count: int) -> tuple[Any, Any]:
    """Every pair of telling values, zero divisors aside, and pairs of random bits."""
    info = np.iinfo(dtype)
    telling = [0, 1, 2, 3, 7, 100, 2**24 + 1, 2**53 + 1, 2**53 + 9, info.max - 1, info.max, info.max // 3]
    telling += [-value for value in telling] + [info.min]
    fits = np.array([value for value in telling if info.min <= value <= info.max], dtype)
    random = np.random.RandomState(5)
    draws = np.frombuffer(random.bytes(2 * count * info.bits // 8), dtype).reshape(2, count)
    a = np.concatenate([np.repeat(fits, fits.size), draws[0]])
    b = np.concatenate([np.tile(fits, fits.size), draws[1]])
    defined = (b != 0) & ~((a == info.min) & (b == -1) & (info.min < 0))  # torch itself may trap on the last
    return a[defined], b[defined]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_division_is_exact_for_every_pair(dtype: str, tmp_path: Path) -> None:
    a, b = pairs(dtype, 4000)
    bundle = export(quotients, tmp_path, (a[:4], b[:4]), input_names=["a", "b"])
    assert validate_bundle(bundle).verdict == "pass"
    answers = open_session(bundle.model_bytes()).run({"a": a, "b": b})
    expected = quotients(torch.from_numpy(a), torch.from_numpy(b))
    for (name, answer), source in zip(answers.items(), expected, strict=True):
        np.testing.assert_array_equal(answer, source.numpy(), err_msg=name)


def test_lowest_by_minus_one_wraps_and_does_not_end_the_process(tmp_path: Path) -> None:
    usual = np.array([9, -9]), np.array([2, 4])
    bundle = export(quotients, tmp_path, usual, input_names=["a", "b"])
    feeds = {"a": np.array([-(2**63), 5]), "b": np.array([-1, -1])}
    answers = list(open_session(bundle.model_bytes()).run(feeds).values())
    for quotient in answers[:3]:
        assert quotient.tolist() == [-(2**63), -5]
    for rest in answers[3:5]:
        assert rest.tolist() == [0, 0]


def test_sums_are_exact_and_wrap_as_in_torch(tmp_path: Path) -> None:
    def sums(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)]

    x = np.frombuffer(np.random.RandomState(6).bytes(8 * 60), np.int64).reshape(3, 4, 5)
    x = np.concatenate([x, np.full((1, 4, 5), 2**63 - 1)])
    bundle = export(sums, tmp_path, x[:2], input_names=["x"])
    assert validate_bundle(bundle).verdict == "pass"
    answers = open_session(bundle.model_bytes()).run({"x": x})
    for answer, source in zip(answers.values(), sums(torch.tensor(x)), strict=True):
        np.testing.assert_array_equal(answer, source.numpy())


class Ages(torch.nn.Module):
    """Days since the later of two moments, from timestamps in milliseconds; it has weights, and answers floats."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, seen: torch.Tensor, paid: torch.Tensor) -> list[torch.Tensor]:
        now = 1_760_000_000_000
        latest = torch.maximum(seen, paid).clamp(max=now)
        return [
            (now - x) / 86_400_000 * self.scale
            for x in (latest, seen.amax(1), paid.amin(1), seen.sum(1) // 7)
        ]


def test_timestamps_are_compared_and_added_as_they_are(tmp_path: Path) -> None:
    random = np.random.RandomState(8)
    moments = 1_760_000_000_000 - random.randint(2**33, size=(2, 64, 5), dtype=np.int64)
    seen, paid = moments[0], moments[1]
    bundle = export_model(Ages(), tmp_path / "bundle", name="ages", inputs=(seen, paid))
    assert validate_bundle(bundle).verdict == "pass"
    answers = open_session(bundle.model_bytes()).run({"seen": seen, "paid": paid})
    for answer, source in zip(answers.values(), Ages()(torch.tensor(seen), torch.tensor(paid)), strict=True):
        np.testing.assert_allclose(answer, source.detach().numpy(), rtol=1e-6)


def test_handed_integer_case_has_parity_and_not_only_a_report(tmp_path: Path) -> None:
    case = load_case("case_10")
    bundle = export_conversion(case, tmp_path / "bundle")
    asked, _ = wide_of(bundle)
    assert asked is not None
    assert_parity(case, bundle)


def test_float_division_keeps_its_translation(tmp_path: Path) -> None:
    def halves(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.div(x, 0.5, rounding_mode="floor"), torch.fmod(x, 0.3), x.sum(), x.sum(1), x % 0.7]

    assert validate_bundle(export(halves, tmp_path, torch.randn(2, 3))).verdict == "pass"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_leave_the_rest_that_torch_leaves(dtype: torch.dtype, tmp_path: Path) -> None:
    def rests(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        divided = [torch.remainder(x, y), x // y, torch.div(x, y, rounding_mode="floor"), torch.fmod(x, y)]
        return [*divided, x % 3.0, x % -3.0, x // 0.75, torch.remainder(5.5, y)]

    telling = [0.5, -0.5, 2.5, 1e10, -1e10, 2.0**31, -3e9, 1e30, 3e9, -0.0, 70000.0, np.inf, -np.inf, np.nan]
    x = torch.tensor(telling, dtype=dtype).repeat_interleave(6)
    y = torch.tensor([3.0, -3.0, 0.7, -0.1, 0.0, np.inf], dtype=dtype).repeat(len(telling))
    bundle = export(rests, tmp_path, (torch.randn(4, dtype=dtype), torch.rand(4, dtype=dtype) + 0.5))
    assert validate_bundle(bundle).verdict == "pass"
    names = [spec.name for spec in bundle.signature.inputs]
    answers = open_session(bundle.model_bytes()).run(dict(zip(names, (x.numpy(), y.numpy()), strict=True)))
    for (name, answer), source in zip(answers.items(), rests(x, y), strict=True):
        np.testing.assert_array_equal(answer, source.numpy(), err_msg=name)


def test_default_probes_catch_integers_that_pass_through_floats(tmp_path: Path) -> None:
    bundle = export(lambda x: torch.pow(x, x % 4), tmp_path, np.arange(6))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "extreme:wide" in str(certificate.reason)


def test_integers_are_asked_beside_the_constants_of_comparisons(tmp_path: Path) -> None:
    moment = 1_700_000_000
    bundle = export(
        lambda x: x > moment, tmp_path, torch.tensor([[moment - 86_400, moment + 86_400]]),
        input_names=["x"], integer_ranges={"x": (moment - 86_400, moment + 86_400)},
    )  # fmt: skip
    cases = [probe for probe in bundle.probes() if probe.case.startswith("extreme:constants")]
    asked = {int(n) for probe in cases for n in probe.inputs["x"].ravel()}
    assert asked == {moment - 1, moment, moment + 1}


def test_integers_are_asked_where_halves_are_compared_as_signed(tmp_path: Path) -> None:
    bundle = export(lambda x: x + 1, tmp_path, torch.arange(64), input_names=["x"])
    (half,) = [probe.inputs["x"] for probe in bundle.probes() if probe.case == "extreme:half"]
    within = (np.abs(half) >= 2**31) & (np.abs(half) < 2**32)
    assert 0.5 < within.mean() < 1


def wide_of(bundle: Bundle) -> tuple[Any, str | None]:
    """The inputs of the wide probe, if there is one, and why it was omitted, if it was."""
    asked = next((probe.inputs for probe in bundle.probes() if probe.case == "extreme:wide"), None)
    omitted = {entry["case"]: entry["reason"] for entry in bundle.manifest["probes"]["omitted"]}
    return asked, omitted.get("extreme:wide")


def test_integers_without_a_range_are_asked_beyond_what_floats_hold(tmp_path: Path) -> None:
    asked, _ = wide_of(export(lambda x: x + 1, tmp_path, np.arange(6), input_names=["x"]))
    assert np.all(np.abs(asked["x"].astype(object)) > 2**53)
    assert {-1, 1} == set(np.sign(asked["x"]).tolist())


def test_declared_range_is_kept(tmp_path: Path) -> None:
    bundle = export(lambda x: x + 1, tmp_path, np.arange(6), input_names=["x"], integer_ranges={"x": (0, 9)})
    assert wide_of(bundle) == (None, None)


def test_wide_case_that_the_source_refuses_is_omitted(tmp_path: Path) -> None:
    bundle = export(lambda x: torch.arange(10)[x], tmp_path, np.arange(6))
    asked, reason = wide_of(bundle)
    assert asked is None
    assert "the source refuses it" in str(reason)
    assert validate_bundle(bundle).verdict == "pass"


def test_wide_case_with_float_answers_is_omitted(tmp_path: Path) -> None:
    bundle = export(lambda x: torch.sin(x * 1.7), tmp_path, np.arange(6))
    asked, reason = wide_of(bundle)
    assert asked is None
    assert "is a float" in str(reason)
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.parametrize("build", [lambda: torch.nn.Embedding(9, 4), lambda: torch.nn.Linear(1, 2)])
def test_models_with_float_weights_have_no_wide_case(build: Callable[[], Any], tmp_path: Path) -> None:
    part = build()
    cast = (lambda x: x) if isinstance(part, torch.nn.Embedding) else (lambda x: x.float().unsqueeze(-1))
    model = torch.nn.Sequential(Applied(cast), part)
    bundle = export_model(model, tmp_path / "bundle", name="net", inputs=np.arange(6))
    assert wide_of(bundle) == (None, None)
    assert validate_bundle(bundle).verdict == "pass"


def test_output_under_the_name_of_an_input_is_refused_by_the_config() -> None:
    with pytest.raises(ValueError, match="output_names gives 'x', which is the name of an input"):
        ExportConfig(name="net", input_names=("x",), output_names=("x",))


def test_output_under_the_sources_name_of_an_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="output_names gives 'x', which is the name of an input"):
        export_model(Renamed(), tmp_path / "bundle", name="net", inputs=np.arange(6), output_names=["x"])


class Renamed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1
