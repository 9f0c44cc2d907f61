"""The ONNX files of the exporter conformance suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import ExporterCases, Refusal, sample
from support.model_packages import unpacked


def _model(text: str, **weights: Any) -> Any:
    """A model from its text, with weights by the name that the text uses."""
    import onnx
    from onnx import numpy_helper, parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.checker.check_model(model)
    return model


def _weights(*shape: int) -> Any:
    return np.random.default_rng(3).normal(0, 0.4, shape).astype(np.float32)


def _scalar() -> tuple[Any, dict[str, Any]]:
    text = "scaled (float x) => (float[2] y) { a = Mul(x, w)\n y = Tanh(a) }"
    return _model(text, w=np.array([0.5, -2.0], np.float32)), {}


def _vector() -> tuple[Any, dict[str, Any]]:
    text = (
        "curve (float[batch] x) => (float[batch, 3] y) "
        "{ c = Unsqueeze(x, axis)\n a = Mul(c, w)\n y = Sigmoid(a) }"
    )
    return _model(text, w=_weights(3), axis=np.array([1], np.int64)), {}


def _matrix() -> tuple[Any, dict[str, Any]]:
    text = (
        "net (float[batch, 6] x) => (float[batch, 3] y) "
        "{ h = Gemm(x, w1, b1)\n r = Relu(h)\n z = Gemm(r, w2, b2)\n y = Softmax<axis=-1>(z) }"
    )
    return _model(text, w1=_weights(6, 8), b1=_weights(8), w2=_weights(8, 3), b2=_weights(3)), {}


def _sequence() -> tuple[Any, dict[str, Any]]:
    text = (
        "net (float[batch, time, 4] x) => (float[batch, time, 4] y) "
        "{ k = MatMul(x, w)\n t = Transpose<perm=[0, 2, 1]>(k)\n s = MatMul(x, t)\n p = Softmax<axis=-1>(s)\n"
        " y = MatMul(p, x) }"
    )
    return _model(text, w=_weights(4, 4)), {}


def _picture() -> tuple[Any, dict[str, Any]]:
    text = (
        "net (float[batch, 3, 8, 8] x) => (float[batch, 2] y) "
        "{ c = Conv<kernel_shape=[3, 3]>(x, k, b)\n r = Relu(c)\n g = GlobalAveragePool(r)\n f = Flatten(g)\n"
        " y = Gemm(f, w) }"
    )
    return _model(text, k=_weights(4, 3, 3, 3), b=_weights(4), w=_weights(4, 2)), {}


def _demoted() -> tuple[Any, dict[str, Any]]:
    text = "net (float[batch, frozen, 2] x) => (float[batch, 2] y) { f = Reshape(x, six)\n y = MatMul(f, w) }"
    model = _model(text, w=_weights(6, 2), six=np.array([0, 6], np.int64))
    return model, {"inputs": {"x": sample(2, 3, 2)}}


# --- files --------------------------------------------------------------------------------------------------


def _one_file(folder: Path) -> tuple[Any, dict[str, Any]]:
    import onnx

    onnx.save(_matrix()[0], folder / "net.onnx")
    return folder / "net.onnx", {}


def _weights_beside(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Two files of weights, one in a folder of its own; the bundle has one, beside the model."""
    import onnx
    from onnx.external_data_helper import set_external_data

    model = _matrix()[0]
    (folder / "parts").mkdir()
    for tensor, place in zip(model.graph.initializer, ["parts/w1.bin", "rest.bin", "parts/w1.bin", "rest.bin"],
                             strict=True):  # fmt: skip
        with (folder / place).open("ab") as file:
            set_external_data(tensor, place, offset=file.tell(), length=len(tensor.raw_data))
            file.write(tensor.raw_data)
        tensor.ClearField("raw_data")
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx", {"external_data_threshold_bytes": 0}


