"""A bundle's model as a PMML file, handed over only if it answers the bundle's own probes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._pmml.elements import read_document
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.graph.inspect import parse_model
from paritygate.converter.pmml.document import document_text, label_field, prediction_field, probability_field
from paritygate.converter.pmml.reading import understand
from paritygate.converter.pmml.tabular import Tabular
from paritygate.converter.types import Array

_RELATIVE, _ABSOLUTE = 2e-5, 2e-6
"""How far single precision may carry a score away, relative to the largest of its output, and absolutely."""
_TIE = 1e-4
"""Probabilities closer than this are a tie, whose winner single precision may choose."""


def write_pmml(bundle: Bundle, path: str | Path) -> Path:
    """Write the linear model or the trees of a bundle as PMML 4.4.

    The file is scored row by row on every probe of the bundle, and only one that gives the sealed answers of the
    source is handed over.

    Args:
        bundle: A bundle whose graph is made of ai.onnx.ml's linear models or trees, scaling and links.
        path: The file to write; it must not exist.

    Returns:
        The path.

    Raises:
        UnsupportedOperator: If the graph is something else.
        ExportError: If the file exists, or what was written does not give the sealed answers.
    """
    path = Path(path)
    if path.exists():
        raise _exists(path)
    if not path.parent.is_dir():
        raise ExportError(f"the directory {path.parent} does not exist; make it, or name another file.")
    if bundle.external_data():
        raise ExportError(
            "the bundle keeps its weights in a side file; PMML is written of models below 2 GiB."
        )
    tabular = understand(parse_model(bundle.model_bytes()), bundle.signature)
    text = document_text(tabular, bundle.name)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".paritygate-pmml-") as folder:
        written = Path(folder) / "model.pmml"
        written.write_text(text, encoding="utf-8")
        _prove(written, tabular, bundle)
        _hand_over(written, path)
    return path


def _hand_over(written: Path, path: Path) -> None:
    """Give the file its name, in one step, and only where nothing has that name by now."""
    try:
        os.link(written, path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError:  # the file system has no hard links
        if path.exists():
            raise _exists(path) from None
        written.replace(path)


def _exists(path: Path) -> ExportError:
    return ExportError(f"{path} exists already; a file is never overwritten. Name a new one or remove it.")


def _prove(written: Path, tabular: Tabular, bundle: Bundle) -> None:
    scorer = Scorer(read_document(written))
    count = 0
    for probe in bundle.probes():
        count += 1
        _compare(scorer.run(_columns(tabular, bundle, probe)), tabular, probe)
    if not count:
        raise ExportError(
            "the bundle holds no probes, so nothing shows that the PMML would answer as its source."
        )


def _columns(tabular: Tabular, bundle: Bundle, probe: Probe) -> dict[str, Array]:
    columns = [
        probe.inputs[spec.name][:, k] for spec in bundle.signature.inputs for k in range(int(spec.shape[1]))
    ]
    return dict(zip(tabular.fields, columns, strict=True))


def _compare(given: dict[str, Array], tabular: Tabular, probe: Probe) -> None:
    if tabular.prediction:
        told = probe.outputs[tabular.prediction].astype(np.float64).reshape(-1)
        _close(given[prediction_field(tabular)], told, tabular.prediction, probe)
        return
    shares = np.stack([given[probability_field(name)] for name in tabular.classes], axis=1)
    if tabular.probabilities:
        told = probe.outputs[tabular.probabilities].astype(np.float64)
        _close(shares.ravel(), told.ravel(), tabular.probabilities, probe)
    if not tabular.label:
        return
    labels = probe.outputs[tabular.label].reshape(-1)
    ordered = np.sort(shares, axis=1)
    clear = ~(ordered[:, -1] - ordered[:, -2] < _TIE)
    wrong = (given[label_field(tabular)] != labels) & clear
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise _departs(tabular.label, given[label_field(tabular)][row], labels[row], probe)


def _close(given: Array, told: Array, name: str, probe: Probe) -> None:
    finite = np.abs(told[np.isfinite(told)])
    margin = _ABSOLUTE + _RELATIVE * (float(finite.max()) if finite.size else 0.0)
    far = ~((np.abs(given - told) <= margin) | (given == told) | (np.isnan(given) & np.isnan(told)))
    if far.any():
        row = int(np.flatnonzero(far)[0])
        raise _departs(name, given[row], told[row], probe)


def _departs(name: str, given: object, told: object, probe: Probe) -> ExportError:
    return ExportError(
        f"the PMML would give {name} = {given} where the source gave {told} (case {probe.case!r}), so it was not "
        "written. Serve the bundle as it is."
    )
