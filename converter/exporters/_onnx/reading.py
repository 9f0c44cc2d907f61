"""An ONNX file into a folder of ours, where nothing points anywhere else any more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx

from paritygate.converter.checkpoints.files import existing_file
from paritygate.converter.errors import ModelInvalid, SourceError
from paritygate.converter.exporters._onnx.sparse import store_densely
from paritygate.converter.graph.external import extent, gather_external_data, has_external_data
from paritygate.converter.graph.finish import save_structure
from paritygate.converter.graph.inspect import external_location, is_external, parse_model, tensors

PREPARED_FILE = "prepared.onnx"
DATA_FILE = f"{PREPARED_FILE}.data"

METADATA_ASSET = "metadata.json"
"""Where the metadata of a file lies below the bundle's assets."""

MAX_REPETITION = 4
"""How often, on average, the bytes of a file may be taken: tied weights share some, a bomb is all repetition."""

MAX_MESSAGE_BYTES = 2**31 - 1
"""No protobuf message is larger. Source: protobuf's encoding guide."""

OLDEST_IR_WITH_HIDDEN_WEIGHTS = 4
"""From this IR version on, a weight need not be listed among the inputs. Source: onnx/docs/IR.md."""


def read_model(source: Any) -> tuple[onnx.ModelProto, Path]:
    """A model, its weights still where they lie, and the folder that they lie in.

    Args:
        source: The path of a file, or a `ModelProto`, which is copied.

    Raises:
        SourceError: If there is no such file, or it holds no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        twin = onnx.ModelProto()
        twin.CopyFrom(source)
        if has_external_data(twin):
            raise SourceError(
                "the ModelProto keeps weights in files that it only names; give the path of the .onnx file, or "
                "load it with onnx.load(path)."
            )
        return _checked(twin, "the ModelProto"), Path()
    path = existing_file(source)
    size = path.stat().st_size
    if size > MAX_MESSAGE_BYTES:
        raise SourceError(
            f"{path} has {size} bytes, and no ONNX file can pass 2 GiB; save the model with its weights beside it "
            "(onnx.save(model, path, save_as_external_data=True))."
        )
    try:
        model = parse_model(path.read_bytes())
    except ModelInvalid as error:
        raise SourceError(f"{path}: {error}") from error
    return _checked(model, str(path)), path.parent


def _checked(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    _refuse_broken_texts(model, name)
    if model.ir_version > onnx.IR_VERSION:
        raise SourceError(
            f"{name} is written in IR version {model.ir_version}; onnx {onnx.__version__} reads up to "
            f"{onnx.IR_VERSION}. Upgrade onnx, or save the model in an older version."
        )
    return model


def _refuse_broken_texts(model: onnx.ModelProto, name: str) -> None:
    """Refuse texts that are none: protobuf hands them over as bytes, and nobody expects a name to be bytes."""
    pending: list[Any] = [model]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
                continue
            values = value if _is_repeated(value) else (value,)
            if field.type == field.TYPE_MESSAGE:
                pending.extend(values)
            elif broken := next((each for each in values if isinstance(each, bytes)), None):
                raise SourceError(
                    f"{name} is damaged: a text ({field.full_name}) in it is no UTF-8 ({broken[:40]!r}). Export "
                    "the model again."
                )


def _is_repeated(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__")


def prepare(model: onnx.ModelProto, beside: Path, folder: Path) -> list[str]:
    """Write a model and all its weights into a folder, without what only served its writer.

    Args:
        model: Changed: it afterwards is what was written.
        beside: Where the files lie that the model names.
        folder: Gets `PREPARED_FILE`, and `DATA_FILE` if there are weights outside the model.

    Returns:
        Sentences for the manifest.

    Raises:
        SourceError: If a file of weights is missing, cut short, or lies outside `beside`.
    """
    notes = [*_tidy(model), *store_densely(model.graph)]
    if has_external_data(model):
        _refuse_links(model, beside)
        try:
            _refuse_repetition(model, beside)
            with (folder / DATA_FILE).open("wb") as sink:
                gather_external_data(model, beside, sink, DATA_FILE)
        except ModelInvalid as error:
            raise SourceError(str(error)) from error
    save_structure(model, folder / PREPARED_FILE)
    return notes


def _tidy(model: onnx.ModelProto) -> list[str]:
    notes = []
    if model.ir_version < OLDEST_IR_WITH_HIDDEN_WEIGHTS:
        notes.append(
            f"The file is of IR version {model.ir_version}, which lists its weights among the inputs; it was "
            f"raised to {OLDEST_IR_WITH_HIDDEN_WEIGHTS}, where they are no inputs."
        )
        model.ir_version = OLDEST_IR_WITH_HIDDEN_WEIGHTS
    elif defaults := _overridable(model.graph):
        notes.append(
            f"The file gives the inputs {', '.join(defaults)} default values; these are sealed as weights and can "
            "no longer be overridden."
        )
    if model.training_info:
        del model.training_info[:]
        notes.append("What the file holds for training on (training_info) was left out.")
    if model.metadata_props:
        keys = ", ".join(sorted(entry.key for entry in model.metadata_props))
        notes.append(f"Metadata of the file ({keys}) lies in assets/{METADATA_ASSET}.")
    del model.graph.value_info[:]  # sizes of inner values, often stale; every reader infers them anew
    return notes


def write_metadata(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """The file's own metadata (labels, an alphabet) as a file that travels with the bundle; none without any.

    The graph of a bundle carries no free text, and clients of a server cannot read a graph anyway.
    """
    if not model.metadata_props:
        return {}
    path = folder / METADATA_ASSET
    entries = {entry.key: entry.value for entry in model.metadata_props}
    path.write_text(json.dumps(entries, ensure_ascii=False, indent=2, sort_keys=True) + "\n", "utf-8")
    return {METADATA_ASSET: path}


def _overridable(graph: onnx.GraphProto) -> list[str]:
    weights = {tensor.name for tensor in graph.initializer}
    return [f"'{value.name}'" for value in graph.input if value.name in weights]


def _refuse_links(model: onnx.ModelProto, beside: Path) -> None:
    """A link is followed only to a place inside the model's folder; gathering says the same in other words."""
    root = beside.resolve()
    for tensor in tensors(model):
        if not is_external(tensor):
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        try:
            place = (beside / location).resolve()
            place.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name of any length, links in a circle
            raise SourceError(
                f"weight {tensor.name!r} lies in {location[:80]!r}, which is no file."
            ) from error
        if not place.is_relative_to(root):
            raise SourceError(
                f"weight {tensor.name!r} lies in {location!r}, which leads out of the model's folder {root}; such "
                "a file is never read. Save the model with its weights beside it."
            )


