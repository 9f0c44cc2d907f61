"""What a version takes, and the check of a request against it: one place for every protocol.

Source: triton-inference-server/core, src/infer_request.cc (what is checked, and the texts for shape and datatype).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from paritygate.converter.types import Array, Dim, Signature, TensorSpec
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.publish.triton_config import ConfigTensor, ModelConfig
from paritygate.serving.types import (
    DATATYPE_NAMES,
    InferRequest,
    InferTensor,
    Parameter,
    RequestedOutput,
    TensorMetadata,
)

_RESERVED_PREFIX = "triton_"


@dataclass(frozen=True)
class TensorRule:
    """One input or output as clients see it.

    Attributes:
        name: Its name.
        datatype: Wire name of its element type.
        shape: As clients send or get it, batch dimension included; a `str` is a size that may vary, and the same
            text means the same size.
        model_shape: What the graph takes or gives where that is another shape (config's `reshape`), with -1 for
            sizes that vary; None where it is the same.
        optional: Whether a request may leave it out.
        labels: Class labels by index; empty without a label file.
    """

    name: str
    datatype: str
    shape: tuple[Dim, ...]
    model_shape: tuple[int, ...] | None = None
    optional: bool = False
    labels: tuple[str, ...] = ()

    @property
    def wildcard_shape(self) -> tuple[int, ...]:
        """The shape with -1 for sizes that vary, as metadata shows it."""
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.shape)

    def metadata(self) -> TensorMetadata:
        """This rule as metadata."""
        return TensorMetadata(self.name, self.datatype, self.wildcard_shape)


@dataclass(frozen=True)
class ModelRules:
    """What one version takes and gives.

    Attributes:
        model: The model's name, for messages.
        inputs: By name, in the order of the config.
        outputs: By name, in the order of the config.
        max_batch_size: Largest first dimension; 0 where shapes have no batch dimension of their own.
    """

    model: str
    inputs: Mapping[str, TensorRule]
    outputs: Mapping[str, TensorRule]
    max_batch_size: int

    @cached_property
    def all_outputs(self) -> list[RequestedOutput]:
        """What a request that names no output asks for."""
        return [RequestedOutput(name) for name in self.outputs]


def build_rules(
    config: ModelConfig, signature: Signature, *, model: str, labels: Mapping[str, tuple[str, ...]]
) -> ModelRules:
    """The rules of a version.

    Args:
        config: The model's config; where it declares no tensors they come from the signature.
        signature: What was proven, or the graph's own signature for an unproven version.
        model: The model's name.
        labels: Labels by output name.
    """
    batch = config.max_batch_size > 0
    inputs = _rules(config.inputs, signature.inputs, {}, batch=batch)
    outputs = _rules(config.outputs, signature.outputs, labels, batch=batch)
    return ModelRules(model, inputs, outputs, config.max_batch_size)


def _rules(
    tensors: tuple[ConfigTensor, ...],
    specs: tuple[TensorSpec, ...],
    labels: Mapping[str, tuple[str, ...]],
    *,
    batch: bool,
) -> dict[str, TensorRule]:
    if not tensors:
        return {spec.name: TensorRule(spec.name, DATATYPE_NAMES[spec.dtype], spec.shape) for spec in specs}
    by_name = {spec.name: spec for spec in specs}
    rules = (_rule(tensor, by_name[tensor.name], batch=batch) for tensor in tensors)
    return {rule.name: _with_labels(rule, labels.get(rule.name, ())) for rule in rules}


def _rule(tensor: ConfigTensor, spec: TensorSpec, *, batch: bool) -> TensorRule:
    lead: tuple[int, ...] = (-1,) if batch else ()
    declared = (*lead, *tensor.dims)
    model_shape = None if tensor.reshape is None else (*lead, *tensor.reshape)
    if model_shape is None:
        shape = tuple(_narrower(spec, axis, dim) for axis, dim in enumerate(declared))
    else:
        shape = tuple(f"{tensor.name}.{axis}" if dim == -1 else dim for axis, dim in enumerate(declared))
        if batch:
            shape = (_narrower(spec, 0, -1), *shape[1:])
    return TensorRule(tensor.name, DATATYPE_NAMES[spec.dtype], shape, model_shape, tensor.optional)


def _narrower(spec: TensorSpec, axis: int, declared: int) -> Dim:
    """The config's size where it has one, else the signature's size or name."""
    return spec.shape[axis] if declared == -1 else declared


def _with_labels(rule: TensorRule, labels: tuple[str, ...]) -> TensorRule:
    if not labels:
        return rule
    return TensorRule(rule.name, rule.datatype, rule.shape, rule.model_shape, rule.optional, labels)


@dataclass(slots=True)
class CheckedRequest:
    """A request that fits its version; nobody changes it, but freezing it costs a microsecond a request.

    Attributes:
        feeds: What the graph takes, by input name.
        outputs: The wanted outputs, in the order they are to be answered.
        batch_size: First dimension where the model batches, else 1.
        size_bytes: Sum of the bytes of all numeric inputs; strings count by element.
    """

    feeds: dict[str, Array]
    outputs: list[RequestedOutput]
    batch_size: int
    size_bytes: int


def check_request(rules: ModelRules, request: InferRequest) -> CheckedRequest:
    """Check a request against the rules of the version that is to answer it.

    Raises:
        InvalidArgument: With one sentence about the first thing that does not fit.
    """
    feeds: dict[str, Array] = {}
    sizes: dict[str, tuple[int, str]] = {}
    size_bytes = 0
    for tensor in request.inputs:
        rule = rules.inputs.get(tensor.name)
        if rule is None:
            raise InvalidArgument(
                f"unexpected inference input '{tensor.name}' for model '{rules.model}'; "
                f"it takes {_names(rules.inputs)}."
            )
        if tensor.name in feeds:
            raise InvalidArgument(
                f"input '{tensor.name}' is given twice; give each input of model '{rules.model}' once."
            )
        _check_tensor(rules, rule, tensor, sizes)
        feeds[tensor.name] = as_model_takes_it(rule, tensor.array)
        size_bytes += tensor.array.nbytes
    if len(feeds) != len(rules.inputs):
        _check_none_missing(rules, feeds)
    batch_size = _check_batch(rules, request)
    return CheckedRequest(feeds, _wanted_outputs(rules, request), batch_size, size_bytes)


def _check_tensor(
    rules: ModelRules, rule: TensorRule, tensor: InferTensor, sizes: dict[str, tuple[int, str]]
) -> None:
    if tensor.datatype != rule.datatype:
        raise InvalidArgument(
            f"inference input '{rule.name}' data-type is '{tensor.datatype}', "
            f"but model '{rules.model}' expects '{rule.datatype}'."
        )
    shape = tensor.array.shape
    if len(shape) != len(rule.shape):
        raise _unexpected_shape(rules, rule, shape)
    for given, wanted in zip(shape, rule.shape, strict=True):
        if type(wanted) is int:
            if given != wanted:
                raise _unexpected_shape(rules, rule, shape)
        elif type(wanted) is str:
            known = sizes.setdefault(wanted, (given, rule.name))
            if known[0] != given:
                raise InvalidArgument(
                    f"dimension '{wanted}' of model '{rules.model}' is {known[0]} in input '{known[1]}' "
                    f"but {given} in input '{rule.name}'; it must be the same in both."
                )


def _unexpected_shape(rules: ModelRules, rule: TensorRule, shape: tuple[int, ...]) -> InvalidArgument:
    expected = ",".join(map(str, rule.wildcard_shape))
    given = ",".join(map(str, shape))
    return InvalidArgument(
        f"unexpected shape for input '{rule.name}' for model '{rules.model}'. "
        f"Expected [{expected}], got [{given}]."
    )


def _check_none_missing(rules: ModelRules, feeds: Mapping[str, Array]) -> None:
    missing = [name for name, rule in rules.inputs.items() if name not in feeds and not rule.optional]
    if missing:
        raise InvalidArgument(
            f"expected {len(rules.inputs)} inputs but got {len(feeds)} for model '{rules.model}'; "
            f"missing {', '.join(repr(name) for name in missing)}."
        )


def _check_batch(rules: ModelRules, request: InferRequest) -> int:
    if not rules.max_batch_size or not request.inputs:
        return 1
    first = request.inputs[0]
    batch = int(first.array.shape[0])
    for tensor in request.inputs:
        if tensor.array.shape[0] != batch:
            raise InvalidArgument(
                f"input '{tensor.name}' batch size {tensor.array.shape[0]} does not match "
                f"input '{first.name}' batch size {batch} for model '{rules.model}'."
            )
    if not 1 <= batch <= rules.max_batch_size:
        raise InvalidArgument(
            f"input '{first.name}' has batch size {batch}; "
            f"model '{rules.model}' takes 1 to {rules.max_batch_size}."
        )
    return batch


def as_model_takes_it(rule: TensorRule, array: Array) -> Array:
    """An input in the shape that the graph takes.

    Raises:
        ValueError: If the sizes do not fit.
    """
    return array if rule.model_shape is None else _reshape(array, rule.model_shape, rule.wildcard_shape)


def as_clients_see_it(rule: TensorRule, array: Array) -> Array:
    """An output of the graph in the shape that the config declares.

    Raises:
        ValueError: If the sizes do not fit.
    """
    return array if rule.model_shape is None else _reshape(array, rule.wildcard_shape, rule.model_shape)


def _reshape(array: Array, target: tuple[int, ...], source: tuple[int, ...]) -> Array:
    """Reshape where several sizes vary: they keep their order, as Triton's `reshape` has it."""
    varying: Iterator[int] = (size for size, dim in zip(array.shape, source, strict=True) if dim == -1)
    if source.count(-1) == target.count(-1):
        return array.reshape([next(varying) if dim == -1 else dim for dim in target])
    return array.reshape(target)


def _wanted_outputs(rules: ModelRules, request: InferRequest) -> list[RequestedOutput]:
    if not request.outputs:
        return rules.all_outputs
    seen: set[str] = set()
    for output in request.outputs:
        if output.name not in rules.outputs:
            raise InvalidArgument(
                f"unexpected inference output '{output.name}' for model '{rules.model}'; "
                f"it gives {_names(rules.outputs)}."
            )
        if output.name in seen:
            raise InvalidArgument(f"output '{output.name}' is asked for twice; name each output once.")
        seen.add(output.name)
    return request.outputs


def check_parameters(parameters: Mapping[str, Parameter]) -> None:
    """Refuse request parameters that are kept for the server.

    Raises:
        InvalidArgument: If a name is reserved.
    """
    for key in parameters:
        if key.startswith(_RESERVED_PREFIX) and key != "triton_enable_empty_final_response":
            raise InvalidArgument(
                f"parameter '{key}' is reserved: names that start with 'triton_' are the server's own."
            )


def _names(rules: Mapping[str, TensorRule]) -> str:
    return ", ".join(repr(name) for name in rules)
