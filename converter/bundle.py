"""Bundles: an ONNX model, its manifest, and probes sealed with the source framework's own outputs.

    model.onnx [model.onnx.data]   bundle.json
    probes/test_data_set_<i>/input_<k>.pb, output_<k>.pb [, output_<k>.float64.pb]
    assets/...                                         what a client needs beside the model: a tokenizer, labels
    evidence/certificate.json [, summary.txt]          outside the digest

`bundle.json` lists the digest of every other file, so its own sha256 names the whole bundle. Whatever is read
later is checked against that list at the moment of use: the bytes that were verified are those handed out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from paritygate.converter import _json
from paritygate.converter._atomic import CHUNK_BYTES, Written, atomic_directory, new_file, write_file
from paritygate.converter._probes import OmittedCase, Probe, read_probe, write_probes
from paritygate.converter._sealed import SealedDirectory
from paritygate.converter._stages import stage
from paritygate.converter.errors import BundleCorrupt, BundleError, ModelInvalid
from paritygate.converter.graph.external import external_places, gather_external_data
from paritygate.converter.graph.inspect import (
    external_locations,
    graph_signature,
    is_contained,
    opsets,
    parse_model,
)
from paritygate.converter.graph.weights import write_whole
from paritygate.converter.parity.feeds import DEFAULT_SEED
from paritygate.converter.schemas import check
from paritygate.converter.types import DemotedDim, Signature, TensorSpec

if TYPE_CHECKING:
    from paritygate.converter.parity.report import Certificate

__all__ = [
    "ASSETS_DIR",
    "CERTIFICATE_FILE",
    "DATA_FILE",
    "DEFAULT_BUDGET_BYTES",
    "EVIDENCE_DIR",
    "MANIFEST_FILE",
    "MODEL_FILE",
    "SUMMARY_FILE",
    "Bundle",
    "BundleDraft",
    "OmittedCase",
    "Probe",
    "read_bundle",
    "signature_fault",
    "write_bundle",
]

SCHEMA = "paritygate.bundle/v1"
MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
MANIFEST_FILE = "bundle.json"
ASSETS_DIR = "assets"
EVIDENCE_DIR = "evidence"
CERTIFICATE_FILE = f"{EVIDENCE_DIR}/certificate.json"
SUMMARY_FILE = f"{EVIDENCE_DIR}/summary.txt"

DEFAULT_BUDGET_BYTES = 64 * 1024 * 1024
"""What the values of all probes may take together; probes past it are left out and listed."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that are safe as a folder, in a URL, and as a Kubernetes-like label."""