def _refuse_repetition(model: onnx.ModelProto, beside: Path) -> None:
    """Refuse weights that name the same bytes over and over, before any is copied."""
    sizes: dict[str, int] = {}
    taken = 0
    for tensor in filter(is_external, tensors(model)):
        name = external_location(tensor)
        if not (beside / name).is_file():
            continue  # gathering says so
        if name not in sizes:
            sizes[name] = (beside / name).stat().st_size
        taken += extent(tensor, sizes[name])[1]
    held = sum(sizes.values())
    if taken > MAX_REPETITION * held:
        raise SourceError(
            f"the weights take {taken} bytes out of files of {held} bytes: they name the same ones again and "
            "again, which no writer does. Save the model again."
        )


def weight_bytes(folder: Path) -> int:
    """Bytes of a prepared model with its weights, on disk."""
    files = (folder / PREPARED_FILE, folder / DATA_FILE)
    return sum(path.stat().st_size for path in files if path.exists())


def write_converted(folder: Path, path: Path, threshold_bytes: int) -> None:
    """Write a prepared model as one file, or with the weights beside it if they are larger than a threshold."""
    if weight_bytes(folder) <= threshold_bytes and not (folder / DATA_FILE).exists():
        shutil.copyfile(folder / PREPARED_FILE, path)
        return
    model = onnx.load(folder / PREPARED_FILE)
    if weight_bytes(folder) > threshold_bytes:
        onnx.save(
            model, path, save_as_external_data=True, location=f"{path.name}.data",
            size_threshold=1024 if threshold_bytes else 0,
        )  # fmt: skip
    else:
        onnx.save(model, path)
