"""The TensorFlow models of the exporter conformance suite: SavedModels, frozen graphs, checkpoints, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import tensorflow_files as files
from support import tensorflow_nets as nets
from support.exporter_cases import ExporterCases, Refusal


def _absent(folder: Path) -> tuple[Any, dict[str, Any]]:
    return str(folder / "absent"), {}


def _damaged(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, _ = files.saved_model(folder)
    graph = folder / "net" / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-100])
    return source, {}


def _without_variables(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, _ = files.saved_model(folder)
    (folder / "net" / "variables" / "variables.index").unlink()
    return source, {}


def _other_signature(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, _ = files.signature(folder)
    return source, {"signature": "scale"}


def _no_usual_signature(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, _ = files.signature(folder)
    return source, {}


def _without_signature(folder: Path) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    tf.saved_model.save(tf.Module(), str(folder / "net"))
    return str(folder / "net"), {}


def _without_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.checkpoint(folder)[0], {}


def _half_a_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = files.checkpoint(folder)
    Path(f"{source}.data-00000-of-00001").unlink()
    return source, options


def _other_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.checkpoint(folder)[0], {"factory": "support.tensorflow_files:keras_net"}


def _checkpoint_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = files.checkpoint_folder(folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "../../ckpt-1"\n')
    return source, options


def _not_frozen(folder: Path) -> tuple[Any, dict[str, Any]]:
    def write(_v1: Any, session: Any) -> None:
        (folder / "net.pb").write_bytes(session.graph.as_graph_def().SerializeToString())

    files.with_v1_session(write)
    return str(folder / "net.pb"), {}


def _half_a_graph(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, _ = files.frozen(folder)
    Path(source).write_bytes(Path(source).read_bytes()[:-10])
    return source, {}


def _mixed_names(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.frozen_by_tf_1(folder)[0], {"output_names": ("probs", "other")}


def _too_new(folder: Path) -> tuple[Any, dict[str, Any]]:
    return nets.matrix()[0], {"opset": 20}


CASES = ExporterCases(
    module="tensorflow",
    environment="tensorflow",
    ranks={
        "rank0": nets.scalar, "rank1": nets.vector, "rank2": nets.matrix, "rank3": nets.sequence,
        "rank4": nets.picture,
    },
    demoted=nets.demoted,
    guarded=nets.matrix,
    files={
        "saved_model": files.saved_model, "signature": files.signature, "exported_by_keras": files.from_keras,
        "saved_by_keras_2": files.from_keras_2, "saved_by_tf_1": files.saved_by_tf_1, "frozen": files.frozen,
        "frozen_by_tf_1": files.frozen_by_tf_1, "checkpoint": files.checkpoint,
        "checkpoint_folder": files.checkpoint_folder, "keras_checkpoint": files.keras_checkpoint,
        "keras_2_weights": files.keras_2_weights, "tf_1_checkpoint": files.tf_1_checkpoint,
    },
    trained={"digits": nets.trained_on_digits},
    packages=("scikit-learn",),
    planted={
        "write_in_saved_model": files.planted_write, "python_in_saved_model": files.planted_python,
        "saver_in_saved_model": files.planted_by_saver, "initialiser_of_tf_1": files.planted_initialiser,
        "write_in_frozen_graph": files.planted_frozen,
    },
    refused={
        "absent": Refusal(_absent, "SourceNotFound", "there is no file or directory .*absent"),
        "damaged": Refusal(_damaged, "SourceError", "damaged or half written"),
        "without_variables": Refusal(_without_variables, "SourceError", "its weights are missing"),
        "other_signature": Refusal(
            _other_signature, "SourceError", "it has 'plain', 'scaled'. Did you mean 'scaled'"
        ),
        "no_usual_signature": Refusal(_no_usual_signature, "SourceError", "'plain', 'scaled', and none is called"),
        "without_signature": Refusal(_without_signature, "SourceError", "has no signature, so nothing says"),
        "without_factory": Refusal(_without_factory, "SourceError", "holds variables without a model"),
        "half_a_checkpoint": Refusal(_half_a_checkpoint, "SourceError", r"ckpt-1\.data-\* is missing"),
        "other_factory": Refusal(
            _other_factory, "SourceError",
            r"does not fit: .*kernel \[6, 3\].*it lacks; it has model/weights/0, model/weights/1, step, which",
        ),
        "checkpoint_elsewhere": Refusal(_checkpoint_elsewhere, "SourceError", "names .*, which lies outside"),
        "not_frozen": Refusal(_not_frozen, "SourceError", "is not frozen: its variable 'dense/"),
        "half_a_graph": Refusal(_half_a_graph, "SourceError", "damaged or half written"),
        "mixed_names": Refusal(_mixed_names, "SourceError", "has a node 'probs', but none that is called 'other'"),
        "too_new": Refusal(_too_new, "ExportError", "opset 20 cannot be written .* ends at 18"),
    },
)  # fmt: skip