@dataclass(frozen=True)
class BundleDraft:
    """Everything that `write_bundle` needs.

    Attributes:
        name: Model name: letters, digits, `.`, `_`, `-`.
        model_path: An ONNX file; its external data lies beside it.
        signature: Names, dtypes and dims that the bundle promises.
        framework: The source framework's name, e.g. `pytorch`.
        framework_version: Its version.
        exporter: What wrote the ONNX, e.g. `torch.onnx`.
        exporter_version: Its version.
        probes: Taken one by one, so a generator may run the source while the bundle is written.
        trace_dims: The size of every dynamic dimension at tracing.
        weights_selection: Which weights: `raw`, `ema`, `best`, `step:1200`.
        source_sha256: Digest of the checkpoint, or None for a model in memory.
        demoted: Dimensions that the exporter had to fix.
        seed: The seed of the probes.
        budget_bytes: What the probes may take together.
        omitted: Cases that the source could not answer.
        samples: Digest and figures of the user's samples, or None.
        notes: Anything a reader should know, one sentence each.
        assets: Files that travel with the model, by their name below `assets/`; sealed as all others are.
        inline_weights: A file beside the model with weights that belong into the model itself, or None.
    """

    name: str
    model_path: Path
    signature: Signature
    framework: str
    framework_version: str
    exporter: str
    exporter_version: str
    probes: Iterable[Probe]
    trace_dims: Mapping[str, int] = field(default_factory=dict)
    weights_selection: str = "raw"
    source_sha256: str | None = None
    demoted: Sequence[DemotedDim] = ()
    seed: int = DEFAULT_SEED
    budget_bytes: int = DEFAULT_BUDGET_BYTES
    omitted: Sequence[OmittedCase] = ()
    samples: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    assets: Mapping[str, Path] = field(default_factory=dict)
    inline_weights: Path | None = None


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest has been read; every file is checked against it when it is used.

    Attributes:
        path: The directory.
        manifest: What bundle.json says, checked against its schema.
        digest: `sha256:` and the hex digest of bundle.json's bytes.
        signature: Names, dtypes and dims that the bundle promises.
    """

    path: Path
    manifest: Mapping[str, Any]
    digest: str
    signature: Signature

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.manifest["name"])

    @property
    def trace_dims(self) -> dict[str, int]:
        """The size of each dynamic dimension when the model was traced."""
        return dict(self.manifest["trace_dims"])

    @property
    def demoted(self) -> tuple[DemotedDim, ...]:
        """Dimensions that the exporter itself had to fix."""
        return tuple(DemotedDim.from_json(entry) for entry in self.manifest["demoted"])

    def model_bytes(self) -> bytes:
        """The bytes of model.onnx, verified against the manifest at this very read.

        Raises:
            BundleCorrupt: If they are not those that were sealed.
        """
        return self._sealed.read(MODEL_FILE)

    def external_data(self) -> dict[str, bytes]:
        """The verified bytes of each external data file by the name that the model uses; empty if there is none.

        Raises:
            BundleCorrupt: If they are not those that were sealed.
        """
        return {DATA_FILE: self._sealed.read(DATA_FILE)} if DATA_FILE in self.manifest["files"] else {}

    @property
    def asset_names(self) -> tuple[str, ...]:
        """The names below `assets/`, in order."""
        prefix = f"{ASSETS_DIR}/"
        return tuple(sorted(n.removeprefix(prefix) for n in self.manifest["files"] if n.startswith(prefix)))

    def asset(self, name: str) -> bytes:
        """The verified bytes of a file below `assets/`.

        Raises:
            BundleCorrupt: If there is none, or it is not the sealed one.
        """
        return self._sealed.read(f"{ASSETS_DIR}/{name}")

    def probes(self) -> Iterator[Probe]:
        """The sealed probes in order, each read and verified when its turn comes.

        Raises:
            BundleCorrupt: If a file is not the sealed one, or does not hold what the signature says.
        """
        for entry in self.manifest["probes"]["cases"]:
            yield read_probe(entry, self.signature, self._sealed.read)

    def certificate(self) -> Certificate | None:
        """The certificate in evidence/, or None. It may speak of other bytes: compare its `bundle_digest`.

        Raises:
            BundleCorrupt: If the file is there but is no certificate.
        """
        from paritygate.converter.parity.report import Certificate

        data = self._sealed.read_unsealed(CERTIFICATE_FILE, max_bytes=_json.MAX_DOCUMENT_BYTES)
        if data is None:
            return None
        try:
            return Certificate.from_bytes(data)
        except ValueError as error:
            raise BundleCorrupt(
                f"{self.path / CERTIFICATE_FILE} is not a certificate: {error}. Validate the bundle again.",
                file=CERTIFICATE_FILE,
            ) from error

    def verify(self) -> None:
        """Check every file: digests, sizes, nothing missing, nothing extra, no name that leaves the directory.

        Raises:
            BundleCorrupt: At the first fault.
        """
        self._sealed.verify(unsealed={MANIFEST_FILE}, unsealed_directory=EVIDENCE_DIR)
        self._check_model()

    @property
    def _sealed(self) -> SealedDirectory:
        return SealedDirectory(self.path, self.manifest["files"])

    def _check_model(self) -> None:
        try:
            model = parse_model(self.model_bytes())
            locations = external_locations(model)
            graph = graph_signature(model)
        except ModelInvalid as error:
            raise BundleCorrupt(f"{self.path / MODEL_FILE}: {error}", file=MODEL_FILE) from error
        if not locations <= {DATA_FILE} or (locations and DATA_FILE not in self.manifest["files"]):
            raise BundleCorrupt(
                f"{self.path / MODEL_FILE} keeps weights in {sorted(locations)}, which is not sealed; "
                f"expected {DATA_FILE!r}. Export the model again.",
                file=MODEL_FILE,
            )
        fault = signature_fault(self.signature, graph)
        if fault:
            raise BundleCorrupt(f"{self.path / MODEL_FILE}: {fault}", file=MODEL_FILE)


def write_bundle(draft: BundleDraft, directory: Path) -> Bundle:
    """Write a bundle so that `directory` is there whole, flushed to disk, or not at all.

    Raises:
        BundleError: If the directory exists, a name or probe does not fit the signature, or the disk refuses.
        ModelInvalid: If `draft.model_path` is no ONNX model with the names and dtypes of the signature.
    """
    directory = Path(directory)
    _check_draft(draft)
    try:
        with atomic_directory(directory) as partial:
            _fill(draft, partial)
    except FileExistsError as error:
        raise BundleError(
            f"{error}; a bundle is never overwritten. Name a new directory or remove it."
        ) from error
    except OSError as error:
        raise BundleError(f"cannot write the bundle to {directory}: {error.strerror or error}.") from error
    return read_bundle(directory, verify=False)


def read_bundle(directory: Path, *, verify: bool = True) -> Bundle:
    """Open a bundle.

    Args:
        directory: The bundle, or a published version directory, which is one.
        verify: Check every file now. Without it, files are still checked one by one when they are used.

    Raises:
        BundleError: If there is no bundle here.
        BundleCorrupt: If the manifest is damaged, or a file is not the one it seals.
    """
    directory = Path(directory)
    sealed = SealedDirectory(directory, {})
    if not directory.is_dir():
        raise BundleError(f"{directory} is not a directory; expected a bundle with {MANIFEST_FILE} inside.")
    data = sealed.read_unsealed(MANIFEST_FILE, max_bytes=_json.MAX_DOCUMENT_BYTES)
    if data is None:
        raise BundleError(
            f"{directory} holds no {MANIFEST_FILE}; expected a bundle, as `paritygate export` writes it."
        )
    try:
        manifest = _json.parse(data)
        check(manifest, "bundle.v1")
        _check_manifest(manifest)
    except ValueError as error:
        raise BundleCorrupt(
            f"{directory / MANIFEST_FILE} is damaged: {error}. Export the model again.", file=MANIFEST_FILE
        ) from error
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    bundle = Bundle(directory, manifest, digest, Signature.from_json(manifest["signature"]))
    if verify:
        bundle.verify()
    return bundle


def signature_fault(promised: Signature, graph: Signature) -> str | None:
    """Why the graph does not carry the promised signature, or None.

    Names, order, dtypes and ranks must be equal. Dims may differ here: whether a promised dim really varies is not
    read off the graph but proved by the sweep.
    """
    for kind, expected, found in (
        ("inputs", promised.inputs, graph.inputs),
        ("outputs", promised.outputs, graph.outputs),
    ):
        if [_form(spec) for spec in expected] != [_form(spec) for spec in found]:
            said = ", ".join(map(str, expected)) or "none"
            has = ", ".join(map(str, found)) or "none"
            return f"the signature promises {kind} ({said}), the graph has ({has})."
    return None


def _form(spec: TensorSpec) -> tuple[str, str, int]:
    return spec.name, spec.dtype.value, len(spec.shape)


def _check_draft(draft: BundleDraft) -> None:
    if not NAME_PATTERN.fullmatch(draft.name):
        raise BundleError(
            f"model name {draft.name!r} cannot be used; expected letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit."
        )
    names = [spec.name for spec in (*draft.signature.inputs, *draft.signature.outputs)]
    for specs in (draft.signature.inputs, draft.signature.outputs):
        if len({spec.name for spec in specs}) != len(specs):
            raise BundleError(f"the signature names an input or output twice: {', '.join(names)}.")
    missing = sorted(draft.signature.dynamic_dims().keys() - draft.trace_dims.keys())
    if missing:
        raise BundleError(
            f"no trace size is given for the dynamic dims {', '.join(missing)}; add them to trace_dims."
        )
    if not draft.model_path.is_file():
        raise BundleError(f"there is no ONNX file {draft.model_path}.")
    for name, source in draft.assets.items():
        if not is_contained(name) or not source.is_file():
            raise BundleError(
                f"{source} cannot travel with the model as {name!r}; expected a file, and a plain relative name."
            )


def _fill(draft: BundleDraft, partial: Path) -> None:
    data = draft.model_path.read_bytes()
    model = parse_model(data)
    fault = signature_fault(draft.signature, graph_signature(model))
    if fault:
        raise ModelInvalid(f"{draft.model_path.name}: {fault}")
    files = _write_model(draft, model, data, partial)
    with stage("probes"):
        cases, over_budget, written = write_probes(draft.probes, draft.signature, partial, draft.budget_bytes)
    files |= written
    for name, source in sorted(draft.assets.items()):
        files[f"{ASSETS_DIR}/{name}"] = _copy(source, partial / ASSETS_DIR / name)
    manifest = {
        "schema": SCHEMA,
        "name": draft.name,
        "signature": draft.signature.to_json(),
        "opsets": opsets(model),
        "ir_version": int(model.ir_version),
        "framework": {"name": draft.framework, "version": draft.framework_version},
        "exporter": {"name": draft.exporter, "version": draft.exporter_version},
        "weights": {"selection": draft.weights_selection, "source_sha256": draft.source_sha256},
        "trace_dims": dict(draft.trace_dims),
        "demoted": [entry.to_json() for entry in draft.demoted],
        "probes": {
            "seed": draft.seed,
            "budget_bytes": draft.budget_bytes,
            "cases": cases,
            "omitted": [entry.to_json() for entry in (*draft.omitted, *over_budget)],
        },
        "samples": None if draft.samples is None else dict(draft.samples),
        "notes": list(draft.notes),
        "files": {name: {"sha256": w.sha256, "size_bytes": w.size_bytes} for name, w in files.items()},
    }
    try:
        check(manifest, "bundle.v1")
        data = _json.canonical(manifest)
    except (TypeError, ValueError) as error:
        raise BundleError(f"the bundle's manifest would not be valid: {error}.") from error
    write_file(partial / MANIFEST_FILE, data)


def _write_model(
    draft: BundleDraft, model: onnx.ModelProto, data: bytes, partial: Path
) -> dict[str, Written]:
    """Write the model and its weights, each byte of them once; `data` is what `model` was read from."""
    files: dict[str, Written] = {}
    inside = draft.inline_weights
    beside = external_places(model) - ({inside.name} if inside is not None else set())
    if beside:
        with new_file(partial / DATA_FILE) as file:
            gather_external_data(
                model, draft.model_path.parent, file, DATA_FILE, leave=None if inside is None else inside.name
            )
        files[DATA_FILE] = file.written
    with new_file(partial / MODEL_FILE) as file:
        if inside is not None:
            write_whole(model, inside, file)
        else:
            file.write(model.SerializeToString(deterministic=True) if beside else data)
    files[MODEL_FILE] = file.written
    return files


def _copy(source: Path, target: Path) -> Written:
    """Copy a file's bytes, and nothing else of it, to a new file that is flushed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as taken, new_file(target) as given:
        while chunk := taken.read(CHUNK_BYTES):
            given.write(chunk)
    return given.written


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """What the schema cannot say.

    Raises:
        ValueError: With one sentence.
    """
    cases = manifest["probes"]["cases"]
    if [entry["index"] for entry in cases] != list(range(len(cases))):
        raise ValueError("the probes are not numbered 0, 1, 2, ... @ $.probes.cases")
    for kind in ("inputs", "outputs"):
        names = [entry["name"] for entry in manifest["signature"][kind]]
        if len(set(names)) != len(names):
            raise ValueError(f"a name is given twice @ $.signature.{kind}")
    untraced = (
        Signature.from_json(manifest["signature"]).dynamic_dims().keys() - manifest["trace_dims"].keys()
    )
    if untraced:
        raise ValueError(f"dim {min(untraced)!r} has no trace size @ $.trace_dims")
    if MODEL_FILE not in manifest["files"]:
        raise ValueError(f"{MODEL_FILE!r} is missing @ $.files")
