"""The finished model to disk, its weights beside it where they are large."""

from __future__ import annotations

import onnx

from paritygate.converter.exporters.base import ConversionRequest


def write_model(model: onnx.ModelProto, request: ConversionRequest) -> None:
    """Write to the place that a conversion request names."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if size <= request.external_data_threshold_bytes:
        onnx.save(model, request.path)
        return
    onnx.save(
        model,
        request.path,
        save_as_external_data=True,
        location=f"{request.path.name}.data",
        size_threshold=1024 if request.external_data_threshold_bytes else 0,
    )
