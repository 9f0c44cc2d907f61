"""XGBoost boosters and estimators, in memory or in XGBoost's own files, become trees of ai.onnx.ml.

Written from the booster's own document rather than by onnxmltools, which ends at opset 15 and has no form for
categories, vector leaves or a base score for each class.

The traps that this file is about:

- An estimator that stopped early predicts with its best round; a bare booster predicts with all of them, whatever
  its `best_iteration` says. Each is written as it predicts, and the booster's note says so.
- The base score is kept in the space of the answers and added in the space of the sums.
- `x < threshold` in float32 is written as such; nothing is rounded.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._trees.booster import BoosterModel, given_matrix
from paritygate.converter.exporters._trees.ensemble import (
    PREDICTION,
    PROBABILITIES,
    SCORES,
    Answer,
    Ensemble,
    Preparation,
)
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters._trees.links import Identity, LargestIndex, Link, Softmax
from paritygate.converter.exporters._trees.ubjson import UbjsonFault, decode
from paritygate.converter.exporters._trees.xgboost_document import BoosterDocument
from paritygate.converter.exporters.base import Exporter, SourceInput, SourceModel, Versions, Weights
from paritygate.converter.types import Array, Feeds

SUFFIXES = (".json", ".ubj")


class XGBoostExporter(Exporter):
    """Exports XGBoost boosters and estimators."""

    name = "xgboost"
    modules = ("xgboost",)

    def recognises(self, source: Any) -> bool:
        """A file that XGBoost wrote, a booster or a fitted estimator."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        return _is_booster(source) or _is_estimator(source)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Refuse what is no whole file of XGBoost, or a pickle that is not trusted."""
        if isinstance(source, Path) or not is_factory(source):
            _check_file(existing_file(source), trust=config.trust)

    def versions(self) -> Versions:
        """XGBoost, and the converter that is our own."""
        version = str(_import().__version__)
        return Versions("xgboost", version, "paritygate", "1")

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, or take a model as it is: predicting changes nothing in it."""
        weights = Weights()
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config)
            config = replace(config, inputs=example) if config.inputs is None else config
        if not (_is_booster(source) or _is_estimator(source)):
            raise SourceError(
                f"a {type(source).__module__}.{type(source).__qualname__} is no XGBoost model; expected a "
                "Booster, a fitted estimator such as XGBClassifier, or the path of a .json or .ubj file."
            )
        _import()
        yield _open(source, config, weights)


def _import() -> Any:
    try:
        return importlib.import_module("xgboost")
    except ImportError as error:
        raise ExportError(
            f"exporting an XGBoost model needs xgboost, which cannot be imported here ({error}). Install "
            "paritygate[xgboost], or save the model as .json and run `paritygate export`, which uses an "
            "environment of its own."
        ) from error


def _is_booster(source: Any) -> bool:
    return any(kind.__name__ == "Booster" and kind.__module__ == "xgboost.core" for kind in _kinds(source))


def _is_estimator(source: Any) -> bool:
    return any(
        kind.__name__ == "XGBModel" and kind.__module__ == "xgboost.sklearn" for kind in _kinds(source)
    )


def _kinds(source: Any) -> tuple[type, ...]:
    return () if isinstance(source, type) else type(source).__mro__


# --- files --------------------------------------------------------------------------------------------------


def _from_text(source: str | Path, config: ExportConfig) -> tuple[Any, Any, Weights]:
    if is_factory(source) and not Path(source).exists():
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    document = _check_file(path, trust=config.trust)
    weights = Weights("as in the file", file_sha256(path))
    if document is None:
        from paritygate.converter.exporters._sklearn.files import load

        return load(path, [], trust=config.trust), None, weights
    return _load(path, document), None, weights


def _check_file(path: Path, *, trust: bool) -> Mapping[str, Any] | None:
    """The document in a file of XGBoost, whose parser of bytes that are none of its own can crash; None: a pickle.

    Raises:
        SourceError: If the file is not whole, or not of XGBoost.
        UnsafeSource: If it is a pickle that is not trusted.
    """
    refuse_foreign(path, "xgboost")
    if look_at(path) is Form.PICKLE:
        from paritygate.converter.exporters._sklearn.files import refuse_untrusted

        refuse_untrusted(path, trust=trust)
        return None
    document = _decoded(path)
    learner = document.get("learner") if isinstance(document, Mapping) else None
    if not isinstance(learner, Mapping) or "gradient_booster" not in learner:
        raise SourceError(
            f"{path} is no XGBoost model: it has no learner with a gradient_booster. Expected what "
            "save_model wrote to a .json or .ubj file."
        )
    assert isinstance(document, Mapping)
    try:
        BoosterDocument(learner).check()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise SourceError(
            f"{path} is damaged: its trees cannot be read ({type(error).__name__}: {error}). Save the model again."
        ) from error
    except ExportError as error:
        raise SourceError(f"{path}: {error}") from error
    return document


def _decoded(path: Path) -> Any:
    data = path.read_bytes()
    text = data.lstrip()[:2]
    try:
        if text[:1] == b"{" and (not text[1:2] or text[1:2] in b'" \t\r\n}'):
            return json.loads(data)
        return decode(data)
    except RecursionError as error:
        raise SourceError(f"{path} is nested too deeply to be an XGBoost model.") from error
    except (UbjsonFault, ValueError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise SourceError(
            f"{path} cannot be read: {line}. Expected a whole file that XGBoost's save_model wrote, .json or .ubj."
        ) from error


def _load(path: Path, document: Mapping[str, Any]) -> Any:
    """The booster in a file; the estimator around it where one saved it: it knows labels and rounds."""
    xgboost = _import()
    saved = BoosterDocument(document["learner"]).saved_estimator
    kinds = {
        "classifier": xgboost.XGBClassifier,
        "regressor": xgboost.XGBRegressor,
        "ranker": xgboost.XGBRanker,
    }
    other = xgboost.Booster if saved is None else xgboost.XGBModel
    model = kinds.get(str((saved or {}).get("_estimator_type")), other)()
    try:
        model.load_model(str(path))
    except (xgboost.core.XGBoostError, TypeError, ValueError, KeyError) as error:
        line = (str(error).strip().splitlines() or [""])[0][:300]
        raise SourceError(f"XGBoost cannot load {path}: {line}. Save the model again.") from error
    return model


# --- the open model -----------------------------------------------------------------------------------------


def _open(model: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    booster = _booster_of(model)
    try:
        document = BoosterDocument.from_json(booster.save_raw("json"))
    except _import().core.XGBoostError as error:
        line = (str(error).strip().splitlines() or [""])[0][:300]
        raise SourceError(f"XGBoost cannot write the model down: {line}. Save or train it again.") from error
    notes: list[str] = []
    rounds = _rounds(model, document, notes)
    inputs = config.inputs
    given, example = given_matrix(inputs, document.num_features, document.feature_names, notes)
    if document.categorical:
        notes.append(
            "Features "
            + ", ".join(str(k) for k in document.categorical)
            + " are categories: they are served as the codes that the model was trained on."
        )
    kind = BareBooster if _is_booster(model) else Estimator
    return kind(model, document, rounds, given, example=example, weights=weights, notes=notes)


def _booster_of(model: Any) -> Any:
    if _is_booster(model):
        return model
    try:
        return model.get_booster()
    except Exception as error:
        if type(error).__name__ != "NotFittedError":
            raise
        raise ExportError(f"{type(model).__name__} is not fitted; call fit before exporting it.") from error


def _rounds(model: Any, document: BoosterDocument, notes: list[str]) -> int | None:
    """How many rounds the model itself predicts with; None for all."""
    best = document.best_iteration
    if best is None:
        return None
    if _is_booster(model):
        notes.append(
            f"The booster's best_iteration is {best}; its predict takes all {document.num_rounds} rounds "
            f"nevertheless, and so does this export. Export booster[:{best + 1}] to stop at the best one."
        )
        return None
    notes.append(
        f"Training stopped early: best_iteration {best} of {document.num_rounds} rounds is where predict stops."
    )
    return best + 1


class _XGBoostModel(BoosterModel):
    """What boosters and estimators have in common."""

    def __init__(
        self,
        model: Any,
        document: BoosterDocument,
        rounds: int | None,
        given: SourceInput,
        *,
        example: Feeds | None,
        weights: Weights,
        notes: list[str],
    ) -> None:
        self._model = model
        self._booster = _booster_of(model)
        self._document = document
        self._rounds = rounds
        missing = _missing_value(model)
        ensemble = _ensemble(document, rounds, missing, self._link(), self._answer())
        super().__init__(
            ensemble, given, example=example, weights=weights, notes=notes, missing=(missing,)
        )  # fmt: skip

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """The leaves that the booster itself picks, added up in float64."""
        sums = self.ensemble.sums
        if not isinstance(sums, Forest):
            return None
        matrix = feeds[self.inputs[0].name]
        leaves = self._leaves(matrix)
        added = np.tile(sums.base, (len(matrix), 1))
        for place, tree in enumerate(sums.trees[: leaves.shape[1]]):
            columns = slice(tree.target, tree.target + tree.values.shape[1])
            added[:, columns] += self._document.leaf_values[place][leaves[:, place]]
        return self._named(self.ensemble.link.compute(added))

    def _leaves(self, matrix: Array) -> Array:
        """int64[row, tree]: the nodes where samples end, by the booster's own numbers."""
        rounds = (0, self._rounds or 0)
        found = self._booster.predict(self._matrix(matrix), pred_leaf=True, iteration_range=rounds)
        leaves: Array = np.asarray(found).reshape(len(matrix), -1).astype(np.int64)
        return leaves

    def _matrix(self, matrix: Array) -> Any:
        return _import().DMatrix(
            matrix,
            missing=_missing_value(self._model),
            feature_names=self._booster.feature_names,
            feature_types=self._booster.feature_types,
            enable_categorical=bool(self._document.categorical),
        )

    def _link(self) -> Link:
        return self._document.link

    def _answer(self) -> Answer:
        raise NotImplementedError

    def _named(self, values: Array) -> dict[str, Array]:
        answer = self.ensemble.answer
        if answer.kind == "value":
            return {answer.name: values[:, 0] if answer.flat else values}
        if answer.complement:
            values = np.hstack([1 - values, values])
        return {PROBABILITIES: values}


