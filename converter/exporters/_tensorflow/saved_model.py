"""SavedModels: any of their signatures, and what is looked at before TensorFlow loads one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._tensorflow.frozen import open_part
from paritygate.converter.exporters._tensorflow.imports import first_line
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters._tensorflow.modules import open_specs
from paritygate.converter.exporters._tensorflow.scan import Graph, node_of, refuse_saver, refuse_unsafe
from paritygate.converter.exporters.base import Weights

GRAPH_FILES = ("saved_model.pb", "saved_model.pbtxt")
USUAL_SIGNATURES = ("serving_default", "serve")

_INITIALISERS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"


def is_loaded(source: Any) -> bool:
    """Whether it is what `tf.saved_model.load` gives; imports nothing."""
    return hasattr(source, "signatures") and any(
        kind.__module__.startswith("tensorflow.python.trackable") for kind in type(source).__mro__
    )


def open_saved_model(path: Path, config: ExportConfig) -> TensorFlowModel:
    """Load a SavedModel and open one of its signatures.

    Raises:
        UnsafeSource: If its graph could run code or touch files and it is not trusted.
        SourceError: If it cannot be loaded or has no such signature.
    """
    import tensorflow as tf

    meta = _read(path)
    signatures = [name for name in meta.signature_def if name != _INIT_SIGNATURE]
    signature = choose_signature(signatures, config.signature, path)
    _refuse_unsafe(meta, path, trust=config.trust)
    if not meta.HasField("object_graph_def"):
        return _open_in_session(path, meta, signature, config)
    try:
        loaded = tf.saved_model.load(str(path), tags=list(meta.meta_info_def.tags))
    except Exception as error:
        raise SourceError(
            f"{path} cannot be loaded by TensorFlow {tf.__version__}: {first_line(error)}"
        ) from error
    return _open_signature(loaded, signature, config, _weights(path))


def _weights(path: Path) -> Weights:
    """The digest is that of the graph; the variables lie beside it, and their index seals them."""
    file = next(path / name for name in GRAPH_FILES if (path / name).exists())
    return Weights("as in the SavedModel", file_sha256(file))


def _open_in_session(path: Path, meta: Any, signature: str, config: ExportConfig) -> TensorFlowModel:
    """A SavedModel of TensorFlow 1: restored in a session and frozen, since its variables may not be resources."""
    import tensorflow as tf

    v1, definition = tf.compat.v1, meta.signature_def[signature]
    given, answers = dict(sorted(definition.inputs.items())), dict(sorted(definition.outputs.items()))
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            v1.saved_model.loader.load(session, list(meta.meta_info_def.tags), str(path))
            nodes = list(dict.fromkeys(node_of(info.name) for info in answers.values()))
            graph_def = session.graph.as_graph_def()
            frozen = v1.graph_util.convert_variables_to_constants(session, graph_def, nodes)
    except Exception as error:
        raise SourceError(
            f"{path} cannot be loaded by TensorFlow {tf.__version__}: {first_line(error)}"
        ) from error
    feeds, fetches = ([info.name for info in infos.values()] for infos in (given, answers))
    model = open_part(frozen, feeds, fetches, config, _weights(path), names=(list(given), list(answers)))
    model.notes.append(_note(signature))
    model.signature = signature
    return model


def open_loaded(loaded: Any, config: ExportConfig, weights: Weights) -> TensorFlowModel:
    """One signature of a loaded SavedModel.

    Raises:
        SourceError: If it has no such signature.
    """
    name = choose_signature(list(loaded.signatures), config.signature, "the SavedModel")
    return _open_signature(loaded, name, config, weights)


def _open_signature(loaded: Any, name: str, config: ExportConfig, weights: Weights) -> TensorFlowModel:
    model = open_concrete(loaded.signatures[name], config, weights)
    model.notes.append(_note(name))
    model.signature, model.owner = name, loaded
    return model


def _note(signature: str) -> str:
    return f"Signature {signature!r} of the SavedModel was exported."


def open_concrete(function: Any, config: ExportConfig, weights: Weights) -> TensorFlowModel:
    """A traced function whose inputs have names.

    Args:
        function: A `ConcreteFunction`.
        config: The user's words on sizes, and an example.
        weights: Where the weights are from.
    """
    positional, keywords = function.structured_input_signature
    given = [(str(getattr(spec, "name", None) or f"input_{k}"), spec) for k, spec in enumerate(positional)]
    given += sorted(keywords.items())
    answer = _by_name(function, len(positional), [name for name, _ in given])
    return open_specs(answer, _stable(given), config, weights)


def _by_name(function: Any, positional: int, names: Sequence[str]) -> Callable[..., Any]:
    def answer(*tensors: Any) -> Any:
        keywords = dict(zip(names[positional:], tensors[positional:], strict=True))
        given = function(*tensors[:positional], **keywords)
        # A loaded signature gives its outputs in an order that changes from one process to the next.
        return dict(sorted(given.items())) if isinstance(given, Mapping) else given

    return answer


def _stable(given: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The inputs with `input` for a name that Keras only counted, such as `keras_tensor_12`."""
    counted = [name for name, _ in given if name.startswith("keras_tensor")]
    new = {name: "input" if len(counted) == 1 else f"input_{k}" for k, name in enumerate(counted)}
    return [(new.get(name, name), spec) for name, spec in given]


