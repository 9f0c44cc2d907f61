"""TensorFlow checkpoints: which one a path means, and its variables into what a factory builds.

A checkpoint is data: it is read variable by variable and nothing of it is run. What `tf.train.Checkpoint` and
`save_weights` write holds the graph of objects beside the variables; it is walked side by side with the model's.
What `tf.compat.v1.train.Saver` writes holds names alone.
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import Built, build
from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.checkpoints.misfit import some
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import FactoryError, SourceError
from paritygate.converter.exporters._tensorflow.imports import first_line
from paritygate.converter.exporters.base import Weights

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
_TRAINING_ONLY = frozenset(
    {"optimizer", "_optimizer", "keras_api", "save_counter", "compiled_metrics", "_compile_metrics", "loss",
     "loss_tracker", "_loss_tracker", "_metrics"}
)  # fmt: skip
_TRAINING_NAMES = re.compile(
    r"(^|/)(global_step|beta[12]_power|save_counter)$|/(Adam|Adam_1|Momentum|RMSProp|RMSProp_1|Adagrad)$"
)


def restore_from(path: Path, config: ExportConfig) -> tuple[Built, Weights]:
    """What a factory builds, with the variables of a checkpoint.

    Args:
        path: The common prefix of its files, its `.index` file, or a directory with a `checkpoint` file.
        config: `factory` names the code that builds the model.

    Raises:
        SourceError: If the checkpoint is not whole, needs a factory, or does not fit what that builds.
        FactoryError: If the factory raises or gives something without variables.
    """
    prefix = _prefix(path)
    if config.factory is None:
        raise SourceError(
            f"{path} holds variables without a model. Name the code that builds it (--factory module:function)."
        )
    reader = _reader(prefix)
    built = build(config.factory)
    variables = _variables(built.model, config.factory)
    match = _best_match(built.model, variables, reader)
    match.check(prefix, config.factory)
    for variable, key in match.found:
        try:
            variable.assign(reader.get_tensor(key))
        except Exception as error:
            raise SourceError(f"{prefix} is damaged: {key} cannot be read ({first_line(error)}).") from error
    where = f" under {match.root!r}" if match.root else ""
    digest = file_sha256(prefix.with_name(prefix.name + ".index"))
    return built, Weights(f"variables of the checkpoint{where} in {config.factory}", digest)


# --- which checkpoint ---------------------------------------------------------------------------------------


def _prefix(path: Path) -> Path:
    if path.is_dir():
        return _whole(_latest_in(path))
    return _whole(path.with_suffix("") if path.suffix == ".index" else path)


def _latest_in(folder: Path) -> Path:
    """The checkpoint that the state file of a folder names; also where the folder was moved since."""
    text = (folder / "checkpoint").read_text("utf-8", errors="replace")
    named = re.search(r'^model_checkpoint_path: "([^"]+)"', text, re.MULTILINE)
    if named is None:
        raise SourceError(
            f"{folder / 'checkpoint'} names no checkpoint. Name the checkpoint itself (its prefix)."
        )
    given = Path(named[1])
    prefix = folder / (given.name if given.is_absolute() else given)
    if not prefix.resolve().is_relative_to(folder.resolve()):
        raise SourceError(
            f"{folder / 'checkpoint'} names {given}, which lies outside. Name the checkpoint itself."
        )
    return prefix


def _whole(prefix: Path) -> Path:
    if not prefix.with_name(prefix.name + ".index").is_file():
        others = sorted(entry.with_suffix("").name for entry in prefix.parent.glob("*.index"))
        near = difflib.get_close_matches(prefix.name, others, n=1) or others[:1]
        hint = f" Did you mean {prefix.parent / near[0]}?" if near else ""
        raise SourceError(f"there is no checkpoint {prefix} ({prefix.name}.index is missing).{hint}")
    if not list(prefix.parent.glob(f"{_escaped(prefix.name)}.data-*")):
        raise SourceError(f"{prefix} is half there: {prefix.name}.data-* is missing. Copy all of its files.")
    return prefix


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _reader(prefix: Path) -> Any:
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(str(prefix))
    except Exception as error:
        raise SourceError(f"{prefix} is no whole checkpoint: {first_line(error)}. Save it again.") from error


# --- which variable is which --------------------------------------------------------------------------------


@dataclass
class _Match:
    """How the variables of a checkpoint fit those of a model.

    Attributes:
        root: Where in the checkpoint the model stands; empty for the checkpoint itself.
        found: Pairs of a variable and its key.
        missing: What the model has and the checkpoint lacks, in words.
        unexpected: What the checkpoint has there and the model lacks, in words.
    """

    root: str
    found: list[tuple[Any, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Better matches sort first; where nothing fits, the place with the most variables tells most."""
        strange = len(self.unexpected)
        return len(self.missing), -len(self.found), strange if self.found else -strange

    def check(self, prefix: Path, factory: str) -> None:
        """Refuse what does not fit.

        Raises:
            SourceError: Listing what is missing and what is there instead.
        """
        if not self.missing and not self.unexpected:
            return
        parts = [f"{factory} builds {some(self.missing)}, which it lacks"] if self.missing else []
        parts += (
            [f"it has {some(self.unexpected)}, which {factory} does not build"] if self.unexpected else []
        )
        raise SourceError(
            f"the checkpoint {prefix} does not fit: {'; '.join(parts)}. Name the factory that fits."
        )


