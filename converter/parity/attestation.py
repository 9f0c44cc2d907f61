"""Attestation: the sealed probes once more, on the host and in the session that will serve."""

from __future__ import annotations

import numpy as np

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ParityError
from paritygate.converter.parity.noise import Noise, Rounding
from paritygate.converter.parity.replay import Candidate, Replay, runtime_info
from paritygate.converter.parity.report import Attestation, Certificate, RuntimeInfo
from paritygate.converter.runtime.onnxruntime import Session


def attest(bundle: Bundle, certificate: Certificate, session: Session) -> Attestation:
    """`attest_candidate` for a session in this process."""
    return attest_candidate(bundle, certificate, session, runtime_info(session))


def attest_candidate(
    bundle: Bundle, certificate: Certificate, session: Candidate, runtime: RuntimeInfo
) -> Attestation:
    """Run every case that the certificate counts through what is about to serve.

    Tolerances and noise are the certificate's: a session must not help to set the bound that it is held to.

    Args:
        bundle: The bundle whose bytes the session was opened with.
        certificate: A passing certificate for just this bundle.
        session: What will serve.
        runtime: What it says of itself.

    Returns:
        An attestation of any verdict; without `pass` the session must not serve.

    Raises:
        ParityError: If the certificate is not a passing one for this bundle.
        BundleCorrupt: If a probe is not the one that was sealed.
    """
    check_certificate(bundle, certificate)
    replay, noise = Replay.of(bundle, certificate.tolerance).with_noise(_proven_noise(certificate))
    counted = {(figure.case, figure.output) for figure in certificate.figures if figure.counted}
    probes = [probe for probe in replay.probes if probe.case in {case for case, _ in counted}]
    asked = [figure for probe in probes for figure in replay.figures(probe, session, noise)]
    # An output that only this host gives is in no certificate, and a fault.
    known = {spec.name for spec in bundle.signature.outputs}
    figures = tuple(f for f in asked if (f.case, f.output) in counted or f.output not in known)
    if not figures:
        raise ParityError(f"no case of bundle {bundle.name!r} is left to attest; it is not proven.")
    bad = [figure for figure in figures if figure.verdict != "pass"]
    raised = [figure for figure in bad if figure.fault == "raised"]
    worst = max(bad, key=lambda figure: figure.scaled_error, default=None)
    return Attestation(
        bundle_digest=bundle.digest,
        certificate_sha256=certificate.sha256,
        verdict="error" if raised else "fail" if bad else "pass",
        reason=worst.describe() if worst else f"{len(figures)} figures agree with the source on this host",
        runtime=runtime,
        figures=figures,
    )


def _proven_noise(certificate: Certificate) -> Noise:
    """What the validator held its optimised session to, which is the one that serves."""
    return {
        (figure.case, figure.output): Rounding(figure.noise, np.asarray(figure.peak_noise or 0.0))
        for figure in certificate.figures
        if figure.noise is not None and figure.optimized
    }


def check_certificate(bundle: Bundle, certificate: Certificate) -> None:
    """Accept a passing certificate for just this bundle.

    Raises:
        ParityError: If it speaks of other bytes or did not pass.
    """
    if certificate.bundle_digest != bundle.digest:
        raise ParityError(
            f"the certificate speaks of bundle {certificate.bundle_digest}, this one is {bundle.digest}: "
            "the bundle was changed after validation. Validate it again."
        )
    if certificate.verdict != "pass":
        raise ParityError(f"the certificate's verdict is {certificate.verdict}: {certificate.reason}")
