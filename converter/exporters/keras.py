"""Keras models (`.keras`, `.h5`, in memory, Keras 3 and tf_keras) and `tf.Module`s become ONNX through tf2onnx.

A Keras file can carry Python code: a Lambda layer holds marshalled bytecode, which runs when the model is called.
Such a file is refused before Keras sees it, unless it is trusted. Files are first looked into as a zip or HDF5
with JSON inside, so a half-written or foreign one gets a plain word instead of a traceback.
"""

from __future__ import annotations

import importlib
import inspect
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError, UnsafeSource
from paritygate.converter.exporters._tensorflow import Call, TensorFlowModel, source_dtype
from paritygate.converter.exporters.base import Exporter, SourceInput, SourceModel, Versions, Weights
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.types import Array, DType, Feeds

KERAS_SUFFIX = ".keras"
HDF5_SUFFIXES = (".h5", ".hdf5")

_ARCHIVE_MEMBERS = ("metadata.json", "config.json", "model.weights.h5")
_CONFIG_LIMIT_BYTES = 256 * 1024 * 1024
_TWIN_LIMIT_BYTES = 4 * 2**30
_NARROW_POLICIES = ("float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16")


class KerasExporter(Exporter):
    """Exports Keras models and `tf.Module`s whose call takes and gives tensors."""

    name = "keras"

    def recognises(self, source: Any) -> bool:
        """A `.keras`, `.h5` or `.hdf5` path, a Keras model, or a `tf.Module`."""
        if isinstance(source, str | Path):
            return Path(source).suffix.lower() in (KERAS_SUFFIX, *HDF5_SUFFIXES)
        return _is_keras_model(source) or _is_module(source)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Look into a `.keras` file with the standard library; HDF5 is left to where h5py is."""
        if isinstance(source, Path) or not is_factory(source):
            path = existing_file(source)
            if config.factory is None and path.suffix.lower() == KERAS_SUFFIX:
                _refuse_unreadable(path, trust=config.trust)

    def versions(self) -> Versions:
        """Keras with TensorFlow below it, and tf2onnx."""
        keras, tensorflow, tf2onnx = _import("keras"), _import("tensorflow"), _import("tf2onnx")
        framework = f"{keras.__version__}+tensorflow.{tensorflow.__version__}"
        return Versions("keras", framework, "tf2onnx", tf2onnx.__version__)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, call a factory, or take a model in memory; every variable of it is given back as it was."""
        weights = Weights()
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config)
            config = replace(config, inputs=example) if config.inputs is None else config
        _import_all()
        with _variables_kept(source):
            yield _open(source, config, weights)


