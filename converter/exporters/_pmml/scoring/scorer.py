"""The scorer of a whole document: arrays in, arrays out, one row after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._pmml.declarations import ACTIVE, Field, data_fields
from paritygate.converter.exporters._pmml.elements import Document, Element, main_model, refuse
from paritygate.converter.exporters._pmml.outputs import (
    NO_LABEL,
    PREDICTED,
    PROBABILITIES,
    Output,
    plan_outputs,
)
from paritygate.converter.exporters._pmml.scoring.ensembles import ensemble_reader
from paritygate.converter.exporters._pmml.scoring.models import Model, Outcome, Reader
from paritygate.converter.exporters._pmml.scoring.networks import read_network
from paritygate.converter.exporters._pmml.scoring.regressions import read_regression
from paritygate.converter.exporters._pmml.scoring.trees import read_tree
from paritygate.converter.exporters._pmml.scoring.types import Types
from paritygate.converter.exporters._pmml.scoring.values import Scope, Value, given
from paritygate.converter.types import Array, DType


def _readers() -> dict[str, Reader]:
    readers: dict[str, Reader] = {
        "TreeModel": read_tree,
        "RegressionModel": read_regression,
        "NeuralNetwork": read_network,
    }
    readers["MiningModel"] = ensemble_reader(readers)
    return readers


class Scorer:
    """A document that is ready to score.

    Attributes:
        inputs: The active fields of its model, in order.
        classes: Its classes, empty for a regression.
        outputs: What it gives, in order.
    """

    def __init__(self, document: Document) -> None:
        fields = data_fields(document.root)
        types = Types({name: field.data_type for name, field in fields.items()})
        _refuse_functions(document.root)
        element = main_model(document)
        dictionary = document.root.find("TransformationDictionary")
        self._model = Model(element, fields, types, _readers(), nested=False, dictionary=dictionary)
        self.inputs: tuple[Field, ...] = tuple(
            fields[name]
            for name, entry in self._model.mining.items()
            if entry.usage in ACTIVE and name in fields
        )
        self.classes = self._model.classes
        self.has_probabilities = bool(self.classes) and gives_probabilities(element)
        self.outputs = plan_outputs(
            element,
            classifies=bool(self.classes),
            has_probabilities=self.has_probabilities,
            target=fields.get(self._model.target or ""),
            target_name=self._model.target,
        )

    def run(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Every output for columns of equal length, by field name."""
        names = [field.name for field in self.inputs]
        rows = zip(*(columns[name] for name in names), strict=True) if names else ()
        return self._gathered([self._row(row) for row in rows])

    def _row(self, raw: Sequence[Any]) -> tuple[Outcome, dict[str, Value]]:
        known = {field.name: given(value, field) for field, value in zip(self.inputs, raw, strict=True)}
        return self._model.outputs(Scope(known, {}))

    def _gathered(self, rows: Sequence[tuple[Outcome, dict[str, Value]]]) -> dict[str, Array]:
        return {output.name: self._column(output, rows) for output in self.outputs}

    def _column(self, output: Output, rows: Sequence[tuple[Outcome, dict[str, Value]]]) -> Array:
        if output.kind == PROBABILITIES:
            nothing = (math.nan,) * len(self.classes)
            found = [outcome.probabilities or nothing for outcome, _ in rows]
            return np.array(found, dtype=np.float64).reshape(len(rows), len(self.classes))
        values = [
            outcome.value if output.element is None else given_values[output.name]
            for outcome, given_values in rows
        ]
        if output.kind == PREDICTED and self.classes:
            return _labels(values, output.dtype)
        return _numbers(values, output.dtype)


def _labels(values: Sequence[Any], dtype: DType) -> Array:
    if dtype is DType.INT64:
        return np.array([NO_LABEL if v is None else int(float(v)) for v in values], dtype=np.int64)
    if dtype is DType.FLOAT64:
        return np.array([math.nan if v is None else float(v) for v in values], dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    array[:] = ["" if v is None else v for v in values]
    return array


def _numbers(values: Sequence[Any], dtype: DType) -> Array:
    if dtype is DType.STRING:
        return _labels(values, dtype)
    with np.errstate(over="ignore"):
        return np.array([math.nan if v is None else float(v) for v in values], dtype=np.float64).astype(
            dtype.numpy
        )


def gives_probabilities(element: Element) -> bool:
    """Whether every result of a classifier comes with probabilities."""
    if element.tag == "TreeModel":
        scored = [e for e in element.walk() if e.tag == "Node" and _can_answer(e)]
        return all(e.find("ScoreDistribution") is not None for e in scored)
    if element.tag != "MiningModel":
        return True
    segmentation = element.child("Segmentation")
    method = segmentation.get("multipleModelMethod")
    if method in ("majorityVote", "weightedMajorityVote"):
        return True
    models = [c for s in segmentation.all("Segment") for c in s.children if c.get("functionName")]
    return all(map(gives_probabilities, models[-1:] if method == "modelChain" else models))


def _can_answer(node: Element) -> bool:
    return node.find("Node") is None or "score" in node.attributes


def _refuse_functions(root: Element) -> None:
    dictionary = root.find("TransformationDictionary")
    found = None if dictionary is None else dictionary.find("DefineFunction")
    if found is not None:
        raise refuse(found, "a function of its own", "Write its expression where it is used.")
