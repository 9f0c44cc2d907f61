"""A source under the user's names, and whether it answers the same each time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.errors import ConverterError, ExportError
from paritygate.converter.exporters.binding import Binding
from paritygate.converter.types import Array, DType, Feeds

if TYPE_CHECKING:
    from paritygate.converter.exporters.base import SourceModel


REASON_LENGTH = 300
"""Characters of a framework's own text that are kept in a reason."""

_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.{1,200})")


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
    missing = _MISSING.search(str(error)) if isinstance(error, TypeError) else None
    if missing is not None:
        return f"it is not given {missing[1]}, which it needs"
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