def _open(source: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    if _is_keras_model(source):
        return _open_model(source, config, weights)
    if _is_module(source):
        return _open_module(source, config, weights)
    raise SourceError(
        f"a {type(source).__module__}.{type(source).__qualname__} is not a Keras model; expected a keras.Model, a "
        "tf.Module that can be called, the path of a .keras file, or module:factory."
    )


def _from_text(source: str | Path, config: ExportConfig) -> tuple[Any, Any, Weights]:
    """The model that a path or `module:factory` stands for, the factory's example, and where it is from."""
    if is_factory(source) and not Path(source).exists():
        _import_all()
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    if config.factory is None:
        _refuse_unreadable(path, trust=config.trust)
        _import_all()
        return _load(path, trust=config.trust), None, Weights("as in the file", file_sha256(path))
    _import_all()
    built = build(config.factory)
    _load_weights(built.model, path, config.factory)
    return built.model, built.example, Weights(f"weights of the file in {config.factory}", file_sha256(path))


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(
            f"exporting a Keras model needs {module}, which cannot be imported here ({error}). Install "
            "paritygate[tensorflow], or export the saved file with `paritygate export`, which uses an "
            "environment of its own."
        ) from error


def _import_all() -> None:
    _import("tensorflow")
    _import("tf2onnx")
    backend = _import("keras").backend.backend()
    if backend != "tensorflow":
        raise ExportError(
            f"Keras runs on {backend} here, and its ONNX road needs the tensorflow backend. Save the model as a "
            ".keras file and export that with `paritygate export`, or set KERAS_BACKEND=tensorflow."
        )


# --- files --------------------------------------------------------------------------------------------------


def _refuse_unreadable(path: Path, *, trust: bool) -> None:
    """Look into a file without Keras; refuse what is foreign, damaged, or carries code."""
    read = _read_hdf5_config if path.suffix.lower() in HDF5_SUFFIXES else _read_archive_config
    try:
        config = read(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}. Save the model again.") from error
    carriers = sorted(set(_code_carriers(config)))
    if carriers and not trust:
        layers = ", ".join(repr(name) for name in carriers)
        raise UnsafeSource(
            f"{path} carries Python code in layer {layers} (a lambda), and loading it would run that code. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )


def _read_archive_config(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in _ARCHIVE_MEMBERS if name not in archive.namelist()]
            if missing:
                raise SourceError(
                    f"{path} is a zip archive without {', '.join(missing)}, so it is no Keras model. "
                    "Save it with model.save."
                )
            if archive.getinfo("config.json").file_size > _CONFIG_LIMIT_BYTES:
                raise SourceError(
                    f"{path} holds a config.json of more than 256 MiB; no Keras model is built so."
                )
            damaged = archive.testzip()
            if damaged is not None:
                raise SourceError(
                    f"{path} is damaged: the checksum of {damaged} is wrong. Save the model again."
                )
            return _parse_config(path, archive.read("config.json"))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SourceError(
            f"{path} is not a whole Keras file ({_what_it_is(path)}). Save the model again."
        ) from error


def _what_it_is(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK"):
        return "a zip archive that is cut off or damaged"
    if head == b"\x89HDF\r\n\x1a\n":
        return "it is HDF5: rename it to .h5"
    return "it is empty" if not head else "it is no zip archive"


def _read_hdf5_config(path: Path) -> Any:
    h5py = _import("h5py")
    try:
        with h5py.File(path, "r") as file:
            config = file.attrs.get("model_config")
    except OSError as error:
        raise SourceError(
            f"{path} is not a whole HDF5 file ({_first_line(error)}). Save the model again."
        ) from error
    if config is None:
        raise SourceError(
            f"{path} holds weights without a model. Name the code that builds it (--factory module:function), or "
            f"save the whole model (model.save('name{KERAS_SUFFIX}'))."
        )
    return _parse_config(path, config)


def _parse_config(path: Path, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is damaged: its model configuration is no JSON ({error}).") from error


def _code_carriers(config: Any, layer: str = "?") -> Iterator[str]:
    """Names of the layers whose configuration holds marshalled code, in the new and the old form."""
    if isinstance(config, list):
        for item in config:
            yield from _code_carriers(item, layer)
    if not isinstance(config, dict):
        return
    inner = config.get("config")
    if isinstance(inner, dict) and isinstance(inner.get("name"), str):
        layer = inner["name"]
    if config.get("class_name") == "__lambda__" or _is_old_lambda(config):
        yield layer
    for value in config.values():
        yield from _code_carriers(value, layer)


def _is_old_lambda(config: Mapping[str, Any]) -> bool:
    """Keras 2 wrote `[code, defaults, closure]`, with or without saying `function_type: lambda` beside it."""
    kinds = (config.get(key) for key in ("function_type", "output_shape_type", "mask_type"))
    written = (config.get(key) for key in ("function", "output_shape", "mask"))
    return "lambda" in kinds or any(isinstance(v, list) and v and isinstance(v[0], str) for v in written)


def _load(path: Path, *, trust: bool) -> Any:
    import keras

    try:
        return keras.saving.load_model(path, compile=False, safe_mode=not trust)
    except Exception as error:
        hint = ""
        if "register_keras_serializable" in str(error) or "Unknown" in str(error):
            hint = " It uses classes of its own: name the code that builds the model (--factory module:function)."
        raise SourceError(
            f"{path} cannot be loaded by Keras {keras.__version__}: {_first_line(error)}{hint}"
        ) from error


def _load_weights(model: Any, path: Path, factory: str) -> None:
    if not _is_keras_model(model):
        raise FactoryError(f"factory {factory} gave a {type(model).__name__}; expected a keras.Model.")
    try:
        model.load_weights(path)
    except Exception as error:
        raise SourceError(
            f"the weights in {path} do not fit the model that {factory} builds: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 300 else line[:300] + "..."


# --- models in memory ---------------------------------------------------------------------------------------


def _is_keras_model(source: Any) -> bool:
    return any(
        kind.__name__ == "Model" and kind.__module__.split(".")[0] in ("keras", "tf_keras")
        for kind in type(source).__mro__
    )


def _is_module(source: Any) -> bool:
    return callable(source) and any(
        kind.__name__ == "Module" and kind.__module__ == "tensorflow.python.module.module"
        for kind in type(source).__mro__
    )


@contextmanager
def _variables_kept(source: Any) -> Iterator[None]:
    """Put back every variable that running the model changed: counters, running statistics, seeds."""
    variables = list(getattr(source, "variables", ()))
    before = [np.array(variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            if variable.numpy().tobytes() != value.tobytes():
                variable.assign(value)


def _open_model(model: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    if not model.built:
        raise ExportError(
            f"Keras model {model.name!r} has no weights yet: it was never called. Call it once on real inputs "
            "(or train it) before exporting it."
        )
    symbolic = getattr(model, "inputs", None)
    if not symbolic:
        return _open_callable(model, _training_off(model), model.call, config, weights)
    inputs = _declared_shapes(config, tuple(_source_input(model, tensor) for tensor in symbolic))
    names = [spec.name for spec in inputs]
    specs_only = declared_inputs(config.inputs) is not None
    return TensorFlowModel(
        call=_packed_call(model),
        inputs=inputs,
        dims_are_declared=True,
        example=None if specs_only else _own_example(config, names),
        weights=weights,
        positional_names=[_layer_name(tensor) for tensor in model.outputs],
        output_shapes=_output_shapes(model),
        build_twin=_twin_builder(model),
        ranges=_embedding_rows(model, symbolic, names),
    )


def _source_input(model: Any, tensor: Any) -> SourceInput:
    shape = [None if dim is None else int(dim) for dim in tensor.shape]
    if _is_sequential(model) and shape:
        # A Sequential that was built by its first call holds that call's batch size, which nobody declared.
        shape[0] = None
    return SourceInput(_layer_name(tensor), source_dtype(tensor.dtype), tuple(shape))


def _output_shapes(model: Any) -> list[list[int | None]]:
    """Sizes of the outputs in the order of the answer, batch left open; nothing for answers with keys.

    Keras lists the outputs of a dict by sorted key, the answer holds them in the dict's own order.
    """
    answer = None if _is_sequential(model) else model.output
    if isinstance(answer, Mapping) or (
        isinstance(answer, list | tuple) and len(answer) != len(model.outputs)
    ):
        return []
    shapes = [[None if dim is None else int(dim) for dim in tensor.shape] for tensor in model.outputs]
    return [[None, *shape[1:]] if shape else [] for shape in shapes]


def _is_sequential(model: Any) -> bool:
    return any(kind.__name__ == "Sequential" for kind in type(model).__mro__)


def _layer_name(tensor: Any) -> str:
    history = tensor._keras_history
    return str((history.operation if hasattr(history, "operation") else history.layer).name)


def _own_example(config: ExportConfig, names: Sequence[str]) -> Feeds | None:
    """The user's example under the model's own names; it may be given under the names of `input_names`."""
    example = config.inputs
    if (
        isinstance(example, Mapping)
        and config.input_names is not None
        and set(example) == set(config.input_names)
    ):
        example = [example[name] for name in config.input_names]
    return bind_example(example, names)


def _declared_shapes(config: ExportConfig, inputs: tuple[SourceInput, ...]) -> tuple[SourceInput, ...]:
    """The model's inputs with the sizes and names of sizes that `config.inputs` declares in words."""
    declared = declared_inputs(config.inputs)
    if declared is None:
        return inputs
    said = ", ".join(
        f"{i.name}: {i.dtype.value}{['open' if d is None else d for d in i.shape]}" for i in inputs
    )
    names = config.input_names or [spec.name for spec in inputs]
    if [spec.name for spec in declared] != list(names):
        raise ExportError(f"inputs declares {', '.join(map(str, declared))}, but the model takes {said}.")
    for spec, own in zip(declared, inputs, strict=True):
        fits = len(spec.shape) == len(own.shape) and all(
            o is None or o == d for o, d in zip(own.shape, spec.shape, strict=True)
        )
        if spec.dtype is not own.dtype or not fits:
            raise ExportError(f"inputs declares {spec}, but the model takes {said}.")
    return tuple(replace(own, shape=spec.shape) for spec, own in zip(declared, inputs, strict=True))


def _packed_call(model: Any) -> Call:
    """Calls the model with its inputs in the structure that it was built with: one, a list, or a dict."""
    order = {id(tensor): k for k, tensor in enumerate(model.inputs)}

    def pack(structure: Any, tensors: Sequence[Any]) -> Any:
        if isinstance(structure, Mapping):
            return {key: pack(item, tensors) for key, item in structure.items()}
        if isinstance(structure, list | tuple):
            return [pack(item, tensors) for item in structure]
        return tensors[order[id(structure)]]

    structure = model.inputs[0] if _is_sequential(model) else model.input
    answer = _training_off(model)
    return lambda tensors: answer(pack(structure, tensors))


def _training_off(model: Any) -> Callable[..., Any]:
    # tf_keras refuses `training` where `call` does not take it; Keras 3 drops it there.
    if getattr(model, "_expects_training_arg", True):
        return lambda *args, **kwargs: model(*args, training=False, **kwargs)
    return lambda *args, **kwargs: model(*args, **kwargs)


def _embedding_rows(model: Any, symbolic: Sequence[Any], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each input that an Embedding indexes: the rows that it has."""
    rows: dict[str, tuple[int, int]] = {}
    for layer in model.layers:
        if type(layer).__name__ != "Embedding":
            continue
        try:
            indexed = layer.input
        except (AttributeError, ValueError):  # used in several places, so it has no one input
            continue
        for tensor, name in zip(symbolic, names, strict=True):
            if tensor is indexed:
                rows[name] = (0, min(rows.get(name, (0, layer.input_dim - 1))[1], layer.input_dim - 1))
    return rows


# --- double precision ---------------------------------------------------------------------------------------


def _twin_builder(model: Any) -> Callable[[], Call] | None:
    if model.count_params() * 8 > _TWIN_LIMIT_BYTES:
        return None
    return lambda: _packed_call(_double_precision(model))


def _double_precision(model: Any) -> Any:
    """The same model built anew from its configuration with float64 layers and the same weights."""
    twin = type(model).from_config(_widened(model.get_config()))
    if not twin.built:
        twin.build(model.input_shape)
    twin.set_weights([w.astype(np.float64) if _is_floating(w) else w for w in model.get_weights()])
    return twin


def _is_floating(array: Array) -> bool:
    return DType.from_numpy(array.dtype).is_floating


def _widened(config: Any) -> Any:
    """A model's configuration with every floating dtype and dtype policy made float64."""
    if isinstance(config, list | tuple):
        return type(config)(_widened(item) for item in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") in ("DTypePolicy", "Policy"):
        return {**config, "config": {**config["config"], "name": _widened_name(config["config"].get("name"))}}
    return {key: _widened_name(v) if key == "dtype" else _widened(v) for key, v in config.items()}


def _widened_name(name: Any) -> Any:
    return "float64" if isinstance(name, str) and name in _NARROW_POLICIES else _widened(name)


# --- models that do not say what they take -------------------------------------------------------------------


def _open_module(module: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    signature = getattr(module.__call__, "input_signature", None)
    if signature is None:
        return _open_callable(module, module, module.__call__, config, weights)
    specs, _ = signature if _is_pair(signature) else (signature, {})
    parameters = [*inspect.signature(module.__call__).parameters]
    names = [spec.name or parameters[k] for k, spec in enumerate(specs)]
    inputs = tuple(
        SourceInput(name, source_dtype(spec.dtype), tuple(spec.shape.as_list()))
        for name, spec in zip(names, specs, strict=True)
    )
    inputs = _declared_shapes(config, inputs)
    example = None if declared_inputs(config.inputs) is not None else _own_example(config, names)
    return TensorFlowModel(
        call=lambda tensors: module(*tensors),
        inputs=inputs,
        dims_are_declared=True,
        example=example,
        weights=weights,
    )


def _is_pair(signature: Any) -> bool:
    return len(signature) == 2 and isinstance(signature[1], Mapping)


def _open_callable(
    source: Any,
    answer: Callable[..., Any],
    function: Callable[..., Any],
    config: ExportConfig,
    weights: Weights,
) -> SourceModel:
    """A model whose inputs are known only from the user's example or words."""
    if config.inputs is None:
        raise ExportError(
            f"{type(source).__name__} does not say what it takes. Give an example (inputs=array, tuple or dict) "
            "or words (inputs='x:float32[batch,3]')."
        )
    parameters = _call_parameters(function)
    declared = declared_inputs(config.inputs)
    if declared is not None:
        names = [spec.name for spec in declared]
        inputs = tuple(SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared)
        call = _call_by_name(answer, parameters, names)
        return TensorFlowModel(call=call, inputs=inputs, dims_are_declared=True, weights=weights)
    if isinstance(config.inputs, Mapping):
        names = [str(name) for name in config.inputs]
        call = _call_by_name(answer, parameters, names)
    else:
        count = len(config.inputs) if isinstance(config.inputs, tuple | list) else 1
        names, call = _call_by_position(answer, parameters, count)
    example = bind_example(config.inputs, names)
    assert example is not None
    inputs = tuple(SourceInput(n, DType.from_numpy(example[n].dtype), example[n].shape) for n in names)
    return TensorFlowModel(call=call, inputs=inputs, example=example, weights=weights)


def _call_parameters(function: Callable[..., Any]) -> list[str]:
    own = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind in own and p.name not in ("self", "training", "mask")]


def _call_by_name(answer: Callable[..., Any], parameters: Sequence[str], names: Sequence[str]) -> Call:
    if set(names) <= set(parameters):
        return lambda tensors: answer(**dict(zip(names, tensors, strict=True)))
    if len(names) == 1:
        return lambda tensors: answer(tensors[0])
    if len(parameters) == 1:
        return lambda tensors: answer(dict(zip(names, tensors, strict=True)))
    raise ExportError(
        f"the inputs are named {list(names)}, but the model's call takes {list(parameters)}; use those names, "
        "or give a tuple in that order."
    )


def _call_by_position(
    answer: Callable[..., Any], parameters: Sequence[str], count: int
) -> tuple[list[str], Call]:
    if count <= len(parameters):
        return list(parameters[:count]), lambda tensors: answer(*tensors)
    if len(parameters) == 1:
        return [f"{parameters[0]}_{k}" for k in range(count)], lambda tensors: answer(list(tensors))
    raise ExportError(f"the example has {count} arrays, but the model's call takes {list(parameters)}.")
