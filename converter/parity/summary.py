"""A certificate on one page, for people."""

from __future__ import annotations

from collections.abc import Iterator

from paritygate.converter.parity.report import Certificate, Figure

MAX_OUTPUTS = 20
"""Outputs listed one by one; the worst come first and the rest are counted, so that the page stays one."""

MAX_LINES = 6
"""Entries of each other list."""

_VERDICTS = {
    "pass": "PASS: the ONNX model computes what the source computes",
    "fail": "FAIL: the ONNX model computes something else",
    "error": "ERROR: the model could not be run, nothing is proven",
}


def render_summary(certificate: Certificate) -> str:
    """The summary's text; at most about sixty lines."""
    return "\n".join(_lines(certificate)) + "\n"


def _lines(certificate: Certificate) -> Iterator[str]:
    runtime = certificate.runtime
    yield f"{_VERDICTS[certificate.verdict]}"
    yield ""
    yield f"  model      {certificate.model} ({certificate.framework})"
    yield f"  bundle     {certificate.bundle_digest}"
    yield f"  runtime    {runtime.name} {runtime.version}, {runtime.provider}, {runtime.system}"
    yield f"  signature  {certificate.signature}"
    yield f"  reason     {certificate.reason}"
    yield from _dims(certificate)
    yield from _figures(certificate)
    yield from _self_test(certificate)
    if not certificate.tolerances.get("default", True):
        yield "  tolerances were changed from the table; the certificate lists those in force"
    omitted = [f"{entry['case']}: {entry['reason']}" for entry in certificate.omitted]
    yield from _listed("not asked", omitted)
    yield from _listed("notes", certificate.notes)


def _dims(certificate: Certificate) -> Iterator[str]:
    for dim, sizes in certificate.proven_ranges.items():
        yield f"  proven     {dim} at {', '.join(map(str, sizes))}"
    for entry in certificate.demoted:
        yield f"  demoted    {entry.dim} is fixed at {entry.size}: {entry.reason}"


def _figures(certificate: Certificate) -> Iterator[str]:
    counted = [figure for figure in certificate.figures if figure.counted]
    worst = _worst_by_output(counted)
    if not worst:
        return
    largest = _largest_diff_by_output(counted)
    yield ""
    titles = f"{'output':<24} {'optimizer':<9} {'rung':<17} {'max_abs_diff':>12} {'of allowed':>10}"
    yield f"  {titles}  nearest its bound"
    for figure in worst[:MAX_OUTPUTS]:
        mode = "on" if figure.optimized else "off"
        diff = largest[figure.output, figure.optimized]
        name = figure.output if len(figure.output) <= 24 else figure.output[:21] + "..."
        place = "" if figure.worst is None else f" at [{', '.join(map(str, figure.worst.index))}]"
        yield (
            f"  {name:<24} {mode:<9} {figure.rung:<17} {diff:>12.4g} {figure.share:>9.3g}x  {figure.case}{place}"
        )
    if len(worst) > MAX_OUTPUTS:
        yield f"  ... and {len(worst) - MAX_OUTPUTS} more, all better than these"
    demoted = len(certificate.figures) - len(counted)
    yield f"  {len(counted)} figures count, {demoted} belong to demoted dims"


def _worst_by_output(figures: list[Figure]) -> list[Figure]:
    """For each output and session its worst figure, failing ones and large errors first."""

    def badness(figure: Figure) -> tuple[bool, float]:
        return figure.verdict != "pass", figure.share

    worst: dict[tuple[str, bool], Figure] = {}
    for figure in figures:
        key = (figure.output, figure.optimized)
        if key not in worst or badness(figure) > badness(worst[key]):
            worst[key] = figure
    return sorted(worst.values(), key=badness, reverse=True)


def _largest_diff_by_output(figures: list[Figure]) -> dict[tuple[str, bool], float | int]:
    """For each output and session the largest absolute difference of all its cases.

    The case that comes nearest its bound is often another one: large values may lie off by more.
    """
    largest: dict[tuple[str, bool], float | int] = {}
    for figure in figures:
        key = (figure.output, figure.optimized)
        largest[key] = max(largest.get(key, 0), figure.max_abs_diff)
    return largest


def _self_test(certificate: Certificate) -> Iterator[str]:
    test = certificate.self_test
    if test is not None:
        yield (
            f"  comparator: source against itself {test.itself_max_abs_diff:g} on {test.outputs} outputs, "
            f"{test.caught} of {test.perturbations} wrong copies caught"
        )


def _listed(title: str, entries: tuple[str, ...] | list[str]) -> Iterator[str]:
    for entry in entries[:MAX_LINES]:
        yield f"  {title}: {entry}"
    if len(entries) > MAX_LINES:
        yield f"  {title}: ... and {len(entries) - MAX_LINES} more"
