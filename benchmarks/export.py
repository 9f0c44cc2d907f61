"""What sealing evidence adds to an export: ours (probes, float64, digests) against torch's bare exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure import Ratio, compare
from paritygate.converter.exporters import export_model


def run() -> Iterator[Ratio]:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000),
    ).eval()  # fmt: skip
    image = torch.zeros(2, 3, 32, 32)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def ours() -> None:
            shutil.rmtree(folder / "bundle", ignore_errors=True)
            export_model(
                model, folder / "bundle", name="m", inputs={"image": image}, dynamic={"image": {0: "batch"}}
            )

        def bare() -> None:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    model, (image,), str(folder / "bare.onnx"), opset_version=18, external_data=False,
                    dynamic_shapes=({0: "batch"},), verbose=False,
                )  # fmt: skip

        yield compare(
            "export: export_model, evidence included / torch.onnx.export alone",
            ours,
            bare,
            rounds=5,
            calls_a=1,
            calls_b=1,
        )
