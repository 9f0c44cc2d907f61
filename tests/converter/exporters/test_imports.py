"""The exporter half of the converter imports where only numpy, onnx and ml_dtypes are installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "tensorflow",
    "keras",
    "sklearn",
    "onnxruntime",
    "fastapi",
    "grpc",
    "yaml",
    "typer",
    "rich",
    "xxhash",
)

MODULES = (
    "paritygate.converter.config",
    "paritygate.converter.bundle",
    "paritygate.converter.exporters",
    "paritygate.converter.exporters.base",
    "paritygate.converter.exporters.pytorch",
    "paritygate.converter.exporters.keras",
    "paritygate.converter.exporters.tensorflow",
    "paritygate.converter.exporters.sk",
    "paritygate.converter.checkpoints.factories",
)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_without_any_framework(module: str) -> None:
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}import {module}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
