"""ModelVerification: records with the answers that a document's writer got; the scorer has to give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._pmml.elements import Document, Element, main_model
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.types import Array

_PRECISION, _ZERO = 1e-6, 1e-16
"""What PMML says where a VerificationField says nothing."""
_MOST_RECORDS = 1_000


def check_verification(document: Document, scorer: Scorer) -> list[str]:
    """Hold the scorer to the records that the document carries; sentences for the manifest.

    Raises:
        ExportError: If an answer differs: then the document does not mean what is read here.
    """
    verification = main_model(document).find("ModelVerification")
    if verification is None:
        return []
    fields = {
        entry.need("field"): entry
        for entry in verification.child("VerificationFields").all("VerificationField")
    }
    records = verification.child("InlineTable").all("row")[:_MOST_RECORDS]
    rows = [_row(record, fields) for record in records]
    missing = [field.name for field in scorer.inputs if field.name not in fields]
    expected = [output.name for output in scorer.outputs if output.name in fields]
    if not rows or not expected or missing:
        return ["The document's ModelVerification names no output, or not all inputs, and was not used."]
    answers = scorer.run(_columns(scorer, rows))
    for name in expected:
        _compare(name, fields[name], rows, answers[name])
    return [f"The scorer gives what ModelVerification holds: {len(rows)} records, {', '.join(expected)}."]


def _row(record: Element, fields: Mapping[str, Element]) -> dict[str, str]:
    cells = {cell.tag: cell.text for cell in record.children}
    found = {}
    for name, entry in fields.items():
        column = entry.get("column", name).rpartition(":")[2]
        if column in cells:
            found[name] = cells[column]
    return found


def _columns(scorer: Scorer, rows: list[dict[str, str]]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for field in scorer.inputs:
        texts = [row.get(field.name, "") for row in rows]
        if field.data_type == "string":
            array = np.empty(len(texts), dtype=object)
            array[:] = texts
        elif field.data_type == "boolean":
            array = np.array([{"true": 1.0, "false": 0.0}.get(t.lower(), math.nan) for t in texts])
        else:
            array = np.array([_number(text) for text in texts], dtype=np.float64)
        columns[field.name] = array
    return columns


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _compare(name: str, entry: Element, rows: list[dict[str, str]], given: Array) -> None:
    precision, zero = entry.number("precision", _PRECISION), entry.number("zeroThreshold", _ZERO)
    for index, (row, value) in enumerate(zip(rows, given, strict=True)):
        told = row.get(name)
        if told is not None and not _agrees(told, value, precision, zero):
            raise ExportError(
                f"ModelVerification (line {entry.line}) holds {name} = {told} in record {index + 1}, but the "
                f"document computes {value}; it is damaged, or written for a tool that reads it in its own way. "
                "Write it again, or remove ModelVerification if you know why."
            )


def _agrees(told: str, value: Any, precision: float, zero: float) -> bool:
    if isinstance(value, str):
        return told == value
    wanted, got = _number(told), float(value)
    if math.isnan(wanted) or math.isnan(got):
        return math.isnan(wanted) and math.isnan(got)
    if abs(wanted) <= zero:
        return abs(got) <= zero
    return abs(got - wanted) <= precision * abs(wanted)
