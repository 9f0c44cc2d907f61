"""What an estimator knows of each column of its input: categories, or words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from paritygate.converter.exporters._sklearn.conversion import parts
from paritygate.converter.exporters._sklearn.texts import is_vectorizer, known_texts, takes_texts
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import DType

Pools: TypeAlias = "Mapping[str, list[list[Any]]]"
"""By input, what is known of each of its columns."""


def known_by_input(estimator: Any, inputs: Sequence[SourceInput], *, strictly: bool = False) -> Pools:
    """What is known of each column of each input, in its type; `strictly` only what somebody insists on."""
    alone = len(inputs) == 1
    if alone and inputs[0].dtype is DType.STRING and takes_texts(estimator):
        vectorizers = [part for _, part in parts(estimator) if is_vectorizer(part)]
        return {inputs[0].name: [[text for part in vectorizers for text in known_texts(part)]]}
    known = known_by_column(estimator, strictly)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    pools: dict[str, list[list[Any]]] = {}
    place = 0
    for spec in inputs:
        width = int(spec.shape[1] or 1) if len(spec.shape) == 2 else 1
        pools[spec.name] = []
        for _ in range(width):
            name = names[place] if alone and place < len(names) else spec.name
            pools[spec.name].append(_of_type([*known.get(place, ()), *known.get(name, ())], spec.dtype))
            place += 1
    return pools


def known_by_column(estimator: Any, strictly: bool) -> dict[int | str, list[Any]]:
    """What is known of each column that anybody knows something of, by its name or place."""
    known: dict[int | str, list[Any]] = {}
    for user, columns in column_users(estimator):
        for place, column in enumerate(columns):
            found = _known_to(user, place, strictly)
            if found:
                known.setdefault(column, []).extend(found)
    return known


def _of_type(values: Sequence[Any], dtype: DType) -> list[Any]:
    if dtype is DType.STRING:
        return list(dict.fromkeys(value for value in values if isinstance(value, str)))
    if dtype is DType.BOOL:
        return []
    numbers = [value for value in values if isinstance(value, int | float | np.number) and not is_nan(value)]
    return list(dict.fromkeys(v for v in numbers if dtype.is_floating or float(v).is_integer()))


def is_nan(value: Any) -> bool:
    return bool(value != value)


_FILLING = ("SimpleImputer", "KNNImputer", "IterativeImputer", "FunctionTransformer")
"""Steps after which a value is what it was, unless it was missing; of functions the identity alone has a form."""


def column_users(estimator: Any) -> list[tuple[Any, list[int | str]]]:
    """Whoever is given columns of the input as they are, with their names or places."""
    return list(_users(estimator, list(range(_width(estimator)))))


def _users(part: Any, given: list[int | str]) -> Iterator[tuple[Any, list[int | str]]]:
    """Whoever inside a part is given columns as they are, where the part itself is given these."""
    if hasattr(part, "best_estimator_"):
        yield from _users(part.best_estimator_, given)
    elif hasattr(part, "steps"):
        for _, step in part.steps:
            if step is None or isinstance(step, str):
                continue
            yield from _users(step, given)
            if type(step).__name__ not in _FILLING:
                break
    elif hasattr(part, "transformer_list"):
        for _, inner in part.transformer_list:
            if not isinstance(inner, str):
                yield from _users(inner, given)
    elif hasattr(part, "transformers_"):
        for _, inner, columns in part.transformers_:
            if not isinstance(inner, str):
                picked = _places(columns, _width(part))
                yield from _users(inner, [k if isinstance(k, str) else given[k] for k in picked])
    else:
        yield part, given


def _width(part: Any) -> int:
    """How many columns a part takes; a pipeline says what its first step does."""
    while getattr(part, "steps", None) or hasattr(part, "best_estimator_"):
        best = getattr(part, "best_estimator_", None)
        part = best if best is not None else part.steps[0][1]
    return int(getattr(part, "n_features_in_", 0) or 0)


def _places(columns: Any, width: int) -> list[int | str]:
    """The columns that an entry of a column transformer picks: names, places, a slice or a mask."""
    if isinstance(columns, str | int):
        return [columns]
    if isinstance(columns, slice):
        by_place = not isinstance(columns.start, str) and not isinstance(columns.stop, str)
        return list(range(*columns.indices(width))) if by_place else []
    chosen = np.asarray(columns)
    if chosen.dtype == np.bool_:
        chosen = np.flatnonzero(chosen)
    return [value if isinstance(value, str) else int(value) for value in chosen.tolist()]


def _known_to(part: Any, place: int, strictly: bool) -> list[Any]:
    """Categories or words of the column at a place; `strictly` only if the part insists on them."""
    if type(part).__name__ == "CategoricalNB":
        return list(range(int(part.n_categories_[place])))
    if strictly and getattr(part, "handle_unknown", None) != "error":
        return []
    categories = getattr(part, "categories_", None)
    if isinstance(categories, list) and place < len(categories):
        return list(categories[place].tolist())
    return list(known_texts(part)) if is_vectorizer(part) else []