class BareBooster(_XGBoostModel):
    """A `Booster`: one output, as `Booster.predict` gives it."""

    def ask(self, matrix: Array) -> dict[str, Array]:
        """`predict`, with the booster's own feature names and types."""
        return {self.ensemble.answer.name: self._booster.predict(self._matrix(matrix))}

    def _answer(self) -> Answer:
        objective = self._document.objective
        shares = objective in ("binary:logistic", "multi:softprob")
        name = PROBABILITIES if shares else SCORES if objective.startswith("rank:") else PREDICTION
        flat = self._document.num_outputs == 1 or isinstance(self._link(), LargestIndex)
        return Answer("value", name=name, flat=flat)

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """None for answers that are whole numbers in disguise."""
        return None if isinstance(self._link(), LargestIndex) else super().run_float64(feeds)


class Estimator(_XGBoostModel):
    """An estimator of XGBoost's scikit-learn interface: `predict`, and `predict_proba` where it has one."""

    def ask(self, matrix: Array) -> dict[str, Array]:
        """The estimator's own methods."""
        predicted = np.asarray(self._model.predict(matrix, validate_features=False))
        if self.ensemble.answer.kind == "value":
            return {self.ensemble.answer.name: predicted}
        shares = np.asarray(self._model.predict_proba(matrix, validate_features=False))
        return dict(zip(self.ensemble.answer.names, (predicted.astype(np.int64), shares), strict=True))

    def _link(self) -> Link:
        return _estimator_link(self._model, self._document)

    def _answer(self) -> Answer:
        return _estimator_answer(self._model, self._document)


