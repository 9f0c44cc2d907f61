"""Small bundles made by hand: the source framework is numpy, so that tests of what comes after need no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from paritygate.converter.bundle import Bundle, BundleDraft, Probe, read_bundle, write_bundle
from paritygate.converter.parity.feeds import make_feeds, plan_cases
from paritygate.converter.types import Dim, DType, Signature, TensorSpec

NUM_FEATURES = 4


@dataclass(frozen=True)
class BundleSet:
    """Small bundles that tests may read and copy, never change."""

    proven: Bundle
    other: Bundle
    wider: Bundle
    demoted: Bundle
    failing: Bundle
    unproven: Bundle


def linear_bundle(
    directory: Path,
    *,
    seed: int = 0,
    name: str = "linear",
    batch: Dim = "batch",
    num_classes: int = 3,
    num_probes: int | None = None,
    graph_output_shape: Sequence[Dim] | None = None,
    spoil: float = 0.0,
    assets: Mapping[str, Path] | None = None,
) -> Bundle:
    """An unproven bundle of `y = x @ w`, x float32[batch, 4], with weights drawn from a seed.

    Args:
        directory: Where it is written.
        seed: Other seeds give other weights, and so other digests.
        name: The model's name.
        batch: The first dimension: a name, or a fixed size.
        num_classes: The size of y's last dimension.
        num_probes: How many of the planned probes to seal; all by default.
        graph_output_shape: What the graph declares of y where that is not the signature's shape.
        spoil: Added to one weight in the ONNX file, but not in the source: over 0 it computes something else.
        assets: Files that travel with the model, by their name below `assets/`.
    """
    weights = np.random.default_rng(seed).standard_normal((NUM_FEATURES, num_classes)).astype(np.float32)
    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, (batch, NUM_FEATURES)),),
        (TensorSpec("y", DType.FLOAT32, (batch, num_classes)),),
    )
    exported = weights.copy()
    exported[0, 0] += spoil
    trace_dims = {batch: 2} if isinstance(batch, str) else {}
    cases = plan_cases(signature, trace_dims=trace_dims, seed=1)[:num_probes]
    directory.parent.mkdir(parents=True, exist_ok=True)
    model_path = directory.parent / f".{directory.name}.onnx"
    output_shape = graph_output_shape or signature.outputs[0].shape
    model_path.write_bytes(_matmul_model(exported, signature.inputs[0].shape, output_shape))
    probes = []
    for index, case in enumerate(cases):
        feeds = make_feeds(signature, case)
        probes.append(Probe(index, case.name, case.dims, feeds, {"y": feeds["x"] @ weights}))
    draft = BundleDraft(
        name=name,
        model_path=model_path,
        signature=signature,
        framework="numpy",
        framework_version=np.__version__,
        exporter="paritygate.tests",
        exporter_version="1",
        probes=probes,
        trace_dims=trace_dims,
        assets=dict(assets or {}),
    )
    try:
        return write_bundle(draft, directory)
    finally:
        model_path.unlink()


def proven_bundle(directory: Path, **options: object) -> Bundle:
    """A `linear_bundle` that went through the validator, its certificate beside it (passing or not)."""
    from paritygate.converter.parity.evidence import write_evidence
    from paritygate.converter.parity.validate import validate_bundle

    bundle = linear_bundle(directory, **options)  # type: ignore[arg-type]
    write_evidence(bundle, validate_bundle(bundle))
    return read_bundle(directory)


def _matmul_model(weights: np.ndarray, input_shape: Sequence[Dim], output_shape: Sequence[Dim]) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(input_shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output_shape))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
