"""Replaying the sealed probes of a bundle through a session: the ground that certificate and attestation share."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.errors import ModelRunError, ParityError
from paritygate.converter.graph.inspect import parse_model
from paritygate.converter.graph.precision import working_precision
from paritygate.converter.parity.compare import Context, compare_outputs
from paritygate.converter.parity.feeds import EXTREMES
from paritygate.converter.parity.likeness import LIKE_EXAMPLE
from paritygate.converter.parity.metrics import channel_scale, rmse
from paritygate.converter.parity.noise import Noise, Rounding
from paritygate.converter.parity.report import Figure, RuntimeInfo
from paritygate.converter.parity.tolerance import Tolerance, ToleranceConfig, rung_of
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Signature, TensorSpec

BASE = "base"

_EVIDENT = 32.0
"""How much further than the measured rounding a float64 form may lie for the candidate to be a witness of it.
Nudges of weights and inputs show the order of what a cancellation inside a model does, and not its exact size."""


@dataclass(frozen=True)
class Replay:
    """The sealed probes with all that a comparison needs beside the candidate's answers.

    Attributes:
        signature: What the bundle promises.
        probes: All sealed cases.
        weights: The model's working precision.
        tolerance: The tolerances in force.
        scales: Scale of each float output, by case and output.
        doubted: Float64 forms that lie further from the source's answer than a sound model rounds; no evidence
            unless the model is seen to round that much (`with_noise`).
    """

    signature: Signature
    probes: tuple[Probe, ...]
    weights: DType | None
    tolerance: ToleranceConfig
    scales: Mapping[tuple[str, str], Array]
    doubted: Mapping[tuple[str, str], Array] = field(default_factory=dict)

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
        believed, doubted = _part_float64(probes, weights, config, scales)
        return cls(bundle.signature, believed, weights, config, scales, doubted)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict should know, one sentence each."""
        return tuple(
            f"the float64 form of output {name!r} lies further from the source than rounding explains; it was not "
            "used"
            for name in sorted({output for _, output in self.doubted})
        )

    def with_noise(self, noise: Noise, witness: Session | None = None) -> tuple[Replay, Noise]:
        """Believe the doubted float64 forms of a model that is seen to be as ill-conditioned as they say.

        A sound model has such cases: layer normalisation of a constant sequence divides rounding errors by nearly
        nothing. What the source answers there is mostly rounding, and only the float64 form says what is right. It
        is believed where the measured noise explains it. Where rounding explains a good part of it, the candidate
        may be a witness: if it lies nearer to that form than the source does, two computations agree that the
        source rounded. In a well-conditioned model it is none, since its graph and the form may come of one
        trace and share a fault. The noise key's own factor and cap bound what is believed.

        Args:
            noise: What was measured without them, or what the certificate of the same bundle says.
            witness: The candidate, graph optimisations off; None to go by the noise alone.

        Returns:
            The replay with those forms among the evidence, and the noise with the source's part of it.
        """
        believed: Noise = {}
        for key, wide in self.doubted.items():
            reference, scale = self._probe(key).outputs[key[1]], self.scales[key]
            error, cap = rmse(wide, reference, scale), self._noise_cap(reference)
            told = noise[key].rms if key in noise else 0.0
            if witness is not None and error <= _EVIDENT * told and self._distance(key, witness) <= error:
                told = max(told, error)
            if error <= self._noise_factor(reference) * min(told, cap):
                peaks = noise[key].peaks if key in noise else np.zeros(())
                believed[key] = Rounding(max(told, error), peaks)
        probes = tuple(replace(probe, float64=self._forms(probe, believed)) for probe in self.probes)
        doubted = {key: wide for key, wide in self.doubted.items() if key not in believed}
        return replace(self, probes=probes, doubted=doubted), {**noise, **believed}

    def _distance(self, key: tuple[str, str], session: Session) -> float:
        """How far a session's answer lies from a doubted form, relative to scale; infinite if it has none."""
        output, wide = key[1], self.doubted[key]
        try:
            answer = session.run(self._probe(key).inputs, [output])[output]
        except ModelRunError:
            return math.inf
        return rmse(wide, answer, self.scales[key]) if answer.shape == wide.shape else math.inf

    def _forms(self, probe: Probe, believed: Noise) -> dict[str, Array] | None:
        more = {output: self.doubted[case, output] for case, output in believed if case == probe.case}
        return {**(probe.float64 or {}), **more} or None

    def _probe(self, key: tuple[str, str]) -> Probe:
        return next(probe for probe in self.probes if probe.case == key[0])

    def _noise_factor(self, reference: Array) -> float:
        return _row(reference, self.weights, self.tolerance).noise_factor

    def _noise_cap(self, reference: Array) -> float:
        return _noise_cap(reference, self.weights, self.tolerance)

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
                noise=None if (probe.case, name) not in noise else noise[probe.case, name].rms,
                peaks=np.zeros(()) if (probe.case, name) not in noise else noise[probe.case, name].peaks,
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


