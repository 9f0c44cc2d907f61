"""Whether inputs hold what the columns of an estimator were fitted on: numbers, or texts.

scikit-learn finds out in the middle of an encoder, and tells of a ufunc that does not support its types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._sklearn.known import column_users, known_by_column
from paritygate.converter.exporters._sklearn.texts import takes_texts
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import DType

_NAMED = 4


def refuse_other_kinds(estimator: Any, inputs: Sequence[SourceInput]) -> None:
    """Refuse numbers for columns that were fitted on texts, also where they come as one matrix with others.

    Raises:
        ExportError: Naming the columns and how they are given.
    """
    if takes_texts(estimator):
        return
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if len(inputs) == 1 and names:
        _check_width(inputs[0], names, estimator)
    texts = _fitted_on_texts(estimator, names)
    if not texts:
        return
    given = _given_columns(inputs, names)
    wrong = [column for column, spec in given.items() if column in texts and spec.dtype is not DType.STRING]
    if not wrong:
        return
    spec, kind = given[wrong[0]], type(estimator).__name__
    others = [column for column in _used(estimator, names) if column not in texts]
    if others and len(inputs) == 1 and len(given) > 1:
        raise ExportError(_one_matrix(spec.name, kind, others, texts))
    width = spec.shape[-1] if len(inputs) == 1 else 1
    raise ExportError(
        f"input {spec.name!r} is {spec.dtype.value}, and {kind} was fitted on texts such as {texts[wrong[0]]!r} "
        f"there ({_named(wrong)}). Give texts ({spec.name}:string[batch,{width}])."
    )


def _check_width(spec: SourceInput, names: Sequence[str], estimator: Any) -> None:
    width = spec.shape[-1] if len(spec.shape) == 2 else None
    if width is not None and width not in (1, len(names)):
        raise ExportError(
            f"input {spec.name!r} has {width} columns, and {type(estimator).__name__} was fitted on {len(names)}: "
            f"{_named(names)}. Give those."
        )


def _fitted_on_texts(estimator: Any, names: Sequence[str]) -> dict[str, str]:
    """A text that was seen in each column of which an encoder knows some, by the column's name."""
    texts: dict[str, str] = {}
    for column, known in known_by_column(estimator, strictly=False).items():
        seen = next((value for value in known if isinstance(value, str)), None)
        if seen is not None:
            texts[_name(column, names)] = seen
    return texts


def _used(estimator: Any, names: Sequence[str]) -> list[str]:
    every = [_name(column, names) for _, columns in column_users(estimator) for column in columns]
    return list(dict.fromkeys(every))


def _given_columns(inputs: Sequence[SourceInput], names: Sequence[str]) -> Mapping[str, SourceInput]:
    """Each column that is given, with its input: by its name, or by its place where there are no names."""
    if names and len(inputs) > 1:
        return {spec.name: spec for spec in inputs}
    every = [spec for spec in inputs for _ in range(int(spec.shape[1] or 1) if len(spec.shape) == 2 else 1)]
    return {_name(place, names): spec for place, spec in enumerate(every)}


def _name(column: int | str, names: Sequence[str]) -> str:
    if isinstance(column, str):
        return column
    return names[column] if column < len(names) else f"column_{column}"


def _one_matrix(given: str, kind: str, others: Sequence[str], texts: Mapping[str, str]) -> str:
    column, seen = next(iter(texts.items()))
    return (
        f"input {given!r} is one matrix of numbers, and {kind} was fitted on texts such as {seen!r} "
        f"({_named(texts)}) beside other columns ({_named(others)}). Give each column by itself: --samples "
        f"FILE.npz with an array for each, or --input '{others[0]}:float32[batch,1]' "
        f"--input '{column}:string[batch,1]' ..."
    )


def _named(columns: Iterable[str]) -> str:
    every = list(columns)
    return ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED} more" if len(every) > _NAMED else "")
