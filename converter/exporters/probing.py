"""Ask the source: what it answers to every planned case.

Nothing here opens the converted file in a runtime. What is recorded is what the source framework said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter._stages import stage
from paritygate.converter.bundle import OmittedCase, Probe
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.binding import Binding
from paritygate.converter.exporters.edges import edge_cases, unasked_note
from paritygate.converter.exporters.named_source import NamedSource, SourceRejected, is_floating
from paritygate.converter.exporters.questions import (
    Question,
    known_ranges,
    planned,
    sample_question,
    told_ranges,
)
from paritygate.converter.exporters.telling import telling_sizes
from paritygate.converter.parity.feeds import is_wide
from paritygate.converter.types import Array, DType, Feeds

if TYPE_CHECKING:
    pass


BASE_CASE = "base"

_ORDINARY = (BASE_CASE, "sweep:", "joint:")
"""Cases of ordinary values: single precision overflows in none of them, where the model is of any use."""


@dataclass
class Capture:
    """What the source said.

    Attributes:
        probes: What is sealed.
        omitted: Planned cases without a probe, with the reason.
        shapes: Sizes and output shapes of every case that the source answered.
        figures: For each sample: smallest, largest, mean value of each output, and how many are not finite.
        notes: Sentences for the manifest.
    """

    probes: list[Probe] = field(default_factory=list)
    omitted: list[OmittedCase] = field(default_factory=list)
    shapes: list[tuple[dict[str, int], dict[str, tuple[int, ...]]]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def capture(
    source: NamedSource, binding: Binding, config: ExportConfig, dtypes: Mapping[str, DType]
) -> Capture:
    """Ask the source every planned case and every sample.

    A case that the source itself refuses is recorded as omitted with its reason: it limits what is proven and
    is no failure of the converted model.

    Args:
        source: The source.
        binding: Its settled inputs.
        config: Seed, ranges, samples, whether float64 answers are asked for.
        dtypes: The graph's dtype of each output.

    Raises:
        ExportError: If the source refuses the base case, or a sample does not fit the inputs.
    """
    said = Capture()
    asker = _Asker(source, binding, dtypes, said, wide=config.float64)
    told, edges = telling_sizes(source.model, binding), source.model.edges()
    for question in planned(source, binding, config, told):
        asker.ask(question, must=question.case == BASE_CASE)
    for case, dims, feeds in edge_cases(binding, edges):
        asker.ask(Question(case, dims, feeds), must=False)
    for index, sample in enumerate(config.samples):
        asker.ask_sample(sample_question(binding, sample, index), keep=config.include_samples)
    said.notes += [note for sizes in told.values() for note in sizes.untold]
    said.notes += unasked_note(binding, edges)
    said.notes += _unasked(said.probes, told_ranges(source.model, binding))
    said.notes += _as_in_example(said.probes, binding, known_ranges(source.model, binding, config))
    return said


def ask_each_size(source: NamedSource, binding: Binding, config: ExportConfig) -> None:
    """Ask a source that `traces_anew` once at the sizes of every planned case; its answers are dropped."""
    asked: list[dict[str, int]] = []
    for question in planned(source, binding, config, telling_sizes(source.model, binding)):
        if question.dims not in asked:
            asked.append(question.dims)
            with suppress(SourceRejected):  # said of the case itself, when it is asked in earnest
                source.run(binding, question.feeds)


def _unasked(probes: Sequence[Probe], told: Mapping[str, tuple[int, int]]) -> list[str]:
    """A note for each vocabulary whose rows are not all asked: a wrong row that no probe reads is not seen."""
    notes = []
    for name, (low, high) in told.items():
        asked = np.unique(np.concatenate([probe.inputs[name].ravel() for probe in probes]))
        count, rows = int(np.count_nonzero((asked >= low) & (asked <= high))), high - low + 1
        if count < rows:
            notes.append(
                f"Input {name!r} has a vocabulary of {rows}; the probes ask at most {count} of them. "
                "Give samples that hold others (include_samples) to have those asked."
            )
    return notes


def _as_in_example(
    probes: Sequence[Probe], binding: Binding, known: Mapping[str, tuple[int, int]]
) -> list[str]:
    """A note for each integer input that nobody gave a range: a number beyond those asked may be wrong unseen."""
    notes: list[str] = []
    if any(is_wide(probe.case) for probe in probes):
        return notes
    for spec in binding.inputs:
        asked = [probe.inputs[spec.name] for probe in probes if probe.inputs[spec.name].size]
        if not spec.dtype.is_integer or spec.name in known or not asked:
            continue
        low, high = min(int(array.min()) for array in asked), max(int(array.max()) for array in asked)
        notes.append(
            f"Input {spec.name!r} was asked numbers from {low} to {high} only; tell the smallest and largest that "
            "it takes (--integer-range, integer_ranges=) to have others asked."
        )
    return notes


def holds_nan(probes: Sequence[Probe]) -> bool:
    """Whether a NaN among the inputs is asked."""
    floats = (array for probe in probes for array in probe.inputs.values() if array.dtype.kind == "f")
    return any(bool(np.isnan(array).any()) for array in floats)


@dataclass
class _Asker:
    source: NamedSource
    binding: Binding
    dtypes: Mapping[str, DType]
    said: Capture
    wide: bool

    def ask(self, question: Question, *, must: bool) -> None:
        try:
            answers = self._answers(question)
        except SourceRejected as error:
            if must:
                raise ExportError(f"the source refuses the base case: {error}.") from error
            self.said.omitted.append(OmittedCase(question.case, f"the source refuses it: {error}"))
            return
        except MemoryError:
            if must:
                raise
            reason = "there was not enough memory here to ask the source"
            self.said.omitted.append(OmittedCase(question.case, reason))
            return
        other = self._other_rank(answers) or _no_whole_answer(question, answers)
        if other is not None:
            self.said.omitted.append(OmittedCase(question.case, other))
            return
        self._seal(question, answers)

    def ask_sample(self, question: Question, *, keep: bool) -> None:
        try:
            answers = self._answers(question)
        except SourceRejected as error:
            raise ExportError(
                f"the source refuses {question.case}: {error}. Remove it from the samples."
            ) from error
        self.said.figures.append({name: _figures(array) for name, array in answers.items()})
        if keep:
            self._seal(question, answers)

    def _seal(self, question: Question, answers: dict[str, Array]) -> None:
        self.said.shapes.append((question.dims, {name: array.shape for name, array in answers.items()}))
        index = len(self.said.probes)
        cast = {name: self._as_graph(name, array) for name, array in answers.items()}
        wide = self._float64(question, answers)
        self.said.probes.append(Probe(index, question.case, question.dims, question.feeds, cast, wide))

    def _answers(self, question: Question) -> dict[str, Array]:
        return self.source.run(self.binding, question.feeds)

    def _other_rank(self, answers: Mapping[str, Array]) -> str | None:
        """Why a case cannot be a probe: an ONNX output has one rank, and the source gave another one here."""
        if not self.said.shapes:
            return None
        for name, shape in self.said.shapes[0][1].items():
            if len(shape) != answers[name].ndim:
                return (
                    f"output {name!r} of the source has {answers[name].ndim} axes here and {len(shape)} in the "
                    f"base case; an ONNX output has one rank, so these sizes cannot be proven"
                )
        return None

    def _as_graph(self, name: str, array: Array) -> Array:
        dtype = self.dtypes[name]
        if array.dtype == dtype.numpy:
            return array
        note = f"Output {name!r} is {array.dtype} in the source and {dtype.value} in the graph; answers were cast."
        if note not in self.said.notes:
            self.said.notes.append(note)
        return array.astype(dtype.numpy)

    def _float64(self, question: Question, answers: Mapping[str, Array]) -> dict[str, Array] | None:
        if not self.wide or not any(is_floating(array) for array in answers.values()):
            return None
        if all(array.dtype == np.float64 for array in answers.values() if is_floating(array)):
            return {name: array for name, array in answers.items() if is_floating(array)}
        try:
            with stage("float64"):
                wide = self.source.run_float64(self.binding, question.feeds)
        except (SourceRejected, ExportError, MemoryError) as error:
            self._stop_float64(question, str(error) or "there was not enough memory here for it")
            return None
        fault = _no_reference(wide, answers, compare=question.case.startswith(_ORDINARY))
        if fault is not None:
            self._stop_float64(question, fault)
            return None
        return wide

    def _stop_float64(self, question: Question, reason: str) -> None:
        self.wide = False
        since = "" if question.case == BASE_CASE else f" from case {question.case} on"
        self.said.notes.append(f"The source gives no float64 reference{since}: {reason.rstrip('.')}.")


def _no_whole_answer(question: Question, answers: Feeds) -> str | None:
    """Why the wide case proves nothing: floats of integers that they cannot hold are what rounding made them."""
    rounded = [name for name, array in answers.items() if is_floating(array)]
    if not is_wide(question.case) or not rounded:
        return None
    return f"output {rounded[0]!r} is a float, which cannot hold integers of this size: only rounding would differ"


def _no_reference(wide: Feeds | None, answers: Feeds, *, compare: bool) -> str | None:
    """Why double-precision answers cannot be the reference that noise is measured by, or None.

    A twin that computes something else would pass for a large noise floor and excuse real faults, so at ordinary
    values of whatever size it must agree with the answers to 5 % of their scale.
    """
    if wide is None:
        return "the exporter has no double-precision form of it"
    for name, array in wide.items():
        narrow = answers[name].astype(np.float64)
        if array.shape != narrow.shape:
            return f"the shape of {name!r} is not that of the answer"
        scale = float(np.max(np.abs(narrow[np.isfinite(narrow)]), initial=0.0))
        if compare and not np.allclose(array, narrow, rtol=0.05, atol=0.05 * scale, equal_nan=True):
            return f"its double-precision twin computes another {name!r}"
    return None


def _figures(array: Array) -> dict[str, Any]:
    if array.dtype == np.dtype(object) or array.size == 0:
        return {"shape": list(array.shape), "min": None, "max": None, "mean": None, "nonfinite": 0}
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    some = finite if finite.size else np.zeros(1)
    return {
        "shape": list(array.shape),
        "min": float(some.min()),
        "max": float(some.max()),
        "mean": float(some.mean()),
        "nonfinite": int(wide.size - finite.size),
    }


def sample_figures(config: ExportConfig, said: Capture) -> dict[str, Any] | None:
    """What the manifest says of the user's samples: how many, their digest, figures of the source's answers."""
    if not config.samples:
        return None
    return {
        "count": len(config.samples),
        "sha256": digest_samples(config.samples),
        "included": config.include_samples,
        "figures": said.figures,
    }


def digest_samples(samples: Sequence[Feeds]) -> str:
    """Hex sha256 over names, dtypes, shapes and values of samples, in their order; says which, shows nothing."""
    digest = hashlib.sha256()
    for feeds in samples:
        for name in sorted(feeds):
            array = np.asarray(feeds[name])
            strings = array.dtype.kind in "OUS"
            body = (
                "\0".join(map(str, array.ravel())).encode()
                if strings
                else np.ascontiguousarray(array).tobytes()
            )
            head = f"{name}\0{'string' if strings else array.dtype}\0{array.shape}\0{len(body)}\0"
            digest.update(head.encode() + body)
    return digest.hexdigest()
