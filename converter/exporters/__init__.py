"""Exporters: a trained model goes in, a sealed bundle with the source's own answers comes out.

`EXPORTERS` is the registry; a new framework is one new file and one line here. Names are resolved on use, so
that listing them imports no framework.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paritygate.converter.checkpoints.sniffing import refuse_foreign
from paritygate.converter.config import EXTERNAL_DATA_THRESHOLD_BYTES, ExportConfig
from paritygate.converter.exporters.detection import detect
from paritygate.converter.names import meant
from paritygate.converter.types import Feeds

if TYPE_CHECKING:
    from paritygate.converter.bundle import Bundle
    from paritygate.converter.exporters.base import Exporter

EXPORTERS: dict[str, str] = {
    "pytorch": "paritygate.converter.exporters.pytorch:PyTorchExporter",
    "keras": "paritygate.converter.exporters.keras:KerasExporter",
    "tensorflow": "paritygate.converter.exporters.tensorflow:TensorFlowExporter",
    "jax": "paritygate.converter.exporters.jax:JaxExporter",
    "sklearn": "paritygate.converter.exporters.sk:SklearnExporter",
    "xgboost": "paritygate.converter.exporters.xgboost:XGBoostExporter",
    "lightgbm": "paritygate.converter.exporters.lightgbm:LightGBMExporter",
    "pmml": "paritygate.converter.exporters.pmml:PmmlExporter",
    "onnx": "paritygate.converter.exporters.onnx_file:OnnxFileExporter",
    "paddle": "paritygate.converter.exporters.paddle:PaddleExporter",
    "mindspore": "paritygate.converter.exporters.mindspore:MindSporeExporter",
}
"""Name of a framework -> `module:class` of its exporter."""

__all__ = ["EXPORTERS", "detect", "export_model", "exporter_for", "get_exporter"]


def get_exporter(name: str) -> Exporter:
    """The exporter of a framework; its framework is imported only when it exports.

    Raises:
        ValueError: If no exporter has this name; the text lists those that are known.
    """
    if name not in EXPORTERS:
        near = meant(name, EXPORTERS)
        hint = f"Did you mean {near!r}? " if near else ""
        raise ValueError(f"unknown framework {name!r}. {hint}Expected one of {', '.join(sorted(EXPORTERS))}.")
    exporter: Exporter = pkgutil.resolve_name(EXPORTERS[name])()
    return exporter


def exporter_for(source: Any, framework: str | None) -> Exporter:
    """The exporter that a person named, or else the one that the source belongs to.

    Raises:
        SourceError: If the source cannot be told, or is of a form that the named exporter does not read.
        ValueError: If no exporter has the name.
    """
    if framework is None:
        return get_exporter(detect(source))
    exporter = get_exporter(framework)
    if isinstance(source, str | Path):
        refuse_foreign(source, framework)
    return exporter


def export_model(
    source: Any,
    directory: str | Path,
    *,
    name: str,
    framework: str | None = None,
    inputs: Any = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = 18,
    trust: bool = False,
    factory: str | None = None,
    weights: str | None = None,
    signature: str | None = None,
    keep_saved_model: bool = False,
    samples: Iterable[Feeds] | None = None,
    include_samples: bool = False,
    integer_ranges: Mapping[str, tuple[int, int]] | None = None,
    seed: int = 1,
    external_data_threshold_bytes: int = EXTERNAL_DATA_THRESHOLD_BYTES,
    after_conversion: Callable[[Path], None] | None = None,
) -> Bundle:
    """Export a model to a new bundle directory, in this process.

    Args:
        source: A model in memory, the path of a checkpoint or saved model, or `module:factory`.
        directory: Where the bundle goes; it must not exist yet and appears whole or not at all.
        name: The model's name.
        framework: A name of `EXPORTERS`; None tells it from the source.
        inputs: Example inputs, see `ExportConfig.inputs`.
        dynamic: Open dimensions, see `ExportConfig.dynamic`.
        input_names: Names of the inputs in their order.
        output_names: Names of the outputs in their order.
        opset: Version of the default operator set.
        trust: Whether files that can run code may be opened.
        factory: `module:function` that builds the network for a weights file.
        weights: The entry of a training checkpoint that holds the weights, see `ExportConfig.weights`.
        signature: Which signature of a SavedModel, see `ExportConfig.signature`.
        keep_saved_model: Whether the SavedModel travels with the bundle.
        samples: The user's own inputs; kept out of the bundle unless `include_samples`.
        include_samples: Whether the samples are sealed into the bundle as probes.
        integer_ranges: Smallest and largest value of integer inputs, by name.
        seed: Seed of the probes.
        external_data_threshold_bytes: Weights above this go to a side file; 0 forces it.
        after_conversion: Fault injection, see `ExportConfig.after_conversion`.

    Returns:
        The sealed bundle, read back from `directory`.

    Raises:
        SourceError: If the source cannot be opened.
        ExportError: If the model cannot become ONNX.
        BundleError: If the bundle cannot be written.
        ValueError: If an argument cannot be meant.
    """
    config = ExportConfig(
        name=name,
        inputs=inputs,
        dynamic=dynamic,
        input_names=None if input_names is None else tuple(input_names),
        output_names=None if output_names is None else tuple(output_names),
        opset=opset,
        trust=trust,
        factory=factory,
        weights=weights,
        signature=signature,
        keep_saved_model=keep_saved_model,
        samples=tuple(samples or ()),
        include_samples=include_samples,
        integer_ranges=dict(integer_ranges or {}),
        seed=seed,
        external_data_threshold_bytes=external_data_threshold_bytes,
        after_conversion=after_conversion,
    )
    return exporter_for(source, framework).export(source, Path(directory), config)
