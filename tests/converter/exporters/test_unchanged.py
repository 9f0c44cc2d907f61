"""The source has to answer after its conversion as it did before: it is the evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.named_source import check_unchanged

BEFORE = {"y": np.linspace(1, 2, 5, dtype=np.float32), "label": np.array([1, 2])}


class Source:
    """A source whose first output is a multiple of what it was, and whose second is moved."""

    def __init__(self, factor: float = 1.0, moved: int = 0) -> None:
        self._factor, self._moved = factor, moved

    def run(self, _binding: Any, _feeds: Any) -> dict[str, Any]:
        return {"y": BEFORE["y"] * np.float32(self._factor), "label": BEFORE["label"] + self._moved}


class Binding:
    def trace_example(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("factor", [1.0, 1.0 + 2e-7])
def test_a_source_that_answers_as_before_is_evidence(factor: float) -> None:
    check_unchanged(Source(factor), Binding(), BEFORE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "output"), [(Source(1.0003), "y"), (Source(0.5), "y"), (Source(moved=1), "label")]
)
def test_a_source_that_its_conversion_changed_is_refused(source: Source, output: str) -> None:
    with pytest.raises(ExportError, match=rf"output '{output}' of the source changed while it was converted"):
        check_unchanged(source, Binding(), BEFORE)  # type: ignore[arg-type]
