"""Columns that hold something else than the estimator was fitted on are told by name, before any is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters._sklearn.columns import refuse_other_kinds
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import DType

_ROWS = np.array([["Rome", 1.0, 3.0], ["Oslo", 2.0, 5.0], ["Rome", 3.0, 4.0]], dtype=object)
_CLASSES = [0, 1, 0]


def _mixed(*, named: bool) -> Pipeline:
    steps = [("city", OneHotEncoder(), [0]), ("rest", StandardScaler(), slice(1, 3))]
    model = make_pipeline(ColumnTransformer(steps), LogisticRegression()).fit(_ROWS, _CLASSES)
    if named:  # as a fit on a data frame leaves it; pandas is not installed everywhere
        model[0].feature_names_in_ = np.array(["city", "age", "income"], dtype=object)
    return model


def _texts_alone() -> Pipeline:
    return make_pipeline(OneHotEncoder(), LogisticRegression()).fit(_ROWS[:, :1], _CLASSES)


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        (
            _mixed(named=False),
            np.ones((3, 3), np.float32),
            "input 'x' is one matrix of numbers, and Pipeline was fitted on texts such as 'Oslo' (column_0) "
            "beside other columns (column_1, column_2). Give each column by itself",
        ),
        (
            _mixed(named=True),
            "x:float32[batch,3]",
            "--input 'age:float32[batch,1]' --input 'city:string[batch,1]'",
        ),
        (
            _mixed(named=True),
            None,
            "was fitted on the columns ['city', 'age', 'income'], whose types it does not",
        ),
        (
            _mixed(named=True),
            "x:float32[batch,4]",
            "input 'x' has 4 columns, and Pipeline was fitted on 3: city, age, income. Give those.",
        ),
        (
            _mixed(named=True),
            {name: np.ones((3, 1), np.float32) for name in ("age", "city", "income")},
            "input 'city' is float32, and Pipeline was fitted on texts such as 'Oslo' there (city). Give texts "
            "(city:string[batch,1]).",
        ),
        (_texts_alone(), None, "Give texts (x:string[batch,1])."),
        (_texts_alone(), np.ones((3, 1), np.int64), "input 'x' is int64, and Pipeline was fitted on texts"),
    ],
)
def test_columns_of_another_kind_are_refused_by_name(
    model: Pipeline, inputs: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=re.escape(said)):
        export_model(model, tmp_path / "bundle", name="m", inputs=inputs)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (_texts_alone(), [SourceInput("x", DType.STRING, (None, 1))]),
        (
            _mixed(named=False),
            [SourceInput("c", DType.STRING, (None, 1)), SourceInput("v", DType.FLOAT32, (None, 2))],
        ),
        (
            make_pipeline(StandardScaler(), LogisticRegression()).fit(_ROWS[:, 1:], _CLASSES),
            [SourceInput("x", DType.FLOAT32, (None, 2))],
        ),
        (
            make_pipeline(CountVectorizer(), LogisticRegression()).fit(_ROWS[:, 0], _CLASSES),
            [SourceInput("text", DType.STRING, (None, 1))],
        ),
    ],
)
def test_columns_as_they_were_fitted_are_let_through(model: Pipeline, inputs: list[SourceInput]) -> None:
    refuse_other_kinds(model, inputs)