def _old_file(folder: Path) -> tuple[Any, dict[str, Any]]:
    """IR version 3 lists its weights among the inputs; Softmax of opset 11 flattens."""
    import onnx

    model = _sequence()[0]
    model.ir_version = 3
    model.opset_import[0].version = 11
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Softmax":
                attribute.i = 1
    weight = model.graph.initializer[0]
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
    )
    onnx.checker.check_model(model)
    onnx.save(model, folder / "old.onnx")
    return folder / "old.onnx", {}


def _nested(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A local function and a loop whose trips the input decides."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    net (float[batch, 4] x, int64 trips) => (float[batch, 4] y) {
        go = Constant<value = bool {1}>()
        y = Loop(trips, go, x) <body = step (int64 i, bool c, float[batch, 4] h)
        => (bool again, float[batch, 4] g) {
            again = Identity(c)
            g = local.halve(h)
        }>
    }
    <domain: "local", opset_import: ["" : 18]>
    halve (a) => (b) { two = Constant<value = float {2.0}>()
        d = Div(a, two)
        b = Tanh(d) }
    """
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "nested.onnx")
    return folder / "nested.onnx", {"integer_ranges": {"trips": (0, 5)}}


def _trees(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Two trees with two leaves each, as ONNX-ML."""
    import onnx
    from onnx import helper

    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0, 1, 1, 1],
        nodes_nodeids=[0, 1, 2, 0, 1, 2], nodes_featureids=[0, 0, 0, 1, 0, 0],
        nodes_values=[0.25, 0.0, 0.0, -0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 0, 0, 2, 0, 0], target_treeids=[0, 0, 1, 1],
        target_nodeids=[1, 2, 1, 2], target_ids=[0, 0, 0, 0], target_weights=[1.0, 2.0, 10.0, 20.0],
    )  # fmt: skip
    given = helper.make_tensor_value_info("x", 1, ["rows", 2])
    graph = helper.make_graph([node], "trees", [given], [helper.make_tensor_value_info("y", 1, ["rows", 1])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), folder / "trees.onnx")
    return folder / "trees.onnx", {}


def _texts(folder: Path) -> tuple[Any, dict[str, Any]]:
    import onnx

    text = "net (string[batch] a, string[batch] b) => (string[batch] y) { y = StringConcat(a, b) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{text}')
    onnx.save(model, folder / "texts.onnx")
    return folder / "texts.onnx", {}


# --- trained ------------------------------------------------------------------------------------------------


def _magika() -> tuple[Any, dict[str, Any]]:
    """The file-type detector of the package magika."""
    path = unpacked("magika") / "magika/models/standard_v3_3/model.onnx"
    return path, {"integer_ranges": {"bytes": (0, 256)}, "dynamic": {"bytes": {0: "batch"}}}


def _text_direction() -> tuple[Any, dict[str, Any]]:
    """PaddleOCR's text direction classifier, as the package rapidocr-onnxruntime ships it."""
    path = (
        unpacked("rapidocr-onnxruntime") / "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
    )
    return path, {"inputs": {"x": sample(1, 3, 48, 64)}, "dynamic": {"x": {0: "batch"}}}


# --- refused ------------------------------------------------------------------------------------------------


def _file(name: str, content: bytes) -> Any:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / name).write_bytes(content)
        return folder / name, {}

    return build


def _cut(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, _ = _one_file(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path, {}


def _text(text: str, *, opset: int = 18, **weights: Any) -> Any:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        import onnx
        from onnx import numpy_helper

        model = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3]>\n{text}'
        )
        model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
        onnx.save(model, folder / "net.onnx")
        return folder / "net.onnx", {}

    return build


def _outside(link: bool) -> Any:
    """Weights that lie outside the model's folder, by their name or through a link."""

    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / "inner").mkdir()
        path, _ = _weights_beside(folder / "inner")
        target = folder / "inner" / "rest.bin"
        os.rename(target, folder / "secret.bin")
        if link:
            target.symlink_to(folder / "secret.bin")
        else:
            data = path.read_bytes()
            path.write_bytes(data.replace(b"rest.bin", b"../rest."))
        return path, {}

    return build


