"""What the shape sweep proves of each dynamic dim, and which dims must be fixed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paritygate.converter.types import DemotedDim


@dataclass(frozen=True)
class CaseResult:
    """How one case ended, over all outputs and sessions.

    Attributes:
        case: Its name.
        dims: The size of every dynamic dim.
        fault: None if all agreed, else the gravest of `raised`, `form`, `shape`, `numbers`.
        reason: One sentence, or an empty string.
    """

    case: str
    dims: Mapping[str, int]
    fault: str | None
    reason: str = ""


@dataclass(frozen=True)
class Ruling:
    """What follows from all cases.

    Attributes:
        proven_ranges: Sizes at which each surviving dim agreed, the trace size among them.
        demoted: Dims that are fixed from now on.
        failing: Names of cases whose disagreement no demotion explains: the model is wrong.
        excused: Names of cases that no longer belong to the signature.
    """

    proven_ranges: dict[str, tuple[int, ...]] = field(default_factory=dict)
    demoted: tuple[DemotedDim, ...] = ()
    failing: tuple[str, ...] = ()
    excused: frozenset[str] = frozenset()


def rule(results: Sequence[CaseResult], trace_dims: Mapping[str, int]) -> Ruling:
    """Judge all cases.

    A case at trace sizes must agree. A dim that was never tried at another size is not claimed. A dim that the
    candidate cannot take at another size (it raises, or gives another shape) is fixed at its trace size.

    *Wrong numbers* at other sizes fix a dim only if no other size than 1 agrees: a graph with a frozen size is
    wrong at all of them, while a wrong weight is wrong at some, and must not be excused as a matter of shape.
    Nothing is excused where the numbers are wrong at the trace sizes already.

    Args:
        results: One for each case.
        trace_dims: The trace size of every dynamic dim.
    """
    failing = [result.case for result in results if result.fault and not _moved(result, trace_dims)]
    wrong_anyway = bool(failing)
    proven: dict[str, tuple[int, ...]] = {}
    demoted: dict[str, DemotedDim] = {}
    for dim, size in trace_dims.items():
        alone = [result for result in results if _moved(result, trace_dims) == [dim]]
        bad = [result for result in alone if result.fault]
        good = {result.dims[dim] for result in alone if not result.fault}
        if not alone:
            demoted[dim] = DemotedDim(dim, size, "no other size was tried, so none is proven")
        elif not bad:
            proven[dim] = tuple(sorted(good | {size}))
        elif any(result.fault == "numbers" for result in bad) and (wrong_anyway or good - {1}):
            failing += [result.case for result in bad]
        else:
            demoted[dim] = DemotedDim(dim, size, f"at size {bad[0].dims[dim]}: {bad[0].reason}")
    return _rule_joint(results, trace_dims, proven, demoted, failing)


def _rule_joint(
    results: Sequence[CaseResult],
    trace_dims: Mapping[str, int],
    proven: dict[str, tuple[int, ...]],
    demoted: dict[str, DemotedDim],
    failing: list[str],
) -> Ruling:
    """Cases that move several dims at once: those that cannot run together leave only the first dim free."""
    for result in results:
        moved = _moved(result, trace_dims)
        if not result.fault or len(moved) < 2 or any(dim in demoted for dim in moved):
            continue
        if result.fault == "numbers":
            failing.append(result.case)
            continue
        for dim in moved[1:]:
            proven.pop(dim, None)
            demoted[dim] = DemotedDim(
                dim, trace_dims[dim], f"it varies alone but not together with {moved[0]}: {result.reason}"
            )
    excused = {result.case for result in results if any(dim in demoted for dim in _moved(result, trace_dims))}
    order = [demoted[dim] for dim in trace_dims if dim in demoted]
    return Ruling(proven, tuple(order), tuple(dict.fromkeys(failing)), frozenset(excused))


def _moved(result: CaseResult, trace_dims: Mapping[str, int]) -> list[str]:
    return [dim for dim, size in trace_dims.items() if result.dims.get(dim, size) != size]
