"""One version from the repository's bytes to a backend that may answer: verify, open, attest, check.

The order is the point. A bundle's bytes are read once and verified while they are read; the session is opened on
those bytes and not on the path; the sealed probes run through that session before anyone else does. So what was
proven is what is served, whatever happens to the files in between (docs/architecture.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.bundle import MANIFEST_FILE, MODEL_FILE, Bundle, read_bundle
from paritygate.converter.errors import ConverterError
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.types import Signature
from paritygate.serving.backends import BACKENDS, get_backend
from paritygate.serving.backends.base import Backend, EmbeddedBackend, ModelSource
from paritygate.serving.errors import LoadFailed
from paritygate.serving.publish.errors import PublishError
from paritygate.serving.publish.triton_config import ConfigTensor, ModelConfig, check_config_against_graph
from paritygate.serving.types import Provenance
from paritygate.serving.upstreams.backend import NoUpstreamReady, Site
from paritygate.serving.validation import ModelRules, build_rules

_MAX_LABEL_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class LoadRequest:
    """What is to be loaded, and how.

    Attributes:
        model_dir: The model's folder in the repository.
        model: The model's name.
        version: The version's number.
        config: The model's config.
        allow_unproven: Whether a version without a certificate for its bytes, by our tolerances, may be served.
        intra_op_threads: Threads inside one run.
        site: Where it is computed; None if that is here.
    """

    model_dir: Path
    model: str
    version: int
    config: ModelConfig
    allow_unproven: bool
    intra_op_threads: int
    site: Site | None = None

    @property
    def directory(self) -> Path:
        """The version's folder."""
        return self.model_dir / str(self.version)


@dataclass(frozen=True)
class LoadedVersion:
    """A version that is ready to answer."""

    backend: Backend
    rules: ModelRules
    provenance: Provenance
    attestation: Attestation | None


def load_version(request: LoadRequest) -> LoadedVersion:
    """Load one version; slow, so not for the event loop.

    Raises:
        LoadFailed: With one sentence that names the model and the version, and why it is not served.
    """
    try:
        return _load(request) if request.site is None else _load_from(request, request.site)
    except (ConverterError, PublishError, LoadFailed, OSError) as error:
        kind = NoUpstreamReady if isinstance(error, NoUpstreamReady) else LoadFailed
        raise kind(f"version {request.version} of model '{request.model}' is not served: {error}") from error


def _load(request: LoadRequest) -> LoadedVersion:
    check_supported(request.config)
    labels = _read_labels(request)
    bundle = read_bundle(request.directory, verify=True) if _is_bundle(request.directory) else None
    certificate = _certificate(request, bundle)
    backend = _open(request, bundle)
    try:
        attestation = _attest(request, bundle, certificate, backend)
        signature = _served_signature(request, certificate, backend.signature)
        rules = build_rules(request.config, signature, model=request.model, labels=labels)
    except BaseException:
        backend.close()
        raise
    return LoadedVersion(backend, rules, _provenance(bundle, certificate), attestation)


def _load_from(request: LoadRequest, site: Site) -> LoadedVersion:
    """A version that upstreams compute: its files say what it takes and what was proven, not what answers."""
    check_supported(request.config, elsewhere=True)
    labels = _read_labels(request)
    bundle = read_bundle(request.directory, verify=True) if _is_bundle(request.directory) else None
    certificate = _certificate(request, bundle)
    sealed = (bundle, certificate) if bundle is not None and certificate is not None else None
    signature = certificate.signature if certificate is not None else site.signature()
    rules = build_rules(request.config, signature, model=request.model, labels=labels)
    backend = site.open(rules, sealed)
    return LoadedVersion(backend, backend.rules, _provenance(bundle, certificate), backend.attestation)


def _is_bundle(directory: Path) -> bool:
    return (directory / MANIFEST_FILE).exists()


def check_supported(config: ModelConfig, *, elsewhere: bool = False) -> None:
    """Refuse a config that asks for what this gateway would silently not do.

    Args:
        config: The model's config.
        elsewhere: Whether another server computes it, with any backend that it has.

    Raises:
        LoadFailed: With the name of the field.
    """
    if not elsewhere and config.backend not in BACKENDS:
        raise LoadFailed(
            f"its config asks for backend '{config.backend}'; this gateway has {', '.join(BACKENDS)}."
        )
    message = config.message
    scheduling = message.WhichOneof("scheduling_choice")
    if scheduling == "sequence_batching" or (scheduling == "ensemble_scheduling" and not elsewhere):
        raise LoadFailed(f"its config asks for {scheduling}, which this gateway does not do.")
    if message.model_transaction_policy.decoupled:
        raise LoadFailed("its config asks for decoupled answers, which this gateway does not give.")
    for tensor in message.input:
        for field in ("is_shape_tensor", "allow_ragged_batch"):
            if getattr(tensor, field):
                raise LoadFailed(
                    f"its config sets {field} for input '{tensor.name}', which this gateway does not do."
                )
    if message.batch_input or message.batch_output:
        raise LoadFailed("its config has batch_input or batch_output, which this gateway does not do.")


