"""config.pbtxt through Triton's own protobuf message: read, render, make, check against a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from paritygate.converter.types import Dim, DType, Signature, TensorSpec
from paritygate.serving.publish.config_text import replace_version_list
from paritygate.serving.publish.errors import ConfigInvalid, SignatureMismatch

CONFIG_FILE = "config.pbtxt"
BACKEND = "onnxruntime"

Message: TypeAlias = Any
"""A protobuf message; protobuf's generated classes carry no types."""

_DATATYPES = {
    DType.BOOL: "BOOL",
    DType.UINT8: "UINT8",
    DType.UINT16: "UINT16",
    DType.UINT32: "UINT32",
    DType.UINT64: "UINT64",
    DType.INT8: "INT8",
    DType.INT16: "INT16",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
    DType.FLOAT16: "FP16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT32: "FP32",
    DType.FLOAT64: "FP64",
    DType.STRING: "STRING",
}
_DTYPES = {name: dtype for dtype, name in _DATATYPES.items()}

_HEADER = (
    "# Written by paritygate. Publishing changes the version list and nothing else:\n"
    "# every other field is yours to edit (instance_group, dynamic_batching, ...).\n"
)


@dataclass(frozen=True)
class ConfigTensor:
    """One input or output as a config declares it.

    Attributes:
        name: The name clients use.
        dtype: Element type, or None where the config leaves it to the server.
        dims: Sizes without the batch dimension; -1 may vary.
        reshape: The shape that the model itself sees, or None where it sees `dims`.
        optional: Whether a request may leave this input out.
        label_filename: The file with class labels, relative to the model's folder, or an empty string.
    """

    name: str
    dtype: DType | None
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    label_filename: str = ""

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims that the model itself sees, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are to be served.

    Attributes:
        kind: `specific`, `latest` or `all`.
        versions: The numbers that `specific` lists, in its order; else empty.
        num_versions: How many `latest` keeps; else 0.
    """

    kind: str
    versions: tuple[int, ...] = ()
    num_versions: int = 0

    def select(self, available: Sequence[int]) -> tuple[int, ...]:
        """The versions to be served of those that have a folder, ascending."""
        ordered = sorted(available)
        if self.kind == "specific":
            return tuple(v for v in ordered if v in self.versions)
        if self.kind == "latest":
            return tuple(ordered[-self.num_versions :])
        return tuple(ordered)


@dataclass(frozen=True)
class ModelConfig:
    """One model's config.pbtxt; treat `message` as read-only.

    Attributes:
        message: The parsed `inference.ModelConfig`, every field included.
        text: The text it came from, which keeps the operator's comments and order.
    """

    message: Message
    text: str

    @property
    def name(self) -> str:
        """The model's name; empty where the config leaves it to the folder's name."""
        return str(self.message.name)

    @property
    def backend(self) -> str:
        """The backend: `backend`, or what the older `platform` field stands for."""
        platform = str(self.message.platform)
        return str(self.message.backend) or {"onnxruntime_onnx": BACKEND}.get(platform, platform)

    @property
    def max_batch_size(self) -> int:
        """Largest batch; 0 means that shapes have no batch dimension of their own."""
        return int(self.message.max_batch_size)

    @property
    def model_filename(self) -> str:
        """The file in a version's folder that the backend opens."""
        return str(self.message.default_model_filename) or "model.onnx"

    @property
    def inputs(self) -> tuple[ConfigTensor, ...]:
        """The declared inputs, in the order of the config."""
        return tuple(_tensor_from_message(m) for m in self.message.input)

    @property
    def outputs(self) -> tuple[ConfigTensor, ...]:
        """The declared outputs, in the order of the config."""
        return tuple(_tensor_from_message(m) for m in self.message.output)

    @property
    def version_policy(self) -> VersionPolicy:
        """The version policy; Triton's default is the one latest version."""
        policy = self.message.version_policy
        kind = policy.WhichOneof("policy_choice") or "latest"
        if kind == "specific":
            return VersionPolicy(kind, versions=tuple(map(int, policy.specific.versions)))
        if kind == "latest":
            return VersionPolicy(kind, num_versions=int(policy.latest.num_versions) or 1)
        return VersionPolicy(kind)

    def with_versions(self, versions: Sequence[int]) -> ModelConfig:
        """The same config with another version list; no other field, and where possible no other byte, changes.

        The text is edited in place, so that comments survive. The edit counts only if it parses to exactly the
        message that was meant; else the message is rendered anew.
        """
        message = model_config_pb2.ModelConfig()
        message.CopyFrom(self.message)
        message.version_policy.Clear()
        message.version_policy.specific.versions.extend(versions)
        edited = replace_version_list(self.text, versions)
        if edited is not None and _parses_to(edited, message):
            return ModelConfig(message, edited)
        return ModelConfig(message, render_message(message))