def choose_signature(names: Sequence[str], asked: str | None, what: object) -> str:
    """The signature that is asked for, else a usual one, else the only one.

    Raises:
        SourceError: If there is none of that name, or no telling which; the text lists those that there are.
    """
    listed = ", ".join(repr(name) for name in sorted(names))
    if not names:
        raise SourceError(
            f"{what} has no signature, so nothing says what it takes. Save it with signatures= "
            "(tf.saved_model.save), or name the code that builds it (--factory module:function)."
        )
    if asked is not None:
        if asked in names:
            return asked
        near = difflib.get_close_matches(asked, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SourceError(f"{what} has no signature {asked!r}; it has {listed}.{hint}")
    usual = [name for name in USUAL_SIGNATURES if name in names] or (list(names) if len(names) == 1 else [])
    if not usual:
        raise SourceError(
            f"{what} has the signatures {listed}, and none is called {' or '.join(USUAL_SIGNATURES)}. "
            "Name one: --signature NAME (signature=)."
        )
    return usual[0]


# --- before it is loaded ------------------------------------------------------------------------------------


def _read(path: Path) -> Any:
    """The one `MetaGraphDef` of a SavedModel that is meant for serving."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    if (path / "saved_model.cpb").exists():
        raise SourceError(
            f"{path} is a SavedModel in parts (saved_model.cpb); save it anew as one saved_model.pb."
        )
    file = next(path / name for name in GRAPH_FILES if (path / name).exists())
    message = saved_model_pb2.SavedModel()
    try:
        if file.suffix == ".pb":
            message.ParseFromString(file.read_bytes())
        else:
            text_format.Parse(file.read_text("utf-8"), message)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, OSError) as error:
        raise SourceError(
            f"{file} is damaged or half written ({first_line(error)}). Save the model again."
        ) from error
    if not (path / "variables" / "variables.index").exists() and _has_variables(message):
        raise SourceError(
            f"{path} has no variables/variables.index, so its weights are missing. Copy all of it."
        )
    serving = [meta for meta in message.meta_graphs if "serve" in meta.meta_info_def.tags]
    found = serving or list(message.meta_graphs)
    if len(found) != 1:
        raise SourceError(
            f"{file} holds {len(found)} graphs; expected one with the tag 'serve'. Save the model again with it."
        )
    return found[0]


def _has_variables(message: Any) -> bool:
    kinds = ("VarHandleOp", "VariableV2", "Variable")
    return any(node.op in kinds for meta in message.meta_graphs for node in meta.graph_def.node)


def _refuse_unsafe(meta: Any, path: Path, *, trust: bool) -> None:
    graph = Graph.of(meta.graph_def)
    refuse_unsafe(graph, path, trust=trust, with_saver=True)
    _refuse_assets_outside(meta, path, trust=trust)
    if meta.HasField("object_graph_def"):
        roots = [name for name in meta.object_graph_def.concrete_functions if name in graph.functions]
        run = [node for name in roots for node in graph.functions[name]]
        refuse_saver(graph, run, "of a function that runs", path, trust=trust)
        return
    saver = meta.saver_def
    answers = [info.name for signature in meta.signature_def.values() for info in signature.outputs.values()]
    first = [name for key in _INITIALISERS for name in meta.collection_def[key].node_list.value]
    run = list(graph.ancestors([*answers, *first]).values())
    refuse_saver(graph, run, "for an answer", path, trust=trust)
    for node in graph.ancestors([saver.restore_op_name]).values():
        reads = node.op == "RestoreV2" and node_of(node.input[0]) == node_of(saver.filename_tensor_name)
        if not reads:
            refuse_saver(graph, [node], "while its variables are restored", path, trust=trust)


def _refuse_assets_outside(meta: Any, path: Path, *, trust: bool) -> None:
    root = path.resolve()
    for asset in meta.asset_file_def:
        name = PurePosixPath(asset.filename)
        there = (root / "assets" / name).resolve()
        if not trust and (name.is_absolute() or not there.is_relative_to(root)):
            raise UnsafeSource(
                f"{path} names the asset {asset.filename!r}, which lies outside it, so it was not loaded. "
                "Pass --trust (trust=True) if you trust its origin."
            )
