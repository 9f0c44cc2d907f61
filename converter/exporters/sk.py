"""scikit-learn estimators, in memory or as joblib and pickle files, become ONNX through skl2onnx.

Inputs are one float32 matrix `x`, or one column each where the estimator was fitted on named columns of mixed
types. A pickle runs whatever code it holds when it is opened, so a file is opened only if it is trusted.

The traps that this exporter is about:

- A tree compares float32 values with float64 thresholds. The source must be asked with exactly the float32 values
  that the graph gets, never with the float64 ones they were rounded from: samples near a threshold would flip.
- `predict` of a regressor gives one axis, the converted graph two; the graph is brought to the source's form.
- Labels are compared exactly: whole numbers as int64, texts as strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import is_first_for, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._sklearn.files import (
    import_module,
    load,
    refuse_unfitted,
    refuse_untrusted,
)
from paritygate.converter.exporters._sklearn.model import open_estimator
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights


class SklearnExporter(Exporter):
    """Exports fitted scikit-learn estimators and pipelines."""

    name = "sklearn"
    modules = ("sklearn", "skl2onnx", "joblib")

    def recognises(self, source: Any) -> bool:
        """A pickle, or an estimator in memory that is scikit-learn's own kind."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        return _is_estimator(source) and boosting_library(source) is None

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Refuse a pickle that is not trusted, or not there, without opening it."""
        if isinstance(source, Path) or not is_factory(source):
            refuse_untrusted(existing_file(source), trust=config.trust)

    def versions(self) -> Versions:
        """scikit-learn and skl2onnx."""
        sklearn, skl2onnx = import_module("sklearn"), import_module("skl2onnx")
        return Versions("scikit-learn", sklearn.__version__, "skl2onnx", skl2onnx.__version__)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Unpickle a trusted file, or take an estimator as it is: predicting changes nothing in it."""
        notes: list[str] = []
        weights = Weights()
        shown = source
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config, notes)
            config = replace(config, inputs=example) if config.inputs is None else config
        _refuse_others(source, shown)
        import_module("skl2onnx")
        refuse_unfitted(source)
        yield open_estimator(source, config, weights, notes)


def _is_estimator(source: Any) -> bool:
    return not isinstance(source, type) and any(
        kind.__name__ == "BaseEstimator" and kind.__module__ == "sklearn.base"
        for kind in type(source).__mro__
    )


def boosting_library(source: Any) -> str | None:
    """The exporter whose own an estimator or booster is: XGBoost and LightGBM speak scikit-learn's interface."""
    packages = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    return next((name for name in ("xgboost", "lightgbm") if name in packages), None)


def _refuse_others(source: Any, shown: Any) -> None:
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    library = boosting_library(source)
    if library is not None:
        where = f"{shown} holds" if isinstance(shown, str | Path) else "this is"
        raise SourceError(
            f"{where} a {kind}, which the {library} exporter exports. Name it: --framework {library} "
            f"(framework={library!r})."
        )
    if not _is_estimator(source):
        raise SourceError(
            f"a {kind} is not a scikit-learn estimator; expected a fitted one, or the path of a joblib file that "
            "holds one."
        )


def _from_text(source: str | Path, config: ExportConfig, notes: list[str]) -> tuple[Any, Any, Weights]:
    """The estimator that a path or `module:factory` stands for, the factory's example, and where it is from."""
    if is_factory(source) and not Path(source).exists():
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    refuse_foreign(path, SklearnExporter.name)
    return load(path, notes, trust=config.trust), None, Weights("as in the file", file_sha256(path))