def _variables(model: Any, factory: str) -> list[Any]:
    found = getattr(model, "weights", None) if hasattr(model, "layers") else getattr(model, "variables", None)
    if not found:
        raise FactoryError(
            f"factory {factory} gave a {type(model).__name__} without variables; expected a tf.Module or a Keras "
            "model that was built or called once."
        )
    return list(found)


def _best_match(model: Any, variables: Sequence[Any], reader: Any) -> _Match:
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    shapes = reader.get_variable_to_shape_map()
    if _OBJECT_GRAPH not in shapes:
        return _match_by_name(variables, shapes)
    nodes = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH)).nodes
    roots = {"": 0} | {
        f"{parent}/{child.local_name}" if parent else child.local_name: child.node_id
        for parent, number in [("", 0), *((c.local_name, c.node_id) for c in nodes[0].children)]
        for child in nodes[number].children
    }
    matches = (
        _match_objects(name, number, model, variables, nodes, shapes) for name, number in roots.items()
    )
    return min(matches, key=lambda match: match.rank)


def _match_objects(
    root: str, number: int, model: Any, variables: Sequence[Any], nodes: Any, shapes: Mapping[str, Any]
) -> _Match:
    keys = _keys_side_by_side(model, number, nodes)
    match = _Match(root)
    for variable in variables:
        key = keys.get(id(variable))
        _put(match, variable, key, shapes)
    used = {key for _, key in match.found}
    strange = {*_keys_below(number, nodes)} - {*used, *keys.values()}
    match.unexpected = sorted(key.split("/.ATTRIBUTES")[0] for key in strange)
    return match


def _put(match: _Match, variable: Any, key: str | None, shapes: Mapping[str, Any]) -> None:
    if key is None or key not in shapes:
        match.missing.append(_named(variable))
    elif list(shapes[key]) != list(variable.shape):
        match.missing.append(f"{_named(variable)} (it has {list(shapes[key])} in its place)")
    else:
        match.found.append((variable, key))


def _named(variable: Any) -> str:
    name = getattr(variable, "path", None) or str(variable.name).split(":")[0]
    return f"{name} {list(variable.shape)}"


def _keys_side_by_side(model: Any, number: int, nodes: Any) -> dict[int, str]:
    """Key of each variable of the model, by its id: the same steps are taken in both graphs of objects."""
    import tensorflow as tf

    view = tf.train.TrackableView(model)
    keys: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()
    waiting = deque([(model, number)])
    while waiting:
        thing, at = waiting.popleft()
        if (id(thing), at) in seen:
            continue
        seen.add((id(thing), at))
        value = next((a.checkpoint_key for a in nodes[at].attributes if a.name == _VALUE), None)
        if value is not None:
            keys.setdefault(id(thing), value)
            continue
        below = {child.local_name: child.node_id for child in nodes[at].children}
        waiting.extend((own, below[name]) for name, own in view.children(thing).items() if name in below)
    return keys


def _keys_below(number: int, nodes: Any) -> Iterator[str]:
    """Keys of the variables below a node of the checkpoint, training state left out."""
    seen: set[int] = set()
    waiting = [number]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        yield from (a.checkpoint_key for a in nodes[at].attributes if a.name == _VALUE)
        waiting += [child.node_id for child in nodes[at].children if child.local_name not in _TRAINING_ONLY]


def _match_by_name(variables: Sequence[Any], shapes: Mapping[str, Any]) -> _Match:
    match = _Match("")
    for variable in variables:
        names = (str(variable.name).split(":")[0], getattr(variable, "path", None))
        _put(match, variable, next((name for name in names if name in shapes), None), shapes)
    used = {key for _, key in match.found}
    match.unexpected = [
        name for name in sorted(shapes) if name not in used and not _TRAINING_NAMES.search(name)
    ]
    return match
