"""LightGBM boosters and estimators, in memory or in LightGBM's own text files, become trees of ai.onnx.ml.

Written from the model's text rather than by onnxmltools, which ends at opset 15 and rounds thresholds to float32.

The traps that this file is about:

- Thresholds are float64 and compared with `<=`; they stay float64 in the graph.
- What is missing is told by each feature: nothing (a NaN counts as 0), zeros and NaNs, or NaNs.
- A category is the value without its fraction; NaN and what was never seen are in no set.
- `predict` stops at the best round where training stopped early; the text that is written holds those rounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError, UnsupportedOperator
from paritygate.converter.exporters._sklearn.answers import as_labels
from paritygate.converter.exporters._sklearn.files import load, refuse_untrusted
from paritygate.converter.exporters._trees.booster import BoosterModel, given_matrix
from paritygate.converter.exporters._trees.ensemble import (
    PREDICTION,
    PROBABILITIES,
    SCORES,
    Answer,
    Ensemble,
)
from paritygate.converter.exporters._trees.lightgbm_document import (
    RANKING,
    SHARES,
    ModelText,
    without_the_rest,
)
from paritygate.converter.exporters.base import Exporter, SourceInput, SourceModel, Versions, Weights
from paritygate.converter.types import Array, Feeds


class LightGBMExporter(Exporter):
    """Exports LightGBM boosters and estimators."""

    name = "lightgbm"
    modules = ("lightgbm",)

    def recognises(self, source: Any) -> bool:
        """A file that LightGBM wrote, a booster or a fitted estimator."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        return _is_booster(source) or _is_estimator(source)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Refuse what is no whole file of LightGBM, or a pickle that is not trusted."""
        if isinstance(source, Path) or not is_factory(source):
            _check_file(existing_file(source), trust=config.trust)

    def versions(self) -> Versions:
        """LightGBM, and the converter that is our own."""
        return Versions("lightgbm", str(_import().__version__), "paritygate", "1")

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, or take a model as it is: predicting changes nothing in it."""
        weights = Weights()
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config)
            config = replace(config, inputs=example) if config.inputs is None else config
        if not (_is_booster(source) or _is_estimator(source)):
            raise SourceError(
                f"a {type(source).__module__}.{type(source).__qualname__} is no LightGBM model; expected a "
                "Booster, a fitted estimator such as LGBMClassifier, or the path of a .txt file."
            )
        _import()
        yield _open(source, config, weights)


def _import() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except ImportError as error:
        raise ExportError(
            f"exporting a LightGBM model needs lightgbm, which cannot be imported here ({error}). Install "
            "paritygate[lightgbm], or save the model as .txt and run `paritygate export`, which uses an "
            "environment of its own."
        ) from error


def _is_booster(source: Any) -> bool:
    return any(kind.__name__ == "Booster" and kind.__module__ == "lightgbm.basic" for kind in _kinds(source))


def _is_estimator(source: Any) -> bool:
    return any(
        kind.__name__ == "LGBMModel" and kind.__module__ == "lightgbm.sklearn" for kind in _kinds(source)
    )


def _kinds(source: Any) -> tuple[type, ...]:
    return () if isinstance(source, type) else type(source).__mro__


# --- files --------------------------------------------------------------------------------------------------


def _from_text(source: str | Path, config: ExportConfig) -> tuple[Any, Any, Weights]:
    if is_factory(source) and not Path(source).exists():
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    text = _check_file(path, trust=config.trust)
    weights = Weights("as in the file", file_sha256(path))
    if text is None:
        return load(path, [], trust=config.trust), None, weights
    lightgbm = _import()
    try:
        return lightgbm.Booster(model_str=without_the_rest(text)), None, weights
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        line = (str(error).strip().splitlines() or [""])[0][:300]
        raise SourceError(f"LightGBM cannot load {path}: {line}. Save the model again.") from error


def _check_file(path: Path, *, trust: bool) -> str | None:
    """The text in a file of LightGBM, whose parser trusts whatever it reads; None for a pickle.

    Raises:
        SourceError: If the file is not whole, or not of LightGBM.
        UnsafeSource: If it is a pickle that is not trusted.
    """
    refuse_foreign(path, "lightgbm")
    if look_at(path) is Form.PICKLE:
        refuse_untrusted(path, trust=trust)
        return None
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is no text; expected what LightGBM's save_model wrote.") from error
    if text.lstrip().startswith("{") and '"tree_info"' in text:
        raise SourceError(
            f"{path} is what dump_model gives, which LightGBM itself cannot load again. Save the booster with "
            "save_model and export that file."
        )
    if not text.startswith("tree\n"):
        raise SourceError(
            f"{path} is no LightGBM model; expected what save_model wrote, which begins with 'tree'."
        )
    try:
        model = ModelText.parse(text)
        model.forest()
        model.preparation()
        _ = model.link
    except UnsupportedOperator as error:
        raise UnsupportedOperator(f"{path}: {error}", operator=error.operator, module=error.module) from error
    except ExportError as error:
        raise SourceError(f"{path} is damaged: {error} Save the model again.") from error
    return text


# --- the open model -----------------------------------------------------------------------------------------


def _open(model: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    booster = model if _is_booster(model) else _booster_of(model)
    text = ModelText.parse(booster.model_to_string())
    notes: list[str] = []
    given, example = given_matrix(config.inputs, text.num_features, text.feature_names, notes)
    best = int(booster.best_iteration or 0)
    if best > 0:
        notes.append(
            f"Training stopped early: predict ends at round {best}, the best, and so does this export."
        )
    kind = BareBooster if _is_booster(model) else Estimator
    return kind(model, text, given, example=example, weights=weights, notes=notes)


def _ensemble(text: ModelText, answer: Answer) -> Ensemble:
    return Ensemble(text.forest(), text.preparation(), text.link, answer, reads_float64=True)


def ensemble_of_estimator(model: Any) -> Ensemble:
    """A fitted estimator in neutral words, for a pipeline that holds it."""
    text = ModelText.parse(_booster_of(model).model_to_string())
    return _ensemble(text, _estimator_answer(model, text))


def _booster_of(model: Any) -> Any:
    try:
        return model.booster_
    except Exception as error:
        if type(error).__name__ not in ("NotFittedError", "LGBMNotFittedError"):
            raise
        raise ExportError(f"{type(model).__name__} is not fitted; call fit before exporting it.") from error


class _LightGBMModel(BoosterModel):
    """What boosters and estimators have in common."""

    def __init__(
        self,
        model: Any,
        text: ModelText,
        given: SourceInput,
        *,
        example: Feeds | None,
        weights: Weights,
        notes: list[str],
    ) -> None:
        self._model = model
        self._text = text
        preparation = text.preparation()
        if preparation.truncated:
            notes.append(
                "Features "
                + ", ".join(str(k) for k in preparation.truncated)
                + " are categories: they are served as the codes that the model was trained on."
            )
        ensemble = _ensemble(text, self._answer())
        missing = (np.nan, 0.0) if preparation.zero_is_missing else (np.nan,)
        super().__init__(ensemble, given, example=example, weights=weights, notes=notes, missing=missing)

    def _answer(self) -> Answer:
        raise NotImplementedError


class BareBooster(_LightGBMModel):
    """A `Booster`: one output, as `Booster.predict` gives it."""

    def ask(self, matrix: Array) -> dict[str, Array]:
        """`predict`, up to the best round."""
        return {self.ensemble.answer.name: np.asarray(self._model.predict(matrix))}

    def _answer(self) -> Answer:
        name = PROBABILITIES if self._text.objective in SHARES else _value_name(self._text)
        return Answer("value", name=name, flat=self._text.num_outputs == 1)


class Estimator(_LightGBMModel):
    """An estimator of LightGBM's scikit-learn interface: `predict`, and `predict_proba` where it has one."""

    def ask(self, matrix: Array) -> dict[str, Array]:
        """The estimator's own methods, which know features by their place here."""
        predicted = np.asarray(self._model.predict(matrix, validate_features=False))
        if self.ensemble.answer.kind == "value":
            return {self.ensemble.answer.name: predicted}
        labels = predicted.astype(str).astype(object) if _is_text(predicted) else as_labels(predicted)
        return {
            **dict.fromkeys(self.ensemble.answer.names[:1], labels),
            PROBABILITIES: np.asarray(self._model.predict_proba(matrix, validate_features=False)),
        }

    def _answer(self) -> Answer:
        return _estimator_answer(self._model, self._text)


def _estimator_answer(model: Any, text: ModelText) -> Answer:
    flat = text.num_outputs == 1
    if not hasattr(model, "predict_proba"):
        return Answer("value", name=_value_name(text), flat=flat)
    if text.objective not in SHARES:
        raise ExportError(
            f"{type(model).__name__} was trained with an objective of the user's own, for which LightGBM gives "
            "sums and no labels. Export its booster (booster_) for the sums."
        )
    classes = np.asarray(model.classes_)
    classes = classes.astype(str).astype(object) if _is_text(classes) else as_labels(classes)
    return Answer("classes", classes=classes, complement=flat, second_if="Greater")


def _value_name(text: ModelText) -> str:
    return SCORES if text.objective in RANKING else PREDICTION


def _is_text(values: Array) -> bool:
    return values.dtype.kind in "OUS"