def _gone(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _weights_beside(folder)
    (folder / "rest.bin").unlink()
    return path, options


def _short(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _weights_beside(folder)
    (folder / "rest.bin").write_bytes(b"12345678")
    return path, options


def _other_opset(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _one_file(folder)[0], {"opset": 15}


def _other_dtype(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _one_file(folder)[0], {"inputs": {"x": np.zeros((2, 6))}}


def _other_declaration(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _one_file(folder)[0], {"inputs": ["x:float32[batch,7]"]}


_ADD = "net (float[2] x) => (float[2] y) { y = Add(x, x) }"

CASES = ExporterCases(
    module="onnx",
    ranks={"rank0": _scalar, "rank1": _vector, "rank2": _matrix, "rank3": _sequence, "rank4": _picture},
    demoted=_demoted,
    guarded=_matrix,
    files={
        "one-file": _one_file,
        "weights-beside": _weights_beside,
        "ir3-opset11": _old_file,
        "function-and-loop": _nested,
        "onnx-ml-trees": _trees,
        "strings": _texts,
    },
    trained={"magika": _magika, "text-direction": _text_direction},
    packages=("magika", "rapidocr-onnxruntime"),
    refused={
        "cut-short": Refusal(_cut, "SourceError", "not an ONNX model: cut short"),
        "empty": Refusal(_file("net.onnx", b""), "SourceError", "no ONNX graph"),
        "text": Refusal(_file("net.onnx", b"{}"), "SourceError", "not an ONNX model"),
        "other-form": Refusal(_file("net.h5", b"\x89HDF\r\n\x1a\n"), "SourceError", "is an HDF5 file"),
        "missing": Refusal(lambda folder: (folder / "net.onnx", {}), "SourceNotFound", "there is no file"),
        "weights-outside": Refusal(_outside(link=False), "SourceError", "leads out of the model's folder"),
        "weights-linked-outside": Refusal(_outside(link=True), "SourceError", "leads out of the model's folder"),
        "weights-gone": Refusal(_gone, "SourceError", "no such file beside the model"),
        "weights-short": Refusal(_short, "SourceError", "cut short"),
        "runtime-operator": Refusal(
            _text("net (float[2] x) => (float[2] y) { y = com.microsoft.BiasGelu(x, x) }"),
            "UnsupportedOperator", r"no com\.microsoft\.BiasGelu",
        ),
        "random": Refusal(
            _text("net (float[2] x) => (float[2] y) { r = RandomNormal<shape=[2]>()\n y = Add(x, r) }"),
            "ExportError", "draws random numbers: RandomNormal",
        ),
        "dropout-in-training": Refusal(
            _text("net (float[2] x) => (float[2] y) { y = Dropout(x, r, t) }",
                  r=np.float32(0.5), t=np.bool_(True)),
            "ExportError", "Dropout .* in training mode",
        ),
        "sequence-output": Refusal(
            _text("net (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }"),
            "ExportError", "'y' is of kind sequence",
        ),
        "optional-input": Refusal(
            _text("net (optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }"),
            "ExportError", "'x' is of kind optional",
        ),
        "float8-input": Refusal(
            _text("net (float8e4m3fn[2] x) => (float[2] y) { y = Cast<to=1>(x) }", opset=19),
            "ExportError", "element type FLOAT8E4M3FN",
        ),
        "too-old": Refusal(_text(_ADD, opset=6), "ExportError", "opset 6; expected 7 to"),
        "too-new": Refusal(_text(_ADD, opset=99), "ExportError", "opset 99; expected 7 to"),
        "other-opset": Refusal(_other_opset, "ExportError", "opset 15 was asked for, but a file keeps its own"),
        "no-rank": Refusal(
            _text("net (float[] x) => (float[] y) { y = Abs(x) }"), "ExportError", "no shape in the file"
        ),
        "other-dtype": Refusal(_other_dtype, "ExportError", "is float64, but the file takes float32"),
        "other-declaration": Refusal(_other_declaration, "ExportError", r"was declared as x: float32\[batch, 7\]"),
    },
)  # fmt: skip
