"""Replaying the sealed probes of a bundle through a session: the ground that certificate and attestation share."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.errors import ModelRunError, ParityError
from paritygate.converter.graph.inspect import parse_model
from paritygate.converter.graph.precision import working_precision
from paritygate.converter.parity.compare import Context, compare_outputs
from paritygate.converter.parity.metrics import SMALLEST_SCALE, rmse
from paritygate.converter.parity.noise import Noise, Rounding
from paritygate.converter.parity.report import Figure, RuntimeInfo
from paritygate.converter.parity.scales import Scales, channel_axes, output_scales, steady_scales
from paritygate.converter.parity.tolerance import Tolerance, ToleranceConfig, rung_of
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec

BASE = "base"

_EVIDENT = 32.0
"""How much further than the measured rounding a float64 form may lie for the candidate to be a witness of it.
Nudges of weights and inputs show the order of what a cancellation inside a model does, and not its exact size."""


class Candidate(Protocol):
    """What is compared with the source: a session here, or a server elsewhere."""

    @property
    def optimized(self) -> bool:
        """Whether graph optimisations are on, as far as is known."""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """All outputs.

        Raises:
            ModelRunError: If it gives none.
        """


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
        coarse: By output, steady small channels that could not be held to their own size (`with_own_scales`).
    """

    signature: Signature
    probes: tuple[Probe, ...]
    weights: DType | None
    tolerance: ToleranceConfig
    scales: Scales
    doubted: Mapping[tuple[str, str], Array] = field(default_factory=dict)
    coarse: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
        scales = output_scales(bundle.signature, probes)
        believed, doubted = _part_float64(probes, weights, config, scales)
        return cls(bundle.signature, believed, weights, config, scales, doubted)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict should know, one sentence each."""
        small = tuple(
            f"channel {', '.join(map(str, channels[:3]))}{', ...' if len(channels) > 3 else ''} of output "
            f"{name!r} is below {SMALLEST_SCALE:g} of the whole output's size and moved by rounding; it was held "
            f"to {SMALLEST_SCALE:g} of the whole and not to its own size"
            for name, channels in self.coarse.items()
        )
        return small + tuple(
            f"the float64 form of output {name!r} lies further from the source than rounding explains; it was not "
            "used"
            for name in sorted({output for _, output in self.doubted})
        )

    def with_own_scales(self, measure: Callable[[Scales], Noise]) -> Replay:
        """Hold steady small channels to their own size, where rounding is seen to leave them that exact.

        Args:
            measure: Gives the noise under given scales.
        """
        own = steady_scales(self.signature, self.probes, self.scales)
        if not own:
            return self
        noise = measure({**self.scales, **own})
        exact = {
            key: noise[key].peaks <= _row(self._probe(key).outputs[key[1]], self.weights, self.tolerance).atol
            if key in noise
            else np.zeros(scale.shape, np.bool_)
            for key, scale in own.items()
        }
        chosen = {key: np.where(exact[key], scale, self.scales[key]) for key, scale in own.items()}
        return replace(self, scales={**self.scales, **chosen}, coarse=self._coarse(own, chosen))

    def _coarse(self, own: Scales, chosen: Scales) -> dict[str, tuple[int, ...]]:
        """By output, the channels that have not the size of their own that was wanted for them."""
        coarse = {}
        for spec in self.signature.outputs:
            axis = channel_axes(spec)[-1]
            channels = {
                int(index[axis])
                for case, name in own
                if name == spec.name and axis is not None
                for index in np.argwhere(own[case, name] < chosen[case, name])
            }
            if channels:
                coarse[spec.name] = tuple(sorted(channels))
        return coarse

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
            error, cap = rmse(wide, reference, scale), self.noise_cap(reference)
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

    def noise_cap(self, reference: Array) -> float:
        """Noise of an output like this one that is not believed any more, relative to its scale."""
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

    def figures(self, probe: Probe, session: Candidate, noise: Noise) -> list[Figure]:
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

    def _refused(self, probe: Probe, spec: TensorSpec, session: Candidate, fault: str, reason: str) -> Figure:
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
    scales: Scales,
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


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