def _part_float64(
    probes: Sequence[Probe],
    weights: DType | None,
    config: ToleranceConfig,
    scales: Mapping[tuple[str, str], Array],
) -> tuple[tuple[Probe, ...], dict[tuple[str, str], Array]]:
    """Part the float64 forms that lie further from the source's own answer than rounding can bring them.

    Such a form is of another computation, or of an ill-conditioned model. It must neither excuse a wrong candidate
    nor condemn a right one; the source's own answer then stands alone.
    """

    def believed(probe: Probe, name: str, wide: Array) -> bool:
        reference = probe.outputs[name]
        return rmse(wide, reference, scales[probe.case, name]) <= _noise_cap(reference, weights, config)

    kept: list[Probe] = []
    doubted: dict[tuple[str, str], Array] = {}
    for probe in probes:
        forms = probe.float64 or {}
        good = {name: wide for name, wide in forms.items() if believed(probe, name, wide)}
        doubted |= {(probe.case, name): wide for name, wide in forms.items() if name not in good}
        kept.append(replace(probe, float64=good or None))
    return tuple(kept), doubted


def _noise_cap(reference: Array, weights: DType | None, config: ToleranceConfig) -> float:
    return _row(reference, weights, config).noise_cap


def _row(reference: Array, weights: DType | None, config: ToleranceConfig) -> Tolerance:
    return config.table[rung_of(DType.from_numpy(reference.dtype), weights, optimized=False)]


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
        axes = _channel_axes(spec)
        ordinary = [probe for probe in probes if not probe.case.startswith(EXTREMES)]
        scale = {
            like: _scale([p.outputs[spec.name] for p in ordinary if _is_like(p) is like], axes)
            for like in {_is_like(p) for p in ordinary}
        }
        for probe in probes:
            pooled = scale[_is_like(probe)]
            own = _scale([probe.outputs[spec.name]], axes)
            nothing = not np.any(
                np.nan_to_num(probe.outputs[spec.name].astype(np.float64), posinf=0.0, neginf=0.0)
            )
            scales[probe.case, spec.name] = pooled if nothing else np.maximum(pooled, own)
    return scales


def _is_like(probe: Probe) -> bool:
    """Whether a case lies on the scale of the user's example."""
    return probe.case.startswith(LIKE_EXAMPLE)


def _scale(arrays: Sequence[Array], axes: Sequence[int | None]) -> Array:
    """The smallest of the scales along several axes."""
    return functools.reduce(np.minimum, (channel_scale(arrays, axis) for axis in axes))


def _channel_axes(spec: TensorSpec) -> tuple[int | None, ...]:
    """The last axis of fixed size that is not the first: what stands there means the same in every case.

    Images have their channels last or right after the batch, and nothing tells which; both are taken then, so that
    no channel hides behind a larger one.
    """
    fixed = [axis for axis, dim in enumerate(spec.shape) if axis > 0 and isinstance(dim, int)]
    if len(spec.shape) > 3 and 1 in fixed:
        return (1,) if fixed[-1] == 1 else (1, fixed[-1])
    return (fixed[-1],) if fixed else (None,)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
