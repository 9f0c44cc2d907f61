"""What a comparison found, as documents: figures, the certificate that gates publishing, a host's attestation.

All are frozen, go to JSON and back without loss, and are checked against the schemas in `converter/schemas`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from paritygate.converter import _json
from paritygate.converter.parity.metrics import Specials
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.schemas import check
from paritygate.converter.types import DemotedDim, Signature

CERTIFICATE_SCHEMA = "paritygate.certificate/v1"
ATTESTATION_SCHEMA = "paritygate.attestation/v1"

Verdict: TypeAlias = Literal["pass", "fail", "error"]
"""`pass`: proven. `fail`: something else was computed. `error`: it could not be run, so nothing is proven."""


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off.

    Attributes:
        index: Its place in the output; empty for a 0-d output.
        reference: The source's value, as text without loss.
        candidate: The exported model's value, as text without loss.
    """

    index: tuple[int, ...]
    reference: str
    candidate: str


@dataclass(frozen=True)
class Figure:
    """How one output of one case compared under one session.

    Attributes:
        output: Its name.
        case: The probe's case.
        optimized: Whether graph optimisations were on.
        rung: The row of the tolerance table, or `exact`.
        verdict: `pass` or `fail`.
        fault: Why it fails: `form` (missing, unknown or of another dtype), `shape`, `numbers`, or `raised` (the
            candidate did not run); None if it passes.
        reason: The same in words.
        elements: Number of values.
        mismatches: Values beyond their bound.
        max_abs_diff: Largest absolute difference; an int for whole numbers and bools.
        max_rel_diff: Largest difference relative to the source's value.
        scaled_error: Largest difference as a multiple of what is allowed.
        rmse: Root mean square difference; None unless floats were compared.
        noise: The model's own rounding noise, relative to the output's scale; None if not measured.
        peak_noise: The most that rounding moves one element, relative to its scale; None if not measured.
        noise_error: The root mean square error as a multiple of what noise explains; None if not measured.
        specials: Counts of NaN and infinities; None unless floats were compared.
        worst: The element that is furthest off; None if there is none.
        counted: False if the verdict does not rest on this figure: its dim was demoted, or its numbers prove
            nothing (`undecided`).
    """

    output: str
    case: str
    optimized: bool
    rung: str
    verdict: Verdict
    fault: str | None
    reason: str | None
    elements: int
    mismatches: int
    max_abs_diff: float | int
    max_rel_diff: float
    scaled_error: float
    rmse: float | None = None
    noise: float | None = None
    peak_noise: float | None = None
    noise_error: float | None = None
    specials: Specials | None = None
    worst: Worst | None = None
    counted: bool = True

    @property
    def share(self) -> float:
        """The part of what is allowed that was used, by one element or over all, whichever is more; 1 is all."""
        return max(self.scaled_error, self.noise_error or 0.0)

    @property
    def finite(self) -> int:
        """How many elements of the source's output were numbers, neither NaN nor infinite."""
        if self.specials is None:
            return self.elements
        counts = (self.specials.nan, self.specials.positive_infinity, self.specials.negative_infinity)
        return self.elements - sum(reference for reference, _ in counts)

    def to_json(self) -> dict[str, Any]:
        """This figure as plain JSON values; NaN and infinities as text, which JSON has no numbers for."""
        value = {name: _number(entry) for name, entry in vars(self).items()}
        return value | {
            "specials": None if self.specials is None else _lists(asdict(self.specials)),
            "worst": None if self.worst is None else _lists(asdict(self.worst)),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Figure:
        """Build a figure from what `to_json` gave."""
        plain = {name: _from_number(entry) if name in _NUMBERS else entry for name, entry in value.items()}
        if value["specials"] is not None:
            plain["specials"] = Specials(**_tuples(value["specials"]))
        if value["worst"] is not None:
            plain["worst"] = Worst(**_tuples(value["worst"]))
        return cls(**plain)

    def describe(self) -> str:
        """One sentence with output, figure, place and case."""
        where = f"case {self.case!r}, optimizer {'on' if self.optimized else 'off'}"
        if self.worst is None or self.fault != "numbers":
            return f"output {self.output!r}: {self.reason or 'agrees'} ({where})"
        place = f"[{', '.join(map(str, self.worst.index))}]"
        return (
            f"output {self.output!r}: max_abs_diff {self.max_abs_diff:.6g} at {place} "
            f"(source {self.worst.reference}, ONNX {self.worst.candidate}); {self.reason or 'agrees'} ({where})"
        )


def shown_share(share: float) -> str:
    """A share of what is allowed in words, such as `1.3 % of what is allowed`."""
    return f"{100 * share:.2g} % of what is allowed" if share < 10 else f"{share:.3g} times what is allowed"


def never_finite(figures: Iterable[Figure]) -> str | None:
    """The first output whose source gave elements, and not one finite number among all of them; None without.

    NaN on both sides is no distance, so such an output agrees with any graph that divides by zero.
    """
    elements: dict[str, int] = {}
    finite: dict[str, int] = {}
    for figure in figures:
        elements[figure.output] = elements.get(figure.output, 0) + figure.elements
        finite[figure.output] = finite.get(figure.output, 0) + figure.finite
    return next((output for output, count in elements.items() if count and not finite[output]), None)


@dataclass(frozen=True)
class RuntimeInfo:
    """What ran the model.

    Attributes:
        name: `onnxruntime`.
        version: Its version.
        provider: The execution provider that really ran it.
        cpu: The processor's name, or an empty string.
        system: Operating system and architecture.
    """

    name: str
    version: str
    provider: str
    cpu: str = ""
    system: str = ""

    def to_json(self) -> dict[str, str]:
        """This as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RuntimeInfo:
        """Build it from what `to_json` gave."""
        return cls(**value)


@dataclass(frozen=True)
class SelfTest:
    """What the comparator proved of itself, with this bundle's own outputs, in this run.

    Attributes:
        outputs: Outputs it was tried on.
        itself_max_abs_diff: The source against itself; must be 0.
        perturbations: Wrong copies shown to it: a moved value, a NaN, another dtype, another shape.
        caught: How many of them it failed; must be all.
    """

    outputs: int
    itself_max_abs_diff: float
    perturbations: int
    caught: int

    @property
    def ok(self) -> bool:
        """Whether the comparator can be trusted."""
        return self.outputs > 0 and self.itself_max_abs_diff == 0 and 0 < self.perturbations == self.caught


@dataclass(frozen=True)
class Certificate:
    """One immutable statement about one bundle digest on the reference runtime.

    Attributes:
        bundle_digest: The bundle it speaks of.
        model: The model's name.
        framework: The source framework and its version.
        verdict: `pass`, `fail` or `error`.
        reason: One line; names output and figure if it fails.
        runtime: What ran the candidate.
        signature: The PROVEN signature: the bundle's, with demoted dims fixed.
        trace_dims: The size of each dynamic dim at tracing.
        proven_ranges: The sizes at which each remaining dynamic dim was proven.
        demoted: Dims that hold for one size only, the exporter's and those that the sweep found.
        tolerances: The tolerances in force.
        self_test: What the comparator proved of itself; None if it was not reached.
        figures: One for every output, case and session.
        omitted: Planned cases that were not asked, and why.
        notes: Anything a reader should know.
    """

    bundle_digest: str
    model: str
    framework: str
    verdict: Verdict
    reason: str
    runtime: RuntimeInfo
    signature: Signature
    trace_dims: Mapping[str, int]
    proven_ranges: Mapping[str, tuple[int, ...]]
    demoted: tuple[DemotedDim, ...]
    tolerances: Mapping[str, Any]
    self_test: SelfTest | None
    figures: tuple[Figure, ...]
    omitted: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def max_abs_diff(self) -> float | int:
        """Largest absolute difference over all figures that count; infinite if there is none."""
        return max((figure.max_abs_diff for figure in self.figures if figure.counted), default=math.inf)

    @property
    def share(self) -> float:
        """Largest share of what is allowed over all figures that count; infinite if there is none."""
        return max((figure.share for figure in self.figures if figure.counted), default=math.inf)

    @property
    def differences(self) -> str:
        """The largest absolute difference and the largest share of what is allowed, in a few words.

        They need not be of one case: large values may lie off by more.
        """
        return f"largest difference {self.max_abs_diff:.2e}, {shown_share(self.share)}"

    @property
    def tolerance(self) -> ToleranceConfig:
        """The tolerances in force, ready to compare with.

        Raises:
            ValueError: If they are no full table; never for a certificate that was read from a file.
        """
        return ToleranceConfig.from_json(self.tolerances)

    @property
    def loosened(self) -> tuple[str, ...]:
        """What this certificate allowed beyond our table; such a pass is not what others mean by proven."""
        return self.tolerance.loosened

    def to_json(self) -> dict[str, Any]:
        """This certificate as plain JSON values."""
        return {
            "schema": CERTIFICATE_SCHEMA,
            "bundle_digest": self.bundle_digest,
            "model": self.model,
            "framework": self.framework,
            "verdict": self.verdict,
            "reason": self.reason,
            "max_abs_diff": _number(self.max_abs_diff),
            "runtime": self.runtime.to_json(),
            "signature": self.signature.to_json(),
            "trace_dims": dict(self.trace_dims),
            "proven_ranges": {dim: list(sizes) for dim, sizes in self.proven_ranges.items()},
            "demoted": [entry.to_json() for entry in self.demoted],
            "tolerances": dict(self.tolerances),
            "self_test": None if self.self_test is None else asdict(self.self_test),
            "figures": [figure.to_json() for figure in self.figures],
            "omitted": [dict(entry) for entry in self.omitted],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Certificate:
        """Build a certificate from what `to_json` gave.

        Raises:
            ValueError: If the value does not follow the schema, or its verdict contradicts its figures.
        """
        check(value, "certificate.v1")
        certificate = cls(
            bundle_digest=value["bundle_digest"],
            model=value["model"],
            framework=value["framework"],
            verdict=value["verdict"],
            reason=value["reason"],
            runtime=RuntimeInfo.from_json(value["runtime"]),
            signature=Signature.from_json(value["signature"]),
            trace_dims=dict(value["trace_dims"]),
            proven_ranges={dim: tuple(sizes) for dim, sizes in value["proven_ranges"].items()},
            demoted=tuple(DemotedDim.from_json(entry) for entry in value["demoted"]),
            tolerances=dict(value["tolerances"]),
            self_test=None if value["self_test"] is None else SelfTest(**value["self_test"]),
            figures=tuple(Figure.from_json(entry) for entry in value["figures"]),
            omitted=tuple(dict(entry) for entry in value["omitted"]),
            notes=tuple(value["notes"]),
        )
        certificate._check_consistent(value["max_abs_diff"])
        return certificate

    def to_bytes(self) -> bytes:
        """The canonical JSON file."""
        return _json.canonical(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Certificate:
        """Read what `to_bytes` gave.

        Raises:
            ValueError: If the bytes are not a certificate.
        """
        return cls.from_json(_json.parse(data))

    @property
    def sha256(self) -> str:
        """Hex digest of the canonical file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def summary(self) -> str:
        """One page for people."""
        from paritygate.converter.parity.summary import render_summary

        return render_summary(self)

    def _check_consistent(self, max_abs_diff: Any) -> None:
        """A pass must follow from what the document itself says."""
        if _from_number(max_abs_diff) != self.max_abs_diff:
            raise ValueError("max_abs_diff is not the largest of the figures @ $.max_abs_diff")
        try:
            self.tolerance  # noqa: B018 - it is built to be checked
        except ValueError as error:
            raise ValueError(f"{error} @ $.tolerances") from None
        if self.verdict != "pass":
            return
        counted = [figure for figure in self.figures if figure.counted]
        if not counted or any(figure.verdict != "pass" for figure in counted):
            raise ValueError("the verdict is pass, but the figures do not all pass @ $.verdict")
        empty = never_finite(counted)
        if empty is not None:
            raise ValueError(f"the verdict is pass, but output {empty!r} was never finite @ $.figures")
        if {figure.optimized for figure in counted} != {False, True}:
            raise ValueError("the verdict is pass, but only one of the two sessions was compared @ $.figures")
        if self.self_test is None or not self.self_test.ok:
            raise ValueError("the verdict is pass, but the comparator did not prove itself @ $.self_test")
        unproven = self.signature.dynamic_dims().keys() - self.proven_ranges.keys()
        if unproven:
            raise ValueError(f"the verdict is pass, but dim {min(unproven)!r} was not proven @ $.signature")


@dataclass(frozen=True)
class Attestation:
    """The sealed probes, run again on the host that serves.

    Attributes:
        bundle_digest: The bundle it speaks of.
        certificate_sha256: Digest of the certificate it confirms.
        verdict: `pass`, `fail` or `error`.
        reason: One line.
        runtime: What ran the model here: version, provider, processor.
        figures: One for every output and case.
    """

    bundle_digest: str
    certificate_sha256: str
    verdict: Verdict
    reason: str
    runtime: RuntimeInfo
    figures: tuple[Figure, ...]

    @property
    def max_abs_diff(self) -> float | int:
        """Largest absolute difference over all figures; infinite if there is none."""
        return max((figure.max_abs_diff for figure in self.figures), default=math.inf)

    def to_json(self) -> dict[str, Any]:
        """This attestation as plain JSON values."""
        return {
            "schema": ATTESTATION_SCHEMA,
            "bundle_digest": self.bundle_digest,
            "certificate_sha256": self.certificate_sha256,
            "verdict": self.verdict,
            "reason": self.reason,
            "max_abs_diff": _number(self.max_abs_diff),
            "runtime": self.runtime.to_json(),
            "figures": [figure.to_json() for figure in self.figures],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Attestation:
        """Build an attestation from what `to_json` gave.

        Raises:
            ValueError: If the value does not follow the schema.
        """
        check(value, "attestation.v1")
        return cls(
            bundle_digest=value["bundle_digest"],
            certificate_sha256=value["certificate_sha256"],
            verdict=value["verdict"],
            reason=value["reason"],
            runtime=RuntimeInfo.from_json(value["runtime"]),
            figures=tuple(Figure.from_json(entry) for entry in value["figures"]),
        )


_NUMBERS = {"max_abs_diff", "max_rel_diff", "scaled_error", "rmse", "noise", "peak_noise", "noise_error"}
_SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _from_number(value: Any) -> Any:
    return _SPELLED[value] if isinstance(value, str) else value


def _lists(value: dict[str, Any]) -> dict[str, Any]:
    return {name: list(entry) if isinstance(entry, tuple) else entry for name, entry in value.items()}


def _tuples(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()}