def render_message(message: Message) -> str:
    """The message as config.pbtxt text, with short lists."""
    return str(text_format.MessageToString(message, use_short_repeated_primitives=True))


def _parses_to(text: str, expected: Message) -> bool:
    try:
        return bool(text_format.Parse(text, model_config_pb2.ModelConfig()) == expected)
    except text_format.ParseError:
        return False


def _tensor_from_message(message: Message) -> ConfigTensor:
    datatype = model_config_pb2.DataType.Name(message.data_type).removeprefix("TYPE_")
    return ConfigTensor(
        name=str(message.name),
        dtype=_DTYPES.get(datatype),
        dims=tuple(map(int, message.dims)),
        reshape=tuple(map(int, message.reshape.shape)) if message.HasField("reshape") else None,
        optional=bool(getattr(message, "optional", False)),
        label_filename=str(getattr(message, "label_filename", "")),
    )


def parse_config(text: str, *, model: str | None = None, path: Path | None = None) -> ModelConfig:
    """Parse the text of a config.pbtxt.

    Args:
        text: The file's text.
        model: The model's folder name; a different `name` in the text is refused, as Triton refuses it. None where
            the config lies in no model's folder.
        path: Where the text came from, for the message.

    Raises:
        ConfigInvalid: If the text does not parse, names an unknown field, or holds a value that Triton refuses.
    """
    place = path or f"the config of model '{model}'"
    known_as = model or ""
    try:
        message = text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigInvalid(
            f"{place} is not a Triton model config: line {error}. Correct it and try again.",
            model=known_as,
            path=path,
        ) from error
    except (ValueError, TypeError, RecursionError) as error:  # a number out of range, nesting without end
        raise ConfigInvalid(
            f"{place} is not a Triton model config: {error}. Correct it and try again.",
            model=known_as,
            path=path,
        ) from error
    config = ModelConfig(message, text)
    fault = next(_value_faults(config, model), None)
    if fault:
        raise ConfigInvalid(
            f"model '{model or config.name}': {fault} @ {place}.", model=known_as or config.name, path=path
        )
    return config


