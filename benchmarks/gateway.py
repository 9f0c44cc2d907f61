"""What the gateway adds: a stock client over HTTP and gRPC against the bare session, on a small model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http

from benchmarks.measure import Ratio, compare
from paritygate.converter.bundle import read_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.quickstart.gateway import running_gateway

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repo"
_FLOWER = np.array([[5.1, 3.5, 1.4, 0.2]], dtype=np.float32)


def run() -> Iterator[Ratio]:
    session = open_session(read_bundle(REPOSITORY / "iris" / "1").model_bytes())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with running_gateway(REPOSITORY, folder / "rollouts", folder) as ports:
            for kind, module, url in (
                ("HTTP", tritonclient.http, ports.http),
                ("gRPC", tritonclient.grpc, ports.grpc),
            ):
                client = module.InferenceServerClient(url)
                given = module.InferInput("flower", [1, 4], "FP32")
                given.set_data_from_numpy(_FLOWER)
                yield compare(
                    f"gateway: tritonclient {kind}, one connection / session.run in process",
                    lambda client=client, given=given: client.infer("iris", [given]),  # type: ignore[misc]
                    lambda: session.run({"flower": _FLOWER}),
                    rounds=9,
                    calls_a=300,
                    calls_b=3000,
                )
                client.close()
    yield compare(
        "start: `paritygate --help` / `python -c pass`",
        lambda: subprocess.run(
            [sys.executable, "-m", "paritygate", "--help"], capture_output=True, check=True
        ),
        lambda: subprocess.run([sys.executable, "-c", "pass"], capture_output=True, check=True),
        rounds=5,
        calls_a=1,
        calls_b=1,
    )
