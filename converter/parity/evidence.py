"""Writing a certificate beside the bundle that it speaks of."""

from __future__ import annotations

from pathlib import Path

from paritygate.converter._atomic import flush_directory, replace_file
from paritygate.converter.bundle import CERTIFICATE_FILE, EVIDENCE_DIR, SUMMARY_FILE, Bundle
from paritygate.converter.errors import BundleError, ParityError
from paritygate.converter.parity.report import Certificate


def write_evidence(bundle: Bundle, certificate: Certificate) -> Path:
    """Write the certificate and its summary into `evidence/`, each in one step; a failing one too.

    Returns:
        The certificate's path.

    Raises:
        ParityError: If the certificate speaks of another bundle.
        BundleError: If the disk refuses.
    """
    if certificate.bundle_digest != bundle.digest:
        raise ParityError(
            f"the certificate speaks of bundle {certificate.bundle_digest}, this one is {bundle.digest}. "
            "Validate this bundle."
        )
    folder = bundle.path / EVIDENCE_DIR
    try:
        folder.mkdir(exist_ok=True)
        replace_file(bundle.path / SUMMARY_FILE, certificate.summary().encode("utf-8"))
        replace_file(bundle.path / CERTIFICATE_FILE, certificate.to_bytes())
        flush_directory(bundle.path)
    except OSError as error:
        raise BundleError(f"cannot write the evidence to {folder}: {error.strerror or error}.") from error
    return bundle.path / CERTIFICATE_FILE