def load_config(path: Path, *, model: str | None = None) -> ModelConfig:
    """Read and parse one config.pbtxt; `model` as in `parse_config`.

    Raises:
        ConfigInvalid: If the file is not UTF-8 text, or `parse_config` refuses it.
        OSError: If it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{path} is not UTF-8 text: {error}.", model=model or "", path=path) from error
    return parse_config(text, model=model, path=path)


def _value_faults(config: ModelConfig, model: str | None) -> Iterator[str]:
    """What parses but no Triton loads.

    Source: reference texts of Triton 2.51 for the same values (ValidateModelConfig).
    """
    if config.name and model is not None and config.name != model:
        yield f"the config's name is '{config.name}', expected the folder's name '{model}'"
    if config.max_batch_size < 0:
        yield f"max_batch_size is {config.max_batch_size}, expected 0 (no batch dimension) or more"
    policy = config.message.version_policy
    for version in policy.specific.versions:
        if version < 0:
            yield f"version_policy lists version {version}, expected whole numbers from 0 up"
    if config.version_policy.kind == "specific" and not config.version_policy.versions:
        yield "version_policy lists no versions, expected at least one"
    for kind, messages in (("input", config.message.input), ("output", config.message.output)):
        for tensor in messages:
            if tensor.data_type not in model_config_pb2.DataType.values():
                yield f"{kind} '{tensor.name}' has data_type {tensor.data_type}, which stands for no type"
    for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
        yield from _tensor_faults(kind, tensors)


def _tensor_faults(kind: str, tensors: Sequence[ConfigTensor]) -> Iterator[str]:
    seen: set[str] = set()
    for tensor in tensors:
        if not tensor.name:
            yield f"an {kind} has no name"
        if tensor.name in seen:
            yield f"{kind} '{tensor.name}' is declared twice"
        seen.add(tensor.name)
        if not tensor.dims:
            yield f"{kind} '{tensor.name}' has no dims"
        for dim in tensor.dims:
            if dim < 1 and dim != -1:
                yield f"{kind} '{tensor.name}' has dim {dim}, expected 1 or more, or -1 for a size that varies"


def config_from_signature(
    name: str,
    signature: Signature,
    *,
    graph: Signature | None = None,
    versions: Sequence[int] = (1,),
    max_batch_size: int = 0,
) -> ModelConfig:
    """The config for a model that has none yet.

    Inputs come from what was proven. Outputs come from the graph, because Triton's onnxruntime backend compares
    outputs exactly: a demoted dimension is fixed on the way in, yet the graph calls it variable on the way out.

    Args:
        name: The model's name.
        signature: The proven signature; a demoted dimension is a fixed size here.
        graph: The graph's own signature; None where it is the same.
        versions: The version list.
        max_batch_size: 0 declares whole shapes; more makes axis 0 of every tensor the batch dimension.

    Raises:
        SignatureMismatch: If there is no common variable axis 0 to be the batch dimension, or a tensor has a fixed
            size of zero, which Triton refuses.
    """
    graph = graph or signature
    if max_batch_size < 0:
        raise ValueError(f"max_batch_size must be 0 or more, got {max_batch_size}")
    if max_batch_size:
        _require_batch_axis(signature, graph)
    message = model_config_pb2.ModelConfig(name=name, backend=BACKEND, max_batch_size=max_batch_size)
    batched = max_batch_size > 0
    for spec in signature.inputs:
        _fill_tensor(message.input.add(), spec, batched=batched)
    for spec in graph.outputs:
        _fill_tensor(message.output.add(), spec, batched=batched)
    message.version_policy.specific.SetInParent()
    return ModelConfig(message, _HEADER + render_message(message)).with_versions(versions)


def _require_batch_axis(signature: Signature, graph: Signature) -> None:
    """Refuse a batch dimension unless axis 0 of every tensor is one and the same variable dimension."""
    first = {spec.name: _first_dim(spec) for spec in (*signature.inputs, *signature.outputs)}
    first |= {spec.name: _first_dim(spec) for spec in graph.outputs if not isinstance(_first_dim(spec), str)}
    faults = [
        f"'{name}' has {'no dimensions' if dim is None else f'the fixed size {dim} at axis 0'}"
        for name, dim in first.items()
        if not isinstance(dim, str)
    ]
    if not faults and len(set(first.values())) > 1:
        faults = [f"'{name}' calls axis 0 '{dim}'" for name, dim in first.items()]
    if faults:
        raise SignatureMismatch(
            "max_batch_size needs the same variable dimension at axis 0 of every input and output, but "
            f"{'; '.join(faults)}. Publish with max_batch_size 0.",
            faults=faults,
        )


def _first_dim(spec: TensorSpec) -> Dim | None:
    return spec.shape[0] if spec.shape else None


def _fill_tensor(message: Message, spec: TensorSpec, *, batched: bool) -> None:
    """Declare one tensor; a shape without dims is said as [1] with a reshape, as Triton has no empty dims."""
    dims = wildcard_dims(spec)[1 if batched else 0 :]
    if 0 in dims:
        fault = f"'{spec.name}' has a fixed size of 0: {list(dims)}"
        raise SignatureMismatch(
            f"Triton has no tensor of size 0, but {fault}. Export it without that tensor.", faults=[fault]
        )
    message.name = spec.name
    message.data_type = model_config_pb2.DataType.Value(f"TYPE_{_DATATYPES[spec.dtype]}")
    message.dims.extend(dims or (1,))
    if not dims:
        message.reshape.SetInParent()


def wildcard_dims(spec: TensorSpec) -> tuple[int, ...]:
    """The shape as Triton writes it: -1 for a size that varies."""
    return tuple(dim if isinstance(dim, int) else -1 for dim in spec.shape)


def check_config_against_graph(
    config: ModelConfig, graph: Signature, *, proven: Signature | None = None, model: str | None = None
) -> None:
    """Refuse a config that Triton's native onnxruntime backend would refuse for this graph.

    Inputs: all of them, same dtype; a variable dimension of the graph takes any size, a fixed one only its own.
    Outputs: those declared, same dtype, dims exactly equal. With max_batch_size over 0 axis 0 of each is variable.
    Beyond that, an input dimension that was proven at one size only may not be declared with another.

    Args:
        config: The config that all versions of the model share.
        graph: The graph's own signature, as the runtime reports it.
        proven: The proven signature; None checks the graph alone.
        model: The model's name for the message; the config's own name by default.

    Raises:
        SignatureMismatch: With every fault.

    Source: ValidateInputs, ValidateOutputs, CompareDimsSupported of triton-inference-server/onnxruntime_backend.
    """
    faults = list(_fit_faults(config, graph, proven))
    if faults:
        raise SignatureMismatch(
            f"the model does not fit the config.pbtxt of '{model or config.name}': {'; '.join(faults)}. "
            "Publish it under a new name, or change the config first.",
            faults=faults,
        )


def _fit_faults(config: ModelConfig, graph: Signature, proven: Signature | None) -> Iterator[str]:
    if config.backend != BACKEND:
        yield f"the config's backend is '{config.backend}', expected '{BACKEND}'"
    batched = config.max_batch_size > 0
    declared_inputs = {tensor.name for tensor in config.inputs}
    for spec in graph.inputs:
        if spec.name not in declared_inputs:
            yield f"input '{spec.name}' of the model is not in the config"
    yield from _tensors_fit("input", config.inputs, graph.inputs, batched=batched, exact=False)
    yield from _tensors_fit("output", config.outputs, graph.outputs, batched=batched, exact=True)
    if proven is not None:
        yield from _proven_fit(config.inputs, proven.inputs, batched=batched)
        declared_outputs = {tensor.name for tensor in config.outputs}
        for spec in proven.outputs:
            if spec.name not in declared_outputs:
                yield f"output '{spec.name}' of the model is not in the config"


def _tensors_fit(
    kind: str, tensors: Sequence[ConfigTensor], specs: Sequence[TensorSpec], *, batched: bool, exact: bool
) -> Iterator[str]:
    by_name = {spec.name: spec for spec in specs}
    for tensor in tensors:
        spec = by_name.get(tensor.name)
        if spec is None:
            yield f"{kind} '{tensor.name}' of the config is not in the model, which has {sorted(by_name)}"
            continue
        if tensor.dtype is not spec.dtype:
            given = f"TYPE_{_DATATYPES[tensor.dtype]}" if tensor.dtype else "no known type"
            yield f"{kind} '{tensor.name}' is {given} in the config, TYPE_{_DATATYPES[spec.dtype]} in the model"
        if not _dims_fit(tensor, wildcard_dims(spec), batched=batched, exact=exact):
            yield (
                f"{kind} '{tensor.name}' has dims {_full_dims(tensor, batched=batched)} in the config, "
                f"{list(wildcard_dims(spec))} in the model"
            )


def _full_dims(tensor: ConfigTensor, *, batched: bool) -> list[int]:
    return [*([-1] if batched else []), *tensor.model_dims]


def _dims_fit(tensor: ConfigTensor, model_dims: Sequence[int], *, batched: bool, exact: bool) -> bool:
    if batched and (not model_dims or model_dims[0] != -1):
        return False
    full = _full_dims(tensor, batched=batched)
    if len(full) != len(model_dims):
        return False
    pairs = zip(full, model_dims, strict=True)
    return all(given == model or (model == -1 and not exact) for given, model in pairs)


def _proven_fit(
    tensors: Sequence[ConfigTensor], specs: Sequence[TensorSpec], *, batched: bool
) -> Iterator[str]:
    by_name = {tensor.name: tensor for tensor in tensors}
    for spec in specs:
        tensor = by_name.get(spec.name)
        if tensor is None:
            continue
        full = _full_dims(tensor, batched=batched)
        for axis, (given, dim) in enumerate(zip(full, spec.shape, strict=False)):
            if isinstance(dim, int) and given != dim:
                yield f"input '{spec.name}' axis {axis} is {given} in the config, but is proven at {dim} only"
