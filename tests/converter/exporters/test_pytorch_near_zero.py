"""What torch computes by log1p and expm1 keeps its digits near zero, as a module and as a script."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

SMALL = [[1e-3, -1e-3, 1e-6, -1e-6, 2e-7, -3e-8, 1e-20, -0.5, -0.999, 5.0, 88.0]]


class Curves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "log1p": torch.log1p(x),
            "expm1": torch.expm1(x),
            "elu": torch.nn.functional.elu(x, alpha=1.7),
            "selu": torch.nn.functional.selu(x),
            "celu": torch.nn.functional.celu(x, 1.3),
            "logsigmoid": torch.nn.functional.logsigmoid(x),
            "logaddexp": torch.logaddexp(x, 2 * x),
            "logaddexp2": torch.logaddexp2(x, -x),
        }


class Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(1 + x) + (torch.exp(x) - 1)


@pytest.fixture(autouse=True)
def scripting_is_deprecated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        yield


def curves(kind: str) -> Any:
    return torch.jit.script(Curves()) if kind == "script" else Curves()


def export(source: Any, folder: Path, x: Any) -> Bundle:
    bundle = export_model(source, folder / "bundle", name="net", inputs={"x": x})
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    return bundle


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("kind", ["module", "script"])
def test_digits_are_kept_near_zero(kind: str, dtype: str, tmp_path: Path) -> None:
    x = torch.tensor(SMALL, dtype=getattr(torch, dtype))
    bundle = export(curves(kind), tmp_path, x)
    answers = open_session(bundle.model_bytes()).run({"x": x.numpy()})
    limits = np.finfo(dtype)
    for name, own in Curves()(x).items():
        np.testing.assert_allclose(
            answers[name], own.numpy(), rtol=8 * limits.eps, atol=limits.tiny, err_msg=name
        )


@pytest.mark.parametrize("kind", ["module", "script"])
def test_what_is_large_or_no_number_is_what_torch_gives(kind: str, tmp_path: Path) -> None:
    bundle = export(curves(kind), tmp_path, torch.tensor(SMALL))
    x = np.array([[np.inf, -np.inf, np.nan, 0.0, -1.0, -1.5, 200.0, -200.0, 1e30, -1e30, 3e38]], np.float32)
    answers = open_session(bundle.model_bytes()).run({"x": x})
    for name, own in Curves()(torch.from_numpy(x)).items():
        np.testing.assert_allclose(answers[name], own.numpy(), rtol=1e-6, err_msg=name)


def test_a_users_own_sum_is_left_as_it_is(tmp_path: Path) -> None:
    bundle = export(Own(), tmp_path, torch.tensor([[0.5, 1.0]]))
    kinds = {node.op_type for node in onnx.load_from_string(bundle.model_bytes()).graph.node}
    assert kinds == {"Add", "Log", "Exp", "Sub"}


def test_torchs_own_table_for_scripts_is_as_before(tmp_path: Path) -> None:
    from torch.onnx import utils

    groups = utils.registration.registry
    before = groups.get_function_group("aten::log1p").get(18)
    export(curves("script"), tmp_path, torch.tensor(SMALL))
    assert groups.get_function_group("aten::log1p").get(18) is before
    assert groups.get_function_group("aten::expm1").get(18) is None
