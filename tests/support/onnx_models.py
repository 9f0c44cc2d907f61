"""Hand-made ONNX models and Triton repositories for tests of the gateway; no certificate, no framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

ELEMENT_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}

Shape = Sequence[int | str]


def _model(name: str, nodes: list, inputs: list, outputs: list, initializers: Sequence = ()) -> ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def identity_model(datatype: str, shape: Shape = ("n",)) -> ModelProto:
    """`y = x` of one type: what goes in must come out, bit for bit."""
    kind = ELEMENT_TYPES[datatype]
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", kind, shape)
    return _model("identity", [helper.make_node("Identity", ["x"], ["y"])], [x], [y])


def add_model(constant: float, shape: Shape = ("n",)) -> ModelProto:
    """`y = x + constant`, float32: the answer tells which version gave it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    value = numpy_helper.from_array(np.array(constant, np.float32), "c")
    return _model("add", [helper.make_node("Add", ["x", "c"], ["y"])], [x], [y], [value])


def two_input_model() -> ModelProto:
    """`sum = a + b` and `difference = a - b`, float32[n, 3], with the same n in both."""
    a, b = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ("n", 3)) for n in "ab")
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("n", 3)) for n in ("sum", "difference")]
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
    ]
    return _model("two", nodes, [a, b], outputs)


def slow_model(rounds: int) -> ModelProto:
    """`y = x` after `rounds` products of matrices: it takes as long as it is told, x float32[256, 256]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (256, 256))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (256, 256))
    count = numpy_helper.from_array(np.array(rounds, np.int64), "rounds")
    go = numpy_helper.from_array(np.array(True), "go")
    unit = numpy_helper.from_array(np.eye(256, dtype=np.float32), "unit")
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", "unit"], ["state_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("state_in", TensorProto.FLOAT, (256, 256)),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, (256, 256)),
        ],
    )
    loop = helper.make_node("Loop", ["rounds", "go", "x"], ["y"], body=body)
    return _model("slow", [loop], [x], [y], [count, go, unit])


def expanding_model() -> ModelProto:
    """`y` is zeros of the shape that the input says: a request of some bytes may ask for any amount."""
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, (2,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", "columns"))
    return _model("expand", [helper.make_node("ConstantOfShape", ["shape"], ["y"])], [shape], [y])


def write_version(repository: Path, name: str, version: int, model: ModelProto) -> Path:
    """One version's folder with its model file."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


def write_model(
    repository: Path,
    name: str,
    model: ModelProto,
    *,
    version: int = 1,
    versions: Sequence[int] | None = None,
    max_batch_size: int = 0,
    extra: str = "",
) -> Path:
    """A model's folder with one version and a config that lists it; gives the model's folder."""
    write_version(repository, name, version, model)
    write_config(repository, name, model, versions or [version], max_batch_size=max_batch_size, extra=extra)
    return repository / name


def write_config(
    repository: Path,
    name: str,
    model: ModelProto,
    versions: Sequence[int],
    *,
    max_batch_size: int = 0,
    extra: str = "",
) -> None:
    """The model's config.pbtxt, replaced at once as a publisher replaces it."""
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {max_batch_size}"]
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        lines += [f"{kind} [ {_tensor(value, batched=max_batch_size > 0)} ]" for value in values]
    lines += [f"version_policy: {{ specific {{ versions: {list(versions)} }} }}", extra]
    partial = repository / name / "config.pbtxt.partial"
    partial.write_text("\n".join(lines) + "\n")
    partial.replace(repository / name / "config.pbtxt")


def _tensor(value: object, *, batched: bool) -> str:
    tensor = value.type.tensor_type  # type: ignore[attr-defined]
    word = TensorProto.DataType.Name(tensor.elem_type)
    word = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16", "BFLOAT16": "BF16"}.get(word, word)
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim] or [-1]
    return f'{{ name: "{value.name}" data_type: TYPE_{word} dims: {dims[1:] if batched else dims} }}'  # type: ignore[attr-defined]


def lookup_model() -> ModelProto:
    """`y = table[i]` of three rows, float32: an index beyond them is the client's mistake."""
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ("n",))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 2))
    table = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "table")
    return _model("lookup", [helper.make_node("Gather", ["table", "i"], ["y"])], [i], [y], [table])
