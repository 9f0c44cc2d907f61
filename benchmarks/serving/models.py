"""The models that are served: one that takes no time, one of some milliseconds, one that hands its input back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from paritygate.converter.exporters import export_model
from paritygate.converter.parity import validate_bundle, write_evidence
from paritygate.serving.publish import publish_bundle

NAMES = ("mlp", "conv", "echo")
ECHO_FLOATS = 2**18
"""float32 of 1 MiB."""


def write_repository(repository: Path) -> dict[str, Path]:
    """Prove and publish the models; gives the ONNX file of each."""
    files = {}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / f"{name}.onnx"
            onnx.save(_MAKERS[name](), file)
            bundle = export_model(file, Path(scratch) / "bundle", name=name, framework="onnx")
            certificate = validate_bundle(bundle)
            assert certificate.verdict == "pass", (name, certificate.reason)
            write_evidence(bundle, certificate)
            published = publish_bundle(bundle.path, repository, model_name=name)
        files[name] = repository / name / str(published.version) / "model.onnx"
    return files


def _model(
    nodes: list[onnx.NodeProto], shape: list[int | str], out: list[int | str], **weights: np.ndarray
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _normal(*shape: int) -> np.ndarray:
    scale = 1 / np.sqrt(np.prod(shape[1:] or shape))
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)


def _mlp() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["y"]),
    ]
    return _model(
        nodes,
        ["batch", 64],
        ["batch", 10],
        w1=_normal(64, 64),
        b1=_normal(64),
        w2=_normal(64, 10),
        b2=_normal(10),
    )


def _conv() -> onnx.ModelProto:
    """Three convolutions on 3 x 96 x 96, about 5 ms on one thread."""
    nodes, last, weights = [], "x", {}
    for index, (given, made) in enumerate([(3, 32), (32, 48), (48, 48)]):
        weights[f"w{index}"] = _normal(made, given, 3, 3)
        nodes.append(
            helper.make_node(
                "Conv", [last, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1], strides=[1 + (index > 0)] * 2
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        last = f"r{index}"
    nodes.append(helper.make_node("GlobalMaxPool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
    return _model(nodes, ["batch", 3, 96, 96], ["batch", 48], **weights)


def _echo() -> onnx.ModelProto:
    return _model([helper.make_node("Identity", ["x"], ["y"])], ["n"], ["n"])


_MAKERS = {"mlp": _mlp, "conv": _conv, "echo": _echo}
SHAPES = {"mlp": (1, 64), "conv": (1, 3, 96, 96), "echo": (ECHO_FLOATS,)}
