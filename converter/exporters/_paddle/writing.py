"""The finished model to disk, its weights beside it where they are large."""

from __future__ import annotations

from paritygate.converter.exporters._paddle.conversion import Converted
from paritygate.converter.exporters.base import ConversionRequest
from paritygate.converter.graph.weights import save_apart


def write_model(converted: Converted, request: ConversionRequest) -> None:
    """Write to the place that a conversion request names; the file of the weights is moved there."""
    save_apart(converted.model, converted.weights, request.path, request.external_data_threshold_bytes)
