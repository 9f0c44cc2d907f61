"""A function as JAX itself sees it: traced once with open sizes, nothing patched, and run from the same form."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax import export as jax_export
from jax._src import source_info_util
from jax._src.export import shape_poly
from jax.extend import core as jax_core

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._jax.calls import flatten_output
from paritygate.converter.exporters.base import DimCannotVary
from paritygate.converter.exporters.blame import to_blame
from paritygate.converter.types import TensorSpec

_LIBRARIES = tuple(
    f"{Path(spec.origin).parent}{os.sep}"
    for name in ("jax", "jaxlib", "flax", "numpy")
    if (spec := importlib.util.find_spec(name)) is not None and spec.origin
)
"""Where they are installed: a folder of the user's may be called `flax` too."""
_OWN = str(Path(__file__).parent)


@dataclass(frozen=True)
class Traced:
    """A function's program for some sizes of its inputs.

    Attributes:
        program: The program; weights and other constants are its `consts`.
        outputs: Names of the outputs in order.
        others: Parts of the answer that are no arrays, by name.
    """

    program: jax_core.ClosedJaxpr
    outputs: tuple[str, ...]
    others: Mapping[str, Any]


def trace(function: Callable[[Sequence[Any]], Any], avals: Sequence[jax.ShapeDtypeStruct]) -> Traced:
    """Trace a function of flat inputs.

    Raises:
        ExportError: If it takes Python decisions on values; names the line.
        Exception: Whatever else the function or JAX says.
    """
    said: dict[str, Any] = {}

    def flat(*leaves: Any) -> list[Any]:
        arrays, said["others"] = flatten_output(function(leaves))
        said["outputs"] = tuple(name for name, _ in arrays)
        return [array for _, array in arrays]

    try:
        program = jax.make_jaxpr(flat)(*avals)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ExportError(
            f"JAX cannot trace {place_of(error) or 'the model'}: a Python decision or NumPy call hangs on the "
            f"values of an array there ({type(error).__name__}); use jnp.where, jax.lax.cond or jax.numpy instead."
        ) from error
    if not said["outputs"]:
        raise ExportError("the model gives no array; a served model gives at least one.")
    return Traced(program, said["outputs"], said["others"])


def trace_open(
    function: Callable[[Sequence[Any]], Any], inputs: Sequence[TensorSpec], sizes: Mapping[str, int]
) -> Traced:
    """Trace with every named size open.

    Args:
        function: A function of flat inputs.
        inputs: Its inputs; a text in a shape is a size that has to stay open.
        sizes: A size for each of them, at which the function is known to work.

    Raises:
        DimCannotVary: For a size that can only be fixed, with JAX's reason and the line.
        ExportError: If it cannot be traced with all sizes fixed either.
    """
    dims = list(sizes)
    try:
        with _asked_sizes() as asked:
            traced = trace(function, _avals(inputs, dims, sizes))
    except ExportError:
        raise
    except Exception as error:
        raise _verdict(error, function, inputs, sizes) from error
    for dim in dims:
        if dim in asked:
            raise DimCannotVary(dim, f"a Python decision hangs on it, at {asked[dim]}")
    return traced


def _verdict(
    error: Exception,
    function: Callable[[Sequence[Any]], Any],
    inputs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
) -> Exception:
    """The size to blame, those that the error names first; or what hinders the trace at fixed sizes too."""
    text = str(error)
    named = [dim for dim in sizes if re.search(rf"\b{re.escape(dim)}\b", text)]
    place = place_of(error)
    said = f"{first_line(error)}{f' at {place}' if place else ''}"

    def refusal(opened: Iterable[str]) -> Exception | None:
        try:
            trace(function, _avals(inputs, list(opened), sizes))
        except MemoryError:  # says nothing of the sizes
            raise
        except Exception as refused:  # noqa: BLE001 - judged below: a verdict on these sizes, or told
            return refused
        return None

    fixed = refusal(()) if sizes else error
    if isinstance(fixed, ExportError):
        return fixed
    if fixed is not None:
        at = place_of(fixed)
        return ExportError(f"JAX cannot trace the model{f' at {at}' if at else ''}: {first_line(fixed)}.")
    suspects = [*named, *(dim for dim in sizes if dim not in named)]
    blamed = to_blame(suspects, lambda opened: refusal(opened) is None)
    return DimCannotVary(blamed, f"JAX cannot trace it open: {said}")


def _avals(
    inputs: Sequence[TensorSpec], dims: Sequence[str], sizes: Mapping[str, int]
) -> list[jax.ShapeDtypeStruct]:
    scope = jax_export.SymbolicScope()
    symbols = {dim: jax_export.symbolic_shape(dim, scope=scope)[0] for dim in dims}
    return [
        jax.ShapeDtypeStruct(
            tuple(symbols.get(d, sizes[d]) if isinstance(d, str) else d for d in spec.shape), spec.dtype.numpy
        )
        for spec in inputs
    ]


@contextlib.contextmanager
def _asked_sizes() -> Iterator[dict[str, str]]:
    """Which open sizes the user's own code compares for equality, where JAX just says no, by name with the place.

    JAX answers `x.shape[1] == 3` with False for every open size without a word, so that a model that branches on
    it would be narrowed to one branch.
    """
    asked: dict[str, str] = {}
    symbol = shape_poly._DimExpr
    plain = symbol.__eq__

    def watched(self: Any, other: Any) -> Any:
        answer = plain(self, other)
        frame = sys._getframe(1)
        if frame.f_code.co_name == "__ne__" and frame.f_back is not None:
            frame = frame.f_back
        if not answer and _is_users(frame) and not _surely_unlike(self, other):
            for name in self._get_vars():
                asked.setdefault(name, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return answer

    symbol.__eq__ = watched
    try:
        yield asked
    finally:
        symbol.__eq__ = plain


def _surely_unlike(dim: Any, other: Any) -> bool:
    """Whether a size differs from another one for all values: `B` from 0, `B + 1` from `B`."""
    try:
        low, high = shape_poly._bounds_decision(dim - other, shape_poly.BoundsPrecision.BEST)
    except Exception:  # noqa: BLE001 - undecided
        return False
    return bool(low > 0 or high < 0)


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith(("<", *_LIBRARIES, _OWN))


def place_of(error: BaseException) -> str | None:
    """`net.py:12`: the innermost line of the user's own code that an exception passed through."""
    frames: list[tuple[str, int]] = []
    link = error.__traceback__
    while link is not None:
        if _is_users(link.tb_frame):
            frames.append((link.tb_frame.f_code.co_filename, link.tb_lineno))
        link = link.tb_next
    outside = [(name, line) for name, line in frames if "paritygate" not in Path(name).parts]
    return f"{Path(outside[-1][0]).name}:{outside[-1][1]}" if outside else None


def place_of_equation(equation: Any) -> str | None:
    """`net.py:12 (forward)`: where in the user's code an operation was written."""
    text = source_info_util.summarize(equation.source_info)
    found = re.fullmatch(r"(?P<file>.+?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?", text)
    if found is None:
        return None
    function = f" ({found['function']})" if found["function"] else ""
    return f"{Path(found['file']).name}:{found['line']}{function}"


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, with its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}"[:300] if lines else type(error).__name__