def ensemble_of_estimator(model: Any) -> Ensemble:
    """A fitted estimator in neutral words, for a pipeline that holds it."""
    document = BoosterDocument.from_json(_booster_of(model).save_raw("json"))
    rounds = _rounds(model, document, [])
    answer = _estimator_answer(model, document)
    return _ensemble(document, rounds, _missing_value(model), _estimator_link(model, document), answer)


def _estimator_link(model: Any, document: BoosterDocument) -> Link:
    link = document.link
    return Softmax() if hasattr(model, "predict_proba") and isinstance(link, LargestIndex) else link


def _estimator_answer(model: Any, document: BoosterDocument) -> Answer:
    outputs = document.num_outputs
    if not hasattr(model, "predict_proba"):
        name = SCORES if document.objective.startswith("rank:") else PREDICTION
        return Answer("value", name=name, flat=outputs == 1)
    if isinstance(document.link, Identity):
        raise ExportError(
            f"{type(model).__name__} with the objective {document.objective} gives labels and no probabilities. "
            "Export its booster (get_booster()) for the sums, or train with binary:logistic."
        )
    if outputs > 1 and isinstance(_estimator_link(model, document), Softmax):
        return Answer("classes", classes=np.arange(outputs))
    return Answer("labels") if outputs > 1 else Answer("classes", classes=np.arange(2), complement=True)


def _ensemble(
    document: BoosterDocument, rounds: int | None, missing: float, link: Link, answer: Answer
) -> Ensemble:
    sums = document.sums(rounds)
    preparation = Preparation(
        missing=None if np.isnan(missing) else missing,
        floored=document.categorical if isinstance(sums, Forest) else (),
    )
    return Ensemble(sums, preparation, link, answer)


def _missing_value(model: Any) -> float:
    return float(np.float32(getattr(model, "missing", np.nan)))