def _certificate(request: LoadRequest, bundle: Bundle | None) -> Certificate | None:
    """The passing certificate for exactly these bytes, or None where the user allows that there is none.

    One that passed under tolerances looser than ours is no proof either; it is still attested where it is allowed.
    """
    certificate, fault = _look_for_certificate(bundle)
    if certificate is not None and certificate.loosened:
        fault = f"its certificate allows more than our tolerances ({'; '.join(certificate.loosened)})"
    if fault and not request.allow_unproven:
        raise LoadFailed(
            f"{fault}. Publish it with `paritygate publish`, or start the gateway with --allow-unproven."
        )
    return certificate


def _look_for_certificate(bundle: Bundle | None) -> tuple[Certificate | None, str]:
    """The passing certificate for these bytes, or why there is none.

    Raises:
        LoadFailed: If there is one that says that these bytes are wrong; that is never served.
    """
    if bundle is None:
        return None, f"it carries no certificate (there is no {MANIFEST_FILE})"
    certificate = bundle.certificate()
    if certificate is None:
        return None, "its bundle carries no certificate"
    if certificate.bundle_digest != bundle.digest:
        return (
            None,
            f"its certificate is for other bytes ({certificate.bundle_digest}, these are {bundle.digest})",
        )
    if certificate.verdict != "pass":
        raise LoadFailed(f"its certificate says '{certificate.verdict}': {certificate.reason}")
    return certificate, ""


def _open(request: LoadRequest, bundle: Bundle | None) -> EmbeddedBackend:
    backend = get_backend(request.config.backend)
    if bundle is None:
        path = request.directory / request.config.model_filename
        if not path.is_file():
            raise LoadFailed(f"no model file: {path} not found.")
        return backend.open(ModelSource(path, intra_op_threads=request.intra_op_threads))
    if request.config.model_filename != MODEL_FILE:
        raise LoadFailed(
            f"its config names default_model_filename '{request.config.model_filename}', "
            f"but what is sealed in a bundle is '{MODEL_FILE}'."
        )
    source = ModelSource(bundle.model_bytes(), bundle.external_data(), request.intra_op_threads)
    return backend.open(source)


def _attest(
    request: LoadRequest, bundle: Bundle | None, certificate: Certificate | None, backend: EmbeddedBackend
) -> Attestation | None:
    """Run the sealed probes on this host; a mismatch is refused even where unproven versions are allowed."""
    if bundle is None or certificate is None:
        return None
    attestation = backend.attest(bundle, certificate)
    if attestation.verdict != "pass":
        raise LoadFailed(
            f"its sealed probes do not give the proven numbers on this host ({backend.runtime}): "
            f"{attestation.reason}"
        )
    return attestation


def _served_signature(request: LoadRequest, certificate: Certificate | None, graph: Signature) -> Signature:
    proven = certificate.signature if certificate is not None else None
    if request.config.inputs or request.config.outputs:
        check_config_against_graph(request.config, graph, proven=proven, model=request.model)
    return proven if proven is not None else graph


def _provenance(bundle: Bundle | None, certificate: Certificate | None) -> Provenance:
    digest = bundle.digest if bundle is not None else ""
    proven = certificate is not None and not certificate.loosened
    statement = f"sha256:{certificate.sha256}" if certificate is not None else ""
    return Provenance("proven" if proven else "unproven", digest, statement)


def _read_labels(request: LoadRequest) -> Mapping[str, tuple[str, ...]]:
    named = [tensor for tensor in request.config.outputs if tensor.label_filename]
    return {tensor.name: _label_lines(request.model_dir, tensor) for tensor in named}


def _label_lines(model_dir: Path, tensor: ConfigTensor) -> tuple[str, ...]:
    root = model_dir.resolve()
    path = (root / tensor.label_filename).resolve()
    if not path.is_relative_to(root):
        raise LoadFailed(
            f"label file '{tensor.label_filename}' of output '{tensor.name}' leaves the model's folder."
        )
    if not path.is_file():
        raise LoadFailed(
            f"label file '{tensor.label_filename}' of output '{tensor.name}' is not in the model's folder."
        )
    if os.path.getsize(path) > _MAX_LABEL_FILE_BYTES:
        raise LoadFailed(
            f"label file '{tensor.label_filename}' is larger than {_MAX_LABEL_FILE_BYTES} bytes."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadFailed(f"label file '{tensor.label_filename}' is not UTF-8: {error.reason}.") from error
    # Universal newlines have turned CRLF into LF; a last line without an end counts.
    return tuple(text.split("\n")[:-1] if text.endswith("\n") else text.split("\n"))
