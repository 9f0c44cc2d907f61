"""Bundles whose source is numpy and whose ONNX twin can be changed at will, for tests of bundle and parity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paritygate.converter.bundle import Bundle, BundleDraft, Probe, write_bundle
from paritygate.converter.parity.feeds import Case, make_feeds, plan_cases
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec

FEATURES, HIDDEN, CLASSES = 6, 16, 3
TRACE = 2


def model_of(
    nodes: Sequence[onnx.NodeProto],
    signature: Signature,
    weights: Mapping[str, Array] | None = None,
    graph_signature: Signature | None = None,
) -> onnx.ModelProto:
    """An ONNX model with these nodes and the signature's inputs and outputs."""
    declared = graph_signature or signature

    def info(spec: TensorSpec) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(spec.name, spec.dtype.onnx, spec.shape)

    initializers = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(
        list(nodes), "g", list(map(info, declared.inputs)), list(map(info, declared.outputs)), initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def seal(
    directory: Path,
    model: onnx.ModelProto | bytes,
    signature: Signature,
    source: Callable[[Feeds], dict[str, Array]],
    *,
    wide: Callable[[Feeds], dict[str, Array]] | None = None,
    trace_dims: Mapping[str, int] | None = None,
    cases: Callable[[list[Case]], list[Case]] = list,
    **draft: object,
) -> Bundle:
    """Ask the source every planned case and write the bundle to `directory/bundle`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "exported.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    traced = dict.fromkeys(signature.dynamic_dims(), TRACE) if trace_dims is None else dict(trace_dims)

    def probes() -> Iterator[Probe]:
        for index, case in enumerate(cases(plan_cases(signature, trace_dims=traced))):
            feeds = make_feeds(signature, case)
            yield Probe(index, case.name, case.dims, feeds, source(feeds), wide(feeds) if wide else None)

    plain = BundleDraft("model", path, signature, "numpy", "2", "hand", "1", probes(), traced)
    return write_bundle(replace(plain, **draft), directory / "bundle")  # type: ignore[arg-type]


class Classifier:
    """relu(x @ w1 + b1) @ w2 -> softmax: x float32[batch, 6] -> probs float32[batch, 3], label int64[batch]."""

    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, ("batch", FEATURES)),),
        (
            TensorSpec("probs", DType.FLOAT32, ("batch", CLASSES)),
            TensorSpec("label", DType.INT64, ("batch",)),
        ),
    )

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.RandomState(seed)
        self.weights = {
            "w1": rng.standard_normal((FEATURES, HIDDEN)).astype(np.float32),
            "b1": rng.standard_normal(HIDDEN).astype(np.float32),
            "w2": rng.standard_normal((HIDDEN, CLASSES)).astype(np.float32),
        }

    def source(self, feeds: Feeds) -> dict[str, Array]:
        """The truth, in float32."""
        return self._compute(feeds["x"], np.float32)

    def wide(self, feeds: Feeds) -> dict[str, Array]:
        """The same in float64."""
        return {"probs": self._compute(feeds["x"], np.float64)["probs"]}

    def _compute(self, x: Array, dtype: type) -> dict[str, Array]:
        w1, b1, w2 = (self.weights[name].astype(dtype) for name in ("w1", "b1", "w2"))
        logits = np.maximum(x.astype(dtype) @ w1 + b1, 0) @ w2
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return {
            "probs": raised / raised.sum(axis=1, keepdims=True),
            "label": logits.argmax(axis=1).astype(np.int64),
        }

    def model(self, *, change: Mapping[str, Callable[[Array], Array]] | None = None) -> onnx.ModelProto:
        """The ONNX twin, with some weights changed."""
        weights = {name: (change or {}).get(name, lambda w: w)(w.copy()) for name, w in self.weights.items()}
        nodes = [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
            helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
        ]
        return model_of(nodes, self.signature, weights)


def classifier_bundle(
    directory: Path,
    *,
    change: Mapping[str, Callable[[Array], Array]] | None = None,
    float64: bool = True,
    **draft: object,
) -> Bundle:
    """A bundle of the classifier; `change` alters weights in the ONNX file after the source answered."""
    twin = Classifier()
    return seal(
        directory,
        twin.model(change=change),
        twin.signature,
        twin.source,
        wide=twin.wide if float64 else None,
        **draft,  # type: ignore[arg-type]
    )


def scaled(factor: float, index: tuple[int, ...] = (0, 0)) -> Callable[[Array], Array]:
    """A change that multiplies one weight."""

    def change(weights: Array) -> Array:
        weights[index] *= factor
        return weights

    return change
