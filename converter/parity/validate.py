"""The validator: the sealed probes of a bundle, run on the reference runtime, become a certificate.

Each case runs twice: with graph optimisations off, which shows what the exporter did, and as it will be served,
which shows what the runtime's optimiser did. Both must agree with the source.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.errors import ModelInvalid
from paritygate.converter.parity.noise import Noise, add_own_rounding, measure_noise, of_one_value
from paritygate.converter.parity.nudging import nudge_weights
from paritygate.converter.parity.ordering import by_order
from paritygate.converter.parity.replay import BASE, Replay, runtime_info
from paritygate.converter.parity.report import (
    Certificate,
    Figure,
    RuntimeInfo,
    SelfTest,
    Verdict,
    never_finite,
    shown_share,
)
from paritygate.converter.parity.selftest import self_test
from paritygate.converter.parity.sweep import CaseResult, Ruling, rule
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.parity.undecided import REASONS, by_rounding, only_numbers_differ, still_proven
from paritygate.converter.runtime.onnxruntime import CPU, Session, check_installation, open_session
from paritygate.converter.types import DemotedDim

_GRAVEST_FIRST = ("raised", "form", "shape", "numbers")


def validate_bundle(bundle: Bundle, *, tolerance: ToleranceConfig | None = None) -> Certificate:
    """Prove a bundle, or say what is wrong with it.

    Args:
        bundle: Every file of it is verified again first.
        tolerance: What is allowed; the table in docs/parity.md by default.

    Returns:
        A certificate of any verdict; only `pass` is a proof. `error` if the runtime cannot load or run the model.

    Raises:
        ParityError: If nothing can be compared (no probes, no outputs), or the comparator fails its own test.
        BundleCorrupt: If a file is not the one that was sealed.
        RuntimeUnavailable: If onnxruntime is not there.
    """
    bundle.verify()
    replay = Replay.of(bundle, tolerance)
    version = check_installation()
    model, weights = bundle.model_bytes(), bundle.external_data()
    try:
        plain = open_session(model, external_data=weights, optimize=False, intra_op_threads=1)
        served = open_session(model, external_data=weights)
    except ModelInvalid as error:
        return _unloadable(bundle, replay, str(error), version)
    moved = _with_moved_weights(model, weights)
    del model, weights
    measure = functools.partial(measure_noise, replay.probes, plain, moved=moved)
    replay = replay.with_own_scales(measure)
    noise = measure(replay.scales)
    del moved, measure
    replay, noise = replay.with_noise(noise, plain)
    tested = self_test(
        replay.base.outputs, replay.contexts(replay.base, noise), replay.tolerance, replay.weights
    )
    figures, as_served = _figures(replay, plain, noise), _figures(replay, served, noise)
    unexplained = _unexplained(replay, [*figures, *as_served])
    if unexplained:
        own = add_own_rounding(noise, unexplained, served, plain, replay.scales)
        as_served = _figures(replay, served, own)
    figures += as_served
    return _certify(bundle, replay, served, tested, figures, _undecided(bundle, replay, plain, figures))


def _undecided(
    bundle: Bundle, replay: Replay, plain: Session, figures: Sequence[Figure]
) -> dict[tuple[str, str], str]:
    """Cases and outputs whose numbers prove nothing, with the reason; looked for only where some differ."""
    asked = only_numbers_differ(replay, figures)
    if not asked:
        return {}
    model, weights = bundle.model_bytes(), bundle.external_data()
    moved = _with_moved_weights(model, weights)
    rounded = by_rounding(replay, asked, plain, moved)
    ordered = still_proven(by_order(asked, model, weights), replay.probes)
    return dict.fromkeys(ordered, REASONS["order"]) | dict.fromkeys(rounded, REASONS["rounding"])


def _figures(replay: Replay, session: Session, noise: Noise) -> list[Figure]:
    return [figure for probe in replay.probes for figure in replay.figures(probe, session, noise)]


def _unexplained(replay: Replay, figures: Sequence[Figure]) -> list[Probe]:
    """Cases of one repeated value in which only the optimised session is off by more than the plain one rounds.

    Only these are measured again. What the plain session gets wrong is the graph's own fault, and no rounding of
    another's excuses it.
    """
    failing = {(figure.case, figure.optimized) for figure in figures if (figure.noise_error or 0.0) > 1.0}
    off = {case for case, optimized in failing if optimized and (case, False) not in failing}
    return [probe for probe in replay.probes if probe.case in off and of_one_value(probe)]


def _with_moved_weights(model: bytes, external_data: Mapping[str, bytes]) -> Session | None:
    moved = nudge_weights(model, external_data)
    if moved is None:
        return None
    return open_session(moved[0], external_data=moved[1], optimize=False, intra_op_threads=1)


def _certify(
    bundle: Bundle,
    replay: Replay,
    session: Session,
    tested: SelfTest,
    figures: Sequence[Figure],
    undecided: Mapping[tuple[str, str], str],
) -> Certificate:
    dynamic = replay.signature.dynamic_dims()
    trace_dims = {dim: size for dim, size in bundle.trace_dims.items() if dim in dynamic}
    telling = [figure for figure in figures if (figure.case, figure.output) not in undecided]
    ruling = rule(_results(replay, telling), trace_dims)
    judged = tuple(replace(figure, counted=_is_counted(figure, ruling, undecided)) for figure in figures)
    verdict, reason = _verdict(replay, ruling, judged)
    return Certificate(
        bundle_digest=bundle.digest,
        model=bundle.name,
        framework=_framework(bundle),
        verdict=verdict,
        reason=reason,
        runtime=runtime_info(session),
        signature=replay.signature.with_dims({entry.dim: entry.size for entry in ruling.demoted}),
        trace_dims=trace_dims,
        proven_ranges=ruling.proven_ranges,
        demoted=(*bundle.demoted, *ruling.demoted),
        tolerances=replay.tolerance.to_json(),
        self_test=tested,
        figures=judged,
        omitted=tuple(bundle.manifest["probes"]["omitted"]),
        notes=(*bundle.manifest["notes"], *replay.notes, *_not_counted(undecided)),
    )


def _is_counted(figure: Figure, ruling: Ruling, undecided: Mapping[tuple[str, str], str]) -> bool:
    return figure.case not in ruling.excused and (figure.case, figure.output) not in undecided


def _not_counted(undecided: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for (case, output), reason in sorted(undecided.items()):
        yield f"output {output!r} differs at {case!r} and was not counted there: {reason}"


def _results(replay: Replay, figures: Sequence[Figure]) -> list[CaseResult]:
    """For each case of which anything counts, the gravest fault of all its figures."""
    results = []
    known = {figure.case for figure in figures}
    for probe in (probe for probe in replay.probes if probe.case in known):
        bad = [figure for figure in figures if figure.case == probe.case and figure.fault is not None]
        gravest = min(bad, key=lambda figure: _GRAVEST_FIRST.index(str(figure.fault)), default=None)
        fault = None if gravest is None else gravest.fault
        reason = "" if gravest is None else f"output {gravest.output!r}: {gravest.reason}"
        results.append(CaseResult(probe.case, probe.dims, fault, reason))
    return results


def _verdict(replay: Replay, ruling: Ruling, figures: Sequence[Figure]) -> tuple[Verdict, str]:
    """The verdict and one line for it."""
    counted = [figure for figure in figures if figure.counted]
    bad = [figure for figure in counted if figure.case in ruling.failing and figure.verdict == "fail"]
    if bad:
        raised = [figure for figure in bad if figure.case == BASE and figure.fault == "raised"]
        worst = max(bad, key=_badness)
        more = f"; {len(bad)} of {len(counted)} figures fail"
        reason = worst.describe() + _empty_rows(replay, worst) + more
        return ("error", raised[0].describe()) if raised else ("fail", reason)
    empty = never_finite(counted)
    if empty is not None:
        return "error", f"output {empty!r}: nothing finite was compared in any case"
    largest = max(counted, key=lambda figure: figure.max_abs_diff)
    outputs = len({figure.output for figure in counted})
    limits = "".join(f"; {entry.dim} is fixed at {entry.size}" for entry in ruling.demoted)
    share = shown_share(max(figure.share for figure in counted))
    reason = (
        f"{len(counted)} figures over {outputs} output{'s' * (outputs > 1)} agree, at most {share}, "
        f"max_abs_diff {largest.max_abs_diff:.3g} (output {largest.output!r}, case {largest.case!r}){limits}"
    )
    return "pass", reason


def _empty_rows(replay: Replay, figure: Figure) -> str:
    """Which inputs are all zero in the row that is NaN or infinite on one side: a mask may leave nothing of it."""
    if figure.worst is None or not figure.worst.index or not (figure.specials and figure.specials.differing):
        return ""
    probe = next(probe for probe in replay.probes if probe.case == figure.case)
    row, rows = figure.worst.index[0], probe.outputs[figure.output].shape[0]
    empty = [
        repr(name)
        for name, array in probe.inputs.items()
        if array.dtype.kind in "iub" and array.ndim > 1 and len(array) == rows and not array[row].any()
    ]
    return f"; row {row} of {' and '.join(empty)} is all 0 in this case" if empty else ""


def _badness(figure: Figure) -> tuple[bool, float, float]:
    """Numbers at the base case tell a reader most, so they come before larger errors in extreme cases."""
    return figure.case == BASE, figure.scaled_error, figure.noise_error or 0.0


def _unloadable(bundle: Bundle, replay: Replay, reason: str, version: str) -> Certificate:
    dynamic = replay.signature.dynamic_dims()
    trace_dims = {dim: size for dim, size in bundle.trace_dims.items() if dim in dynamic}
    unproven = tuple(
        DemotedDim(dim, size, "the model could not be loaded") for dim, size in trace_dims.items()
    )
    return Certificate(
        bundle_digest=bundle.digest,
        model=bundle.name,
        framework=_framework(bundle),
        verdict="error",
        reason=reason,
        runtime=RuntimeInfo("onnxruntime", version, CPU),
        signature=replay.signature.with_dims(trace_dims),
        trace_dims=trace_dims,
        proven_ranges={},
        demoted=(*bundle.demoted, *unproven),
        tolerances=replay.tolerance.to_json(),
        self_test=None,
        figures=(),
        omitted=tuple(bundle.manifest["probes"]["omitted"]),
        notes=(*bundle.manifest["notes"], *replay.notes),
    )


def _framework(bundle: Bundle) -> str:
    framework = bundle.manifest["framework"]
    return f"{framework['name']} {framework['version']}".strip()
