"""Runs the handed conversion cases: build, export, validate, and compare on the case's own samples.

A case's `spec` and `expect` say which inputs stay open and what is right; see `shared/cases/README.md`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from paritygate.converter.bundle import Bundle
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.report import Certificate
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array
from support.shared import shared_dir

_DTYPES: dict[str, Any] = {
    "FP32": np.float32, "FP16": np.float16, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32,
    "BOOL": np.bool_, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip


@dataclass(frozen=True)
class ConversionCase:
    """One built case."""

    module: ModuleType
    model: Any
    samples: Sequence[Mapping[str, Array]]
    spec: Mapping[str, Any]
    expect: Mapping[str, Any]

    @property
    def output_names(self) -> list[str]:
        return [entry["name"] for entry in self.spec["outputs"]]

    def feed(self, index: int) -> dict[str, Array]:
        """A sample in the dtypes that the spec gives the inputs."""
        dtypes = {entry["name"]: _DTYPES[entry["dtype"]] for entry in self.spec["inputs"]}
        return {name: np.asarray(array, dtype=dtypes[name]) for name, array in self.samples[index].items()}

    def dynamic(self) -> dict[str, dict[int, str]]:
        return {
            entry["name"]: {axis: dim for axis, dim in enumerate(entry["shape"]) if isinstance(dim, str)}
            for entry in self.spec["inputs"]
        }


def load_case(stem: str) -> ConversionCase:
    """A case by the beginning of its file name; the module goes into sys.modules, as the cases ask for."""
    path = next(iter(sorted(shared_dir("cases", "conversion").glob(f"{stem}_*.py"))))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return ConversionCase(module, *module.build())


def export_conversion(case: ConversionCase, directory: Path, model: Any = None, **options: Any) -> Bundle:
    """Export a case as a user would: the first sample to trace with, the spec's names, its open axes."""
    return export_model(
        case.model if model is None else model,
        directory,
        name=directory.name,
        inputs=case.feed(0),
        dynamic=case.dynamic(),
        output_names=case.output_names,
        **options,
    )


def assert_parity(case: ConversionCase, bundle: Bundle) -> Certificate:
    """The validator passes the bundle, and the served model agrees with the framework on every sample."""
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert_samples_agree(case, bundle, lambda feed: case.module.reference(case.model, feed))
    return certificate


def assert_samples_agree(
    case: ConversionCase, bundle: Bundle, reference: Callable[[Mapping[str, Array]], Mapping[str, Array]]
) -> None:
    """The served model's answers on the samples lie within the case's own tolerance; whole numbers are equal."""
    session = open_session(bundle.model_bytes(), external_data=bundle.external_data())
    for index, sample in enumerate(case.samples):
        answers = session.run(case.feed(index))
        for name, expected in reference(sample).items():
            if expected.dtype.kind in "iub":
                assert answers[name].dtype == expected.dtype
                np.testing.assert_array_equal(answers[name], expected)
            else:
                np.testing.assert_allclose(
                    answers[name].astype(np.float64), expected.astype(np.float64),
                    rtol=case.expect["rtol"], atol=case.expect["atol"],
                )  # fmt: skip


def assert_declares(case: ConversionCase, bundle: Bundle) -> None:
    """The outputs have the dtypes and shapes that the case asks for."""
    declared = {spec.name: spec for spec in bundle.signature.outputs}
    for entry in case.expect.get("outputs", []):
        spec = declared[entry["name"]]
        assert spec.dtype.numpy == _DTYPES[entry["dtype"]]
        if "shape" in entry:
            assert list(spec.shape) == entry["shape"]
