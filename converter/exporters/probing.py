"""Ask the source: what it answers to every planned case, how its outputs' sizes follow.

Nothing here opens the converted file in a runtime. What is recorded is what the source framework said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter._stages import stage
from paritygate.converter.bundle import OmittedCase, Probe
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError, ExportError
from paritygate.converter.exporters.binding import Binding
from paritygate.converter.exporters.edges import edge_cases, unasked_note
from paritygate.converter.exporters.telling import TellingSizes, telling_sizes
from paritygate.converter.parity.feeds import EXTREMES, Case, is_wide, make_feeds, plan_cases
from paritygate.converter.parity.likeness import Moments, as_example, example_moments, like_cases
from paritygate.converter.types import Array, Dim, DType, Feeds, Signature, TensorSpec

if TYPE_CHECKING:
    from paritygate.converter.exporters.base import SourceModel

REASON_LENGTH = 300
"""Characters of a framework's own text that are kept in a reason."""


class SourceRejected(Exception):
    """The source refused these inputs; the text is its own first line."""


@dataclass
class NamedSource:
    """A source under the user's names; checks every answer before anyone records it.

    Attributes:
        model: The open source.
        output_names: The user's names of the outputs, or None for the source's own.
        constants: Whole numbers that the converted graph compares with; none before there is one.
    """

    model: SourceModel
    output_names: tuple[str, ...] | None
    own_outputs: tuple[str, ...] = ()
    constants: Sequence[int] = ()

    def run(self, binding: Binding, feeds: Feeds) -> dict[str, Array]:
        """The source's answers under the user's names.

        Raises:
            SourceRejected: If the source refuses the inputs.
            ExportError: If its answers are not named arrays, or other ones than before.
        """
        return self._named(self._call(self.model.run, binding, feeds), binding)

    def run_float64(self, binding: Binding, feeds: Feeds) -> dict[str, Array] | None:
        """The source's double-precision answers under the user's names, floating outputs only; None without."""
        answers = self._call(self.model.run_float64, binding, feeds)
        if answers is None:
            return None
        named = self._named(answers, binding, some=True)
        wide = {name: array for name, array in named.items() if is_floating(array)}
        narrow = next((name for name, array in wide.items() if array.dtype != np.float64), None)
        if narrow is not None:
            raise SourceRejected(f"it computes {narrow!r} in {wide[narrow].dtype} whatever its weights are")
        return wide

    def _call(self, method: Any, binding: Binding, feeds: Feeds) -> Any:
        try:
            return method(binding.to_own(feeds))
        except (ConverterError, MemoryError):
            raise
        except Exception as error:
            raise SourceRejected(one_line(error)) from error

    def _named(
        self, answers: Mapping[str, Array], binding: Binding, *, some: bool = False
    ) -> dict[str, Array]:
        """Answers under the user's names; `some` takes fewer, as a double-precision form gives floats alone."""
        own = tuple(answers)
        self.own_outputs = self.own_outputs or own
        if own != self.own_outputs and not (some and set(own) < set(self.own_outputs)):
            raise ExportError(
                f"the source gave the outputs {list(own)}, before {list(self.own_outputs)}; "
                f"a served model gives the same outputs each time."
            )
        names = self._names(self.own_outputs, [spec.name for spec in binding.inputs])
        return {
            name: as_answer(name, answers[key])
            for name, key in zip(names, self.own_outputs, strict=True)
            if key in answers
        }

    def _names(self, own: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """The outputs' names; one of the source's own that an input has gives way: a graph cannot hold both."""
        if self.output_names is None:
            return tuple(f"{name}_out" if name in inputs else name for name in own)
        if len(self.output_names) != len(own):
            raise ExportError(
                f"output_names gives {len(self.output_names)} names {list(self.output_names)}, but the model "
                f"gives {len(own)} outputs {list(own)}; give one name each, in that order."
            )
        return self.output_names


def one_line(error: BaseException) -> str:
    """The first telling line of an exception's text, with its type, cut to `REASON_LENGTH` characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 1] + "…"


def is_floating(array: Array) -> bool:
    """Whether an array holds floating-point numbers, bfloat16 included."""
    return DType.from_numpy(array.dtype).is_floating


def as_answer(name: str, value: Any) -> Array:
    """An output as an array that a bundle can hold.

    Raises:
        ExportError: If it is no array, or of a dtype that models cannot give.
    """
    if not isinstance(value, np.ndarray | np.generic):
        raise ExportError(f"output {name!r} of the source is a {type(value).__name__}, not an array.")
    array = np.asarray(value)
    try:
        dtype = DType.from_numpy(array.dtype)
    except ValueError as error:
        raise ExportError(
            f"output {name!r} of the source is {array.dtype}, which no served model can give."
        ) from error
    if dtype is DType.STRING and array.dtype != np.dtype(object):
        return array.astype(object)
    return array


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


@dataclass(frozen=True)
class _Question:
    case: str
    dims: dict[str, int]
    feeds: dict[str, Array]


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
    for question in _planned(source, binding, config, told):
        asker.ask(question, must=question.case == BASE_CASE)
    for case, dims, feeds in edge_cases(binding, edges):
        asker.ask(_Question(case, dims, feeds), must=False)
    for index, sample in enumerate(config.samples):
        asker.ask_sample(_sample_question(binding, sample, index), keep=config.include_samples)
    said.notes += [note for sizes in told.values() for note in sizes.untold]
    said.notes += unasked_note(binding, edges)
    said.notes += _unasked(said.probes, _told_ranges(source.model, binding))
    said.notes += _as_in_example(said.probes, binding, _known_ranges(source.model, binding, config))
    return said


def ask_each_size(source: NamedSource, binding: Binding, config: ExportConfig) -> None:
    """Ask a source that `traces_anew` once at the sizes of every planned case; its answers are dropped."""
    asked: list[dict[str, int]] = []
    for question in _planned(source, binding, config, telling_sizes(source.model, binding)):
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
                f"Input {name!r} has a vocabulary of {rows}; the probes ask at most {count} of them."
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


BASE_CASE = "base"
CONSTANT_CASE = f"{EXTREMES}constants"
_MOST_CONSTANTS = 16
_ORDINARY = (BASE_CASE, "sweep:", "joint:")
"""Cases of ordinary values: single precision overflows in none of them, where the model is of any use."""


def _planned(
    source: NamedSource, binding: Binding, config: ExportConfig, told: Mapping[str, TellingSizes]
) -> Iterator[_Question]:
    signature = Signature(binding.inputs, ())
    ranges = integer_ranges(source.model, binding, config)
    known = _known_ranges(source.model, binding, config)
    free = any(spec.dtype.is_integer and spec.shape and spec.name not in known for spec in binding.inputs)
    wide = source.model.whole_numbers and free
    telling = {dim: sizes.asked for dim, sizes in told.items()}
    cases = plan_cases(signature, trace_dims=binding.trace_dims, seed=config.seed, wide=wide, telling=telling)
    moments = {} if source.model.example is None else example_moments(binding.inputs, binding.example)
    likes = _like_cases(binding, moments, config.seed + len(cases))
    for case in _in_order(cases, likes):
        limits = known if is_wide(case.name) else ranges
        feeds = make_feeds(signature, case, ranges=limits)
        if case in likes:
            feeds = as_example(binding.inputs, feeds, moments)
        yield _Question(case.name, dict(case.dims), _acceptable(source.model, binding, feeds))
    yield from _beside_constants(source, binding, cases[0], ranges, known)


def _beside_constants(
    source: NamedSource,
    binding: Binding,
    base: Case,
    ranges: Mapping[str, tuple[int, int]],
    known: Mapping[str, tuple[int, int]],
) -> Iterator[_Question]:
    """Integers at, just below and just above what the graph compares with; as many cases as hold most of them."""
    numbers = [n + step for n in source.constants[:_MOST_CONSTANTS] for step in (0, -1, 1)]
    feeds = make_feeds(Signature(binding.inputs, ()), base, ranges=ranges)
    wanted = {spec.name: _within(spec, numbers, known) for spec in binding.inputs if spec.dtype.is_integer}
    asked = {name: values for name, values in wanted.items() if values and feeds[name].size}
    count = max((-(-len(values) // feeds[name].size) for name, values in asked.items()), default=0)
    for index in range(min(count, 4)):
        moved = {
            # NumPy makes floats of Python numbers on both sides of 2**63, so the type comes first.
            name: np.resize(
                np.roll(np.array(values, feeds[name].dtype), -index * feeds[name].size), feeds[name].shape
            )
            for name, values in asked.items()
        }
        yield _Question(
            f"{CONSTANT_CASE}:{index}", dict(base.dims), _acceptable(source.model, binding, feeds | moved)
        )


def _within(spec: TensorSpec, numbers: Sequence[int], known: Mapping[str, tuple[int, int]]) -> list[int]:
    info = np.iinfo(spec.dtype.numpy)
    low, high = known.get(spec.name, (int(info.min), int(info.max)))
    return [n for n in dict.fromkeys(numbers) if max(low, info.min) <= n <= min(high, info.max)]


def _like_cases(binding: Binding, moments: Mapping[str, Moments], seed: int) -> list[Case]:
    """None for an example that says nothing of its scale: zeros, or one row of features."""
    if not any(entry.varies for entry in moments.values()):
        return []
    return like_cases(binding.inputs, binding.trace_dims, seed)


def _in_order(cases: Sequence[Case], likes: Sequence[Case]) -> list[Case]:
    """The small case on the example's scale before the extremes, the large one last: a budget cuts the end."""
    first = next((k for k, case in enumerate(cases) if case.name.startswith("extreme:")), len(cases))
    return [*cases[:first], *likes[:1], *cases[first:], *likes[1:]]


def integer_ranges(model: SourceModel, binding: Binding, config: ExportConfig) -> dict[str, tuple[int, int]]:
    """Safe ranges of the integer inputs: declared, else the model's own word, else what the example shows."""
    seen = {
        spec.name: (int(binding.example[spec.name].min()), int(binding.example[spec.name].max()))
        for spec in binding.inputs
        if spec.dtype.is_integer
    }
    return seen | _known_ranges(model, binding, config)


def _known_ranges(model: SourceModel, binding: Binding, config: ExportConfig) -> dict[str, tuple[int, int]]:
    """Ranges that someone vouches for; what an example shows is no limit of the model."""
    return _told_ranges(model, binding) | dict(config.integer_ranges)


def _told_ranges(model: SourceModel, binding: Binding) -> dict[str, tuple[int, int]]:
    """The vocabularies that the model itself tells, by the user's names."""
    own = {o: spec.name for o, spec in zip(binding.own_names, binding.inputs, strict=True)}
    return {own[name]: bounds for name, bounds in model.integer_ranges().items()}


def _acceptable(model: SourceModel, binding: Binding, feeds: Feeds) -> dict[str, Array]:
    names = {spec.name: own for own, spec in zip(binding.own_names, binding.inputs, strict=True)}
    given = model.acceptable({names[name]: array for name, array in feeds.items()})
    return {name: given[own] for name, own in names.items()}


def _sample_question(binding: Binding, sample: Feeds, index: int) -> _Question:
    case = f"sample:{index}"
    dims: dict[str, int] = {}
    names = [spec.name for spec in binding.inputs]
    if set(sample) != set(names):
        raise ExportError(f"sample {index} has the inputs {sorted(sample)}; the model takes {names}.")
    feeds = {spec.name: _as_input(case, spec, sample[spec.name]) for spec in binding.inputs}
    for spec in binding.inputs:
        for axis, dim in enumerate(spec.shape):
            size = feeds[spec.name].shape[axis]
            expected = dims.setdefault(dim, size) if isinstance(dim, str) else dim
            if size != expected:
                raise ExportError(
                    f"sample {index} gives {spec.name!r} the shape {list(feeds[spec.name].shape)}; "
                    f"the model takes {spec}{'' if isinstance(dim, int) else f', and {dim!r} is {expected}'}."
                )
    return _Question(case, dims, feeds)


def _as_input(case: str, spec: TensorSpec, value: Any) -> Array:
    array = np.asarray(value)
    if spec.dtype is DType.STRING and array.dtype.kind in "US":
        array = array.astype(str).astype(object)
    if array.dtype != spec.dtype.numpy or array.ndim != len(spec.shape):
        raise ExportError(
            f"{case} gives {spec.name!r} as {array.dtype}{list(array.shape)}; the model takes {spec}."
        )
    return array


@dataclass
class _Asker:
    source: NamedSource
    binding: Binding
    dtypes: Mapping[str, DType]
    said: Capture
    wide: bool

    def ask(self, question: _Question, *, must: bool) -> None:
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

    def ask_sample(self, question: _Question, *, keep: bool) -> None:
        try:
            answers = self._answers(question)
        except SourceRejected as error:
            raise ExportError(
                f"the source refuses {question.case}: {error}. Remove it from the samples."
            ) from error
        self.said.figures.append({name: _figures(array) for name, array in answers.items()})
        if keep:
            self._seal(question, answers)

    def _seal(self, question: _Question, answers: dict[str, Array]) -> None:
        self.said.shapes.append((question.dims, {name: array.shape for name, array in answers.items()}))
        index = len(self.said.probes)
        cast = {name: self._as_graph(name, array) for name, array in answers.items()}
        wide = self._float64(question, answers)
        self.said.probes.append(Probe(index, question.case, question.dims, question.feeds, cast, wide))

    def _answers(self, question: _Question) -> dict[str, Array]:
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

    def _float64(self, question: _Question, answers: Mapping[str, Array]) -> dict[str, Array] | None:
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

    def _stop_float64(self, question: _Question, reason: str) -> None:
        self.wide = False
        since = "" if question.case == BASE_CASE else f" from case {question.case} on"
        self.said.notes.append(f"The source gives no float64 reference{since}: {reason.rstrip('.')}.")


def _no_whole_answer(question: _Question, answers: Feeds) -> str | None:
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


def check_repeatable(source: NamedSource, binding: Binding) -> dict[str, Array]:
    """The source's answer to the example, asked twice.

    Raises:
        ExportError: If the two answers differ; a random or stateful model can never be proved.
    """
    feeds = binding.trace_example()
    first, second = source.run(binding, feeds), source.run(binding, feeds)
    for name, array in first.items():
        if not _same(array, second[name]):
            raise ExportError(
                f"output {name!r} of the source differs between two runs on the same input: something in it is "
                f"random or keeps state at inference (dropout that ignores eval, torch.rand, a counter). "
                f"Make inference repeatable, then export again."
            )
    return first


def check_unchanged(source: NamedSource, binding: Binding, before: Feeds) -> None:
    """The source still answers as it did before it was converted.

    What it answers from here on is sealed as the truth: a conversion that changes weights in the source and in the
    graph alike would otherwise prove itself.

    Raises:
        ExportError: If the answer to the example changed.
    """
    after = source.run(binding, binding.trace_example())
    for name, array in before.items():
        if not _same(array, after[name], rtol=1e-5):
            raise ExportError(
                f"output {name!r} of the source changed while it was converted; its answers are no evidence any "
                "more. Export a model that its framework's exporter leaves as it is."
            )


def _same(a: Array, b: Array, rtol: float = 1e-3) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not is_floating(a):
        return bool(np.array_equal(a, b))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.max(np.abs(wide_a[np.isfinite(wide_a)]), initial=0.0))
    return bool(np.allclose(wide_a, wide_b, rtol=rtol, atol=1e-6 * scale, equal_nan=True))


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


