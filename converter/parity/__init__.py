"""Proof that an exported model computes the numbers of its source.

Names are resolved on first use: the exporter half needs `feeds` only and must import without onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paritygate.converter.parity.attestation import attest, attest_candidate, check_certificate
    from paritygate.converter.parity.compare import compare_outputs
    from paritygate.converter.parity.evidence import write_evidence
    from paritygate.converter.parity.report import Attestation, Certificate, Figure
    from paritygate.converter.parity.tolerance import ToleranceConfig
    from paritygate.converter.parity.validate import validate_bundle

_MODULES = {
    "Attestation": "report",
    "Certificate": "report",
    "Figure": "report",
    "ToleranceConfig": "tolerance",
    "attest": "attestation",
    "attest_candidate": "attestation",
    "check_certificate": "attestation",
    "compare_outputs": "compare",
    "validate_bundle": "validate",
    "write_evidence": "evidence",
}

__all__ = [
    "Attestation",
    "Certificate",
    "Figure",
    "ToleranceConfig",
    "attest",
    "attest_candidate",
    "check_certificate",
    "compare_outputs",
    "validate_bundle",
    "write_evidence",
]


def __getattr__(name: str) -> Any:
    from pkgutil import resolve_name

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(f"{__name__}.{_MODULES[name]}:{name}")
