"""A forest of 500 trees with random splits as PMML.

There is no other exporter from PMML to ONNX to compare with: skl2onnx refuses the estimators that the one Python
reader of PMML makes (MissingShapeCalculator). So the bare side is our own emission alone: parse, emit, write. The
ratio shows what the bundle and its checks add to graph and write; the scorer, whose answers are sealed, counts
as probes.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT: str | None = None
MODEL = (
    "PMML forest, 500 trees, 256,000 leaves; bare is our own emission alone, since no other exporter exists"
)

_TREES, _DEPTH, _FIELDS = 500, 9, 30


def build() -> tuple[Any, dict[str, Any]]:
    """The path of the file, in a folder that goes when the process ends; one matrix goes in."""
    scratch = tempfile.mkdtemp(prefix="paritygate-benchmark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    path = Path(scratch) / "forest.pmml"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _lines())
    return path, {"inputs": f"x:float64[batch,{_FIELDS}]"}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """Parse, emit and write, with no scorer, no probes and no digests."""
    from paritygate.converter.exporters._pmml.collector import collector_paused
    from paritygate.converter.exporters._pmml.elements import read_document
    from paritygate.converter.exporters._pmml.emission.emitter import emit_document
    from paritygate.converter.exporters._pmml.outputs import PREDICTED, Output
    from paritygate.converter.types import DType, TensorSpec

    names = [f"f{k}" for k in range(_FIELDS)]
    inputs = [TensorSpec("x", DType.FLOAT64, ("batch", _FIELDS))]
    outputs = [Output("y", PREDICTED, DType.FLOAT64)]
    with collector_paused():  # as the exporter does, so that the ratio shows the evidence alone
        emitted = emit_document(read_document(model), inputs, names, outputs, 18)
    path.write_bytes(emitted.SerializeToString(deterministic=True))


def _lines() -> Iterator[str]:
    rng = np.random.default_rng(0)
    fields = [f"f{k}" for k in range(_FIELDS)]
    active = "".join(f'<MiningField name="{name}"/>' for name in fields)
    schema = f"<MiningSchema>{active}</MiningSchema>"
    yield '<?xml version="1.0"?><PMML xmlns="http://www.dmg.org/PMML-4_4" version="4.4"><Header/><DataDictionary>'
    for name in (*fields, "y"):
        yield f'<DataField name="{name}" optype="continuous" dataType="double"/>'
    yield f'</DataDictionary><MiningModel functionName="regression">{schema}'
    yield '<Segmentation multipleModelMethod="average">'
    for index in range(_TREES):
        yield f'<Segment id="{index}"><True/><TreeModel functionName="regression" '
        yield f'splitCharacteristic="binarySplit">{schema}'
        yield from _nodes(rng, "<True/>", _DEPTH)
        yield "</TreeModel></Segment>"
    yield "</Segmentation></MiningModel></PMML>"


def _nodes(rng: np.random.Generator, predicate: str, depth: int) -> Iterator[str]:
    if not depth:
        yield f'<Node score="{float(rng.normal())!r}">{predicate}</Node>'
        return
    yield f'<Node score="0">{predicate}'
    told = f'<SimplePredicate field="f{rng.integers(_FIELDS)}" value="{float(rng.normal())!r}" operator='
    yield from _nodes(rng, f'{told}"lessOrEqual"/>', depth - 1)
    yield from _nodes(rng, f'{told}"greaterThan"/>', depth - 1)
    yield "</Node>"