# --- sizes of the outputs -----------------------------------------------------------------------------------


def output_specs(
    values: Sequence[tuple[str, DType, tuple[Dim, ...] | None]], said: Capture
) -> tuple[TensorSpec, ...]:
    """The declared outputs: names and dtypes of the graph, sizes as the source showed them."""
    return tuple(
        TensorSpec(
            name, dtype, output_dims(name, shape, [(dims, shapes[name]) for dims, shapes in said.shapes])
        )
        for name, dtype, shape in values
    )


def output_dims(
    name: str, graph_shape: tuple[Dim, ...] | None, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> tuple[Dim, ...]:
    """The declared shape of an output, from what the source gave at every size that was tried.

    A size that followed a named dimension in every case carries its name; one that varied otherwise, or that
    the graph says depends on the data, gets a name of its own; one that never moved is fixed.

    Args:
        name: The output's name.
        graph_shape: The converted graph's word, or None where it is silent.
        seen: (named sizes, shape of this output) for each case.
    """
    rank = len(seen[0][1])
    same_rank = [(sizes, shape) for sizes, shape in seen if len(shape) == rank]
    graph = graph_shape if graph_shape is not None and len(graph_shape) == rank else ("",) * rank
    return tuple(_output_dim(name, axis, graph[axis], same_rank) for axis in range(rank))


def _output_dim(
    name: str, axis: int, graph: Dim, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> Dim:
    sizes = [shape[axis] for _, shape in seen]
    if len(set(sizes)) == 1:
        return sizes[0] if isinstance(graph, int) or graph == "" else _symbol(name, axis, graph, seen)
    for dim in seen[0][0]:
        if all(named[dim] == size for (named, _), size in zip(seen, sizes, strict=True)):
            return dim
    return f"{name}_dim{axis}"


def _symbol(
    name: str, axis: int, graph: Dim, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> Dim:
    """The graph says that a size may move although no case moved it: it hangs on the data."""
    return graph if isinstance(graph, str) and graph in seen[0][0] else f"{name}_dim{axis}"
