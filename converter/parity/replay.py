"""Replaying the sealed probes of a bundle through a session: the ground that certificate and attestation share."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.errors import ModelRunError, ParityError
from paritygate.converter.graph.inspect import parse_model
from paritygate.converter.graph.precision import working_precision
from paritygate.converter.parity.compare import Context, compare_outputs
from paritygate.converter.parity.likeness import LIKE_EXAMPLE
from paritygate.converter.parity.metrics import channel_scale, rmse
from paritygate.converter.parity.noise import Noise
from paritygate.converter.parity.report import Figure, RuntimeInfo
from paritygate.converter.parity.tolerance import ToleranceConfig, rung_of
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Signature, TensorSpec

BASE = "base"


@dataclass(frozen=True)
class Replay:
    """The sealed probes with all that a comparison needs beside the candidate's answers.

    Attributes:
        signature: What the bundle promises.
        probes: All sealed cases.
        weights: The model's working precision.
        tolerance: The tolerances in force.
        scales: Scale of each float output, by case and output.
        notes: What a reader of the verdict should know, one sentence each.
    """

    signature: Signature
    probes: tuple[Probe, ...]
    weights: DType | None
    tolerance: ToleranceConfig
    scales: Mapping[tuple[str, str], Array]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, bundle: Bundle, tolerance: ToleranceConfig | None = None) -> Replay:
        """Read a bundle's probes.

        Raises:
            ParityError: If there are none, or none at the trace sizes: nothing could be proven.
            BundleCorrupt: If a file is not the one that was sealed.
            ModelInvalid: If the model cannot be parsed.
        """
        probes = tuple(bundle.probes())
        _check_base(bundle, probes)
        weights = working_precision(parse_model(bundle.model_bytes()))
        config = tolerance or ToleranceConfig()
        scales = _scales(bundle.signature, probes)
        believed, notes = _believe_float64(probes, weights, config, scales)
        return cls(bundle.signature, believed, weights, config, scales, notes)

    @property
    def base(self) -> Probe:
        """The case at the trace sizes."""
        return next(probe for probe in self.probes if probe.case == BASE)

    def contexts(self, probe: Probe, noise: Noise) -> dict[str, Context]:
        """Scale, noise and float64 form of each output of one case."""
        wide = probe.float64 or {}
        return {
            name: Context(
                scale=self.scales.get((probe.case, name), np.ones(())),
                noise=noise.get((probe.case, name)),
                float64=wide.get(name),
            )
            for name in probe.outputs
        }

    def figures(self, probe: Probe, session: Session, noise: Noise) -> list[Figure]:
        """Run one case and compare every output; a candidate that raises gives figures too."""
        broken = self._broken_promises(probe)
        try:
            candidate = session.run(probe.inputs)
        except ModelRunError as error:
            return [
                self._refused(probe, spec, session, "raised", str(error)) for spec in self.signature.outputs
            ]
        compared = compare_outputs(
            probe.outputs,
            candidate,
            tolerance=self.tolerance,
            weights=self.weights,
            optimized=session.optimized,
            contexts=self.contexts(probe, noise),
            case=probe.case,
        )
        return [_break(figure, broken.get(figure.output)) for figure in compared]

    def _broken_promises(self, probe: Probe) -> dict[str, str]:
        """Outputs of the source itself that do not have the shape that the signature promises for this case."""
        broken = {}
        for spec in self.signature.outputs:
            found = list(probe.outputs[spec.name].shape)
            # A dim that no input has (a number of boxes found) is free; all others are fixed by the case.
            promised = [
                probe.dims.get(dim, size) if isinstance(dim, str) else dim
                for dim, size in zip(spec.shape, found, strict=True)
            ]
            if promised != found:
                broken[spec.name] = f"the source gives shape {found}, the signature promises {promised}"
        return broken

    def _refused(self, probe: Probe, spec: TensorSpec, session: Session, fault: str, reason: str) -> Figure:
        elements = probe.outputs[spec.name].size
        infinite = float("inf")
        return Figure(
            output=spec.name,
            case=probe.case,
            optimized=session.optimized,
            rung=rung_of(spec.dtype, self.weights, optimized=session.optimized),
            verdict="fail",
            fault=fault,
            reason=reason,
            elements=elements,
            mismatches=elements,
            max_abs_diff=infinite,
            max_rel_diff=infinite,
            scaled_error=infinite,
        )


def runtime_info(session: Session) -> RuntimeInfo:
    """What runs this session, on which machine."""
    return RuntimeInfo(
        name="onnxruntime",
        version=session.runtime_version,
        provider=session.providers[0],
        cpu=_cpu_name(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _break(figure: Figure, reason: str | None) -> Figure:
    if reason is None or figure.verdict == "fail":
        return figure
    return replace(figure, verdict="fail", fault="shape", reason=reason)


def _check_base(bundle: Bundle, probes: Sequence[Probe]) -> None:
    if not probes:
        raise ParityError(
            f"bundle {bundle.name!r} carries no probes, so it is not proven: there is nothing to compare with. "
            "Export it again from the source, with a larger probe budget if probes were left out."
        )
    dynamic = bundle.signature.dynamic_dims()
    traced = {dim: size for dim, size in bundle.trace_dims.items() if dim in dynamic}
    base = [probe for probe in probes if probe.case == BASE]
    if len(base) != 1 or dict(base[0].dims) != traced or len({probe.case for probe in probes}) != len(probes):
        raise ParityError(
            f"bundle {bundle.name!r} has not exactly one probe {BASE!r} at the trace sizes {traced}, or names a "
            "case twice, so it is not proven. Export it again."
        )


def _believe_float64(
    probes: Sequence[Probe],
    weights: DType | None,
    config: ToleranceConfig,
    scales: Mapping[tuple[str, str], Array],
) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    """Leave out float64 forms that lie further from the source's own answer than rounding can bring them.

    Such a form is of another computation, or of a model so ill-conditioned that it arbitrates nothing. It must
    neither excuse a wrong candidate nor condemn a right one; the source's own answer then stands alone.
    """

    def believed(probe: Probe, name: str, wide: Array) -> bool:
        reference = probe.outputs[name]
        rung = rung_of(DType.from_numpy(reference.dtype), weights, optimized=False)
        return rmse(wide, reference, scales[probe.case, name]) <= config.table[rung].noise_cap

    kept: list[Probe] = []
    dropped: set[str] = set()
    for probe in probes:
        good = {name: wide for name, wide in (probe.float64 or {}).items() if believed(probe, name, wide)}
        dropped |= (probe.float64 or {}).keys() - good.keys()
        kept.append(replace(probe, float64=good or None))
    notes = tuple(
        f"the float64 form of output {name!r} lies further from the source than rounding explains; it was not used"
        for name in sorted(dropped)
    )
    return tuple(kept), notes


def _scales(signature: Signature, probes: Sequence[Probe]) -> dict[tuple[str, str], Array]:
    """Scale of each float output: that of all ordinary cases together, and the case's own where that is larger.

    Extremes do not set the scale of others: answers to large inputs would loosen what is asked of ordinary ones.
    Cases on the scale of the user's example and those of a standard normal are held to a scale each, as either
    may give answers far larger than the other.
    """
    scales = {}
    for spec in signature.outputs:
        if not spec.dtype.is_floating:
            continue
        axis = _channel_axis(spec)
        ordinary = [probe for probe in probes if not probe.case.startswith("extreme:")]
        scale = {
            like: channel_scale([p.outputs[spec.name] for p in ordinary if _is_like(p) is like], axis)
            for like in {_is_like(p) for p in ordinary}
        }
        for probe in probes:
            pooled = scale[_is_like(probe)]
            own = channel_scale([probe.outputs[spec.name]], axis)
            nothing = not np.any(
                np.nan_to_num(probe.outputs[spec.name].astype(np.float64), posinf=0.0, neginf=0.0)
            )
            scales[probe.case, spec.name] = pooled if nothing else np.maximum(pooled, own)
    return scales


def _is_like(probe: Probe) -> bool:
    """Whether a case lies on the scale of the user's example."""
    return probe.case.startswith(LIKE_EXAMPLE)


def _channel_axis(spec: TensorSpec) -> int | None:
    """The last axis of fixed size that is not the first: what stands there means the same in every case."""
    fixed = [axis for axis, dim in enumerate(spec.shape) if axis > 0 and isinstance(dim, int)]
    return fixed[-1] if fixed else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
