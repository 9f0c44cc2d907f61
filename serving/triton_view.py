"""A model's config and counters in the words of Triton: what the config and statistics calls answer.

Triton fills a config in before it shows it; clients such as perf_analyzer read the filled fields. The defaults are
those of Triton 2.51 for a model of the onnxruntime backend on a machine without a GPU.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from paritygate.serving.models import Model, Version
from paritygate.serving.publish.triton_config import ModelConfig
from paritygate.serving.statistics import Duration
from paritygate.serving.validation import ModelRules, TensorRule

_CPU_INSTANCES = 2


def filled_config(config: ModelConfig, rules: ModelRules) -> Any:
    """The config as Triton shows it: the message of config.pbtxt with the defaults written out."""
    message = model_config_pb2.ModelConfig()
    message.CopyFrom(config.message)
    message.name = rules.model
    message.platform = message.platform or "onnxruntime_onnx"
    message.backend = config.backend
    message.default_model_filename = config.model_filename
    if not message.version_policy.WhichOneof("policy_choice"):
        message.version_policy.latest.num_versions = 1
    _fill_tensors(message, rules)
    message.optimization.input_pinned_memory.enable = True
    message.optimization.output_pinned_memory.enable = True
    _fill_instances(message, rules.model)
    _fill_batching(message)
    return message


def _fill_tensors(message: Any, rules: ModelRules) -> None:
    if not message.input:
        for rule in rules.inputs.values():
            _fill_tensor(message.input.add(), rule)
    if not message.output:
        for rule in rules.outputs.values():
            _fill_tensor(message.output.add(), rule)


def _fill_tensor(tensor: Any, rule: TensorRule) -> None:
    word = "STRING" if rule.datatype == "BYTES" else rule.datatype
    tensor.name = rule.name
    tensor.data_type = model_config_pb2.DataType.Value(f"TYPE_{word}")
    tensor.dims.extend(rule.wildcard_shape)


def _fill_instances(message: Any, model: str) -> None:
    """Name and count the instance groups: one under the model's own name where the config has none."""
    groups = message.instance_group
    unnamed = [f"{model}_{index}" for index in range(len(groups))]
    if not groups:
        groups.add()
        unnamed = [model]
    for group, name in zip(groups, unnamed, strict=True):
        group.name = group.name or name
        if group.kind == model_config_pb2.ModelInstanceGroup.KIND_AUTO:
            group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
        group.count = group.count or _CPU_INSTANCES


def _fill_batching(message: Any) -> None:
    batching = message.WhichOneof("scheduling_choice") == "dynamic_batching"
    if batching and message.max_batch_size and not message.dynamic_batching.preferred_batch_size:
        message.dynamic_batching.preferred_batch_size.append(message.max_batch_size)


def message_to_json(message: Any) -> dict[str, Any]:
    """A protobuf message as Triton writes it: original names, defaults written out, 64-bit integers as numbers."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            result[field.name] = {
                str(k): _plain(field.message_type.fields_by_name["value"], v) for k, v in value.items()
            }
        elif _is_repeated(field):
            result[field.name] = [_plain(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            result[field.name] = _plain(field, value)
    return result


def _is_repeated(field: Any) -> bool:
    return bool(getattr(field, "is_repeated", False))


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _plain(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_to_json(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    return value


def statistics_to_json(model: Model, version: Version) -> dict[str, Any]:
    """One entry of `model_stats`. Source: Triton's docs/protocol/extension_statistics.md."""
    counted = version.statistics
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    inference = {part: _duration(getattr(counted, part)) for part in parts}
    inference |= {"cache_hit": _duration(Duration()), "cache_miss": _duration(Duration())}
    return {
        "name": model.name,
        "version": str(version.number),
        "last_inference": counted.last_inference_ms,
        "inference_count": counted.inference_count,
        "execution_count": counted.execution_count,
        "inference_stats": inference,
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for size, batch in sorted(counted.batches.items())
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
