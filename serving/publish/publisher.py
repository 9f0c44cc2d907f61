"""The parity gate and the way into a repository: a bundle becomes a version, or one line says why not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paritygate.converter.bundle import (
    CERTIFICATE_FILE,
    EVIDENCE_DIR,
    MANIFEST_FILE,
    SUMMARY_FILE,
    Bundle,
    read_bundle,
)
from paritygate.converter.errors import BundleCorrupt, BundleError
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Signature
from paritygate.serving.publish import files, transaction
from paritygate.serving.publish.errors import (
    BundleChanged,
    ForeignModel,
    NotProven,
    RepositoryUnavailable,
    SignatureMismatch,
)
from paritygate.serving.publish.layout import check_model_name
from paritygate.serving.publish.transaction import Staging
from paritygate.serving.publish.triton_config import (
    CONFIG_FILE,
    ModelConfig,
    check_config_against_graph,
    config_from_signature,
    load_config,
)

if TYPE_CHECKING:
    from paritygate.converter.parity.report import Certificate


@dataclass(frozen=True)
class Published:
    """What a publish came to.

    Attributes:
        model: The model's name in the repository.
        version: The version that holds the bundle.
        digest: The bundle's digest.
        created: False where a listed version already held exactly this bundle and nothing was written.
        path: The version's folder.
    """

    model: str
    version: int
    digest: str
    created: bool
    path: Path


@dataclass(frozen=True)
class _Order:
    """One bundle that passed the gate, and where it is to go."""

    bundle: Bundle
    certificate: Certificate | None
    graph: Signature
    model: str
    max_batch_size: int

    @property
    def signature(self) -> Signature:
        return self.bundle.signature if self.certificate is None else self.certificate.signature

    def first_config(self) -> ModelConfig:
        config = config_from_signature(
            self.model, self.signature, graph=self.graph, max_batch_size=self.max_batch_size
        )
        self.check_fit(config)
        return config

    def fill(self, version_dir: Path) -> None:
        """Copy the bundle and its evidence into a version's folder; what is written is what passed the gate."""
        _copy_bundle(self.bundle, version_dir)
        held = read_bundle(version_dir, verify=False).certificate()
        if (held is None) != (self.certificate is None) or (
            held and held.bundle_digest != self.bundle.digest
        ):
            raise _changed(self.bundle, CERTIFICATE_FILE)
        if held and self.certificate and (held.verdict, held.loosened) != ("pass", self.certificate.loosened):
            raise _changed(self.bundle, CERTIFICATE_FILE)

    def check_fit(self, config: ModelConfig) -> None:
        if self.max_batch_size and self.max_batch_size != config.max_batch_size:
            fault = (
                f"max_batch_size {self.max_batch_size} was asked for, the config says {config.max_batch_size}"
            )
            raise SignatureMismatch(
                f"model '{self.model}': {fault}. Leave it out, change the config first, or publish under a new "
                "name.",
                faults=[fault],
            )
        check_config_against_graph(config, self.graph, proven=self.signature, model=self.model)


def publish_bundle(
    bundle_dir: Path,
    repository: Path,
    *,
    model_name: str | None = None,
    allow_unproven: bool = False,
    allow_custom_tolerances: bool = False,
    max_batch_size: int = 0,
    staging: Path | None = None,
    lock_timeout_s: float = 600.0,
) -> Published:
    """Make a proven bundle a new version of a model in a Triton repository, wholly or not at all.

    Args:
        bundle_dir: The bundle; its certificate lies in `evidence/`.
        repository: The repository, a local directory; its last component is made if it is missing.
        model_name: The model; the bundle's own name by default.
        allow_unproven: Publish without a certificate. A failing one, or one for other bytes, is refused even so.
        allow_custom_tolerances: Publish what passed only under tolerances looser than ours; it counts as unproven
            for the gateway. Tighter ones need no permission.
        max_batch_size: For the first version of a model only: over 0 makes axis 0 Triton's batch dimension.
        staging: A folder outside the repository and on its file system; the repository's parent by default.
        lock_timeout_s: How long to wait for another publisher of the same model.

    Raises:
        BundleError: If the bundle is damaged.
        NotProven: If no passing certificate speaks of exactly these bytes.
        SignatureMismatch: If the model does not fit the config that its versions share.
        PublishError: For everything else that stops it; the subclasses say what.
    """
    bundle = read_bundle(Path(bundle_dir))
    model = check_model_name(model_name or bundle.name)
    certificate = _pass_gate(
        bundle, allow_unproven=allow_unproven, allow_custom_tolerances=allow_custom_tolerances
    )
    order = _Order(bundle, certificate, _graph_signature(bundle), model, max_batch_size)
    root = _open_root(Path(repository))
    with _translated(root):
        return _publish(order, Staging.for_repository(root, staging), lock_timeout_s)


def _pass_gate(bundle: Bundle, *, allow_unproven: bool, allow_custom_tolerances: bool) -> Certificate | None:
    """The certificate that lets the bundle through, or None for one that goes unproven on purpose."""
    certificate = bundle.certificate()
    if certificate is None:
        if allow_unproven:
            return None
        raise NotProven(
            f"{bundle.path} has no certificate, expected a passing one in {EVIDENCE_DIR}/. "
            f"Run `paritygate validate {bundle.path}` first, or pass --allow-unproven."
        )
    if certificate.bundle_digest != bundle.digest:
        raise NotProven(
            f"{bundle.path} was changed after it was validated: its certificate is for "
            f"{certificate.bundle_digest}, its files are {bundle.digest}. Run `paritygate validate {bundle.path}` "
            "again.",
            verdict=certificate.verdict,
        )
    if certificate.verdict != "pass":
        raise NotProven(
            f"{bundle.path} failed validation ({certificate.verdict}): {certificate.reason}. "
            "A failing bundle is never published; correct the export and validate it again.",
            verdict=certificate.verdict,
        )
    if certificate.loosened and not allow_custom_tolerances:
        raise NotProven(
            f"{bundle.path} passed only under tolerances looser than ours ({'; '.join(certificate.loosened)}). "
            f"Run `paritygate validate {bundle.path}` again, or publish with allow_custom_tolerances=True; "
            "the gateway then serves it as unproven.",
            verdict=certificate.verdict,
        )
    return certificate


def _graph_signature(bundle: Bundle) -> Signature:
    """The signature as the runtime sees it, shapes inferred: what Triton's onnxruntime backend compares with."""
    session = open_session(bundle.model_bytes(), external_data=bundle.external_data(), optimize=False)
    return session.inferred_signature()


def _open_root(repository: Path) -> Path:
    """The repository's real path; made if only the last component is missing."""
    try:
        root = repository.resolve()
        if not root.exists():
            os.mkdir(root, 0o755)
            files.sync_directory(root.parent)
    except FileNotFoundError:
        raise RepositoryUnavailable(
            f"cannot make the repository {repository}: {repository.parent} does not exist. Create it first."
        ) from None
    except OSError as error:
        raise RepositoryUnavailable(f"cannot make the repository {repository}: {error.strerror}.") from error
    if not root.is_dir():
        raise RepositoryUnavailable(f"the repository {repository} is a file, expected a directory.")
    return root


@contextmanager
def _translated(root: Path) -> Iterator[None]:
    """Say in our words what the file system refused."""
    advice = {
        errno.ENOSPC: "Free space on it",
        errno.EDQUOT: "Free space within the quota",
        errno.EACCES: "Give this user write permission on it and on its parent folder",
        errno.EPERM: "Give this user write permission on it and on its parent folder",
        errno.EROFS: "Mount it writable",
        errno.EXDEV: "Use a subfolder of the mounted volume as the repository",
    }
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        what_next = advice.get(error.errno or 0, "Check the disk")
        raise RepositoryUnavailable(
            f"cannot publish to {root}: {error.strerror}{where}. {what_next} and publish again; "
            "the versions that were there are untouched."
        ) from error


def _publish(order: _Order, staging: Staging, lock_timeout_s: float) -> Published:
    model_dir = staging.root / order.model
    while True:
        if _is_absent(model_dir):
            config = order.first_config()
            if transaction.publish_first(staging, order.model, config, order.fill):
                return Published(order.model, 1, order.bundle.digest, True, model_dir / "1")
        try:
            with files.locked_directory(model_dir, timeout_s=lock_timeout_s):
                return _publish_locked(order, staging, model_dir)
        except FileNotFoundError:
            if model_dir.exists():
                raise  # something else in it is missing; trying again would not end


def _is_absent(model_dir: Path) -> bool:
    """Whether there is no such model; an empty folder is as good as none."""
    try:
        return not os.listdir(model_dir)
    except FileNotFoundError:
        return True


def _publish_locked(order: _Order, staging: Staging, model_dir: Path) -> Published:
    config = _load_own_config(model_dir)
    present = _find_listed(order, config, model_dir)
    if present is not None:
        return Published(order.model, present, order.bundle.digest, False, model_dir / str(present))

    def load() -> ModelConfig:
        config = _load_own_config(model_dir)
        order.check_fit(config)
        return config

    number = transaction.publish_next(staging, model_dir, load, order.fill)
    return Published(order.model, number, order.bundle.digest, True, model_dir / str(number))


def _load_own_config(model_dir: Path) -> ModelConfig:
    """The model's config, if its versions go live by a list."""
    path = model_dir / CONFIG_FILE
    if not path.is_file():
        raise ForeignModel(
            f"{model_dir} has no {CONFIG_FILE}, so a server takes every folder in it for live. Publish under "
            f"another name, or write a {CONFIG_FILE} with a version list first."
        )
    config = load_config(path, model=model_dir.name)
    policy = config.version_policy
    if policy.kind != "specific":
        raise ForeignModel(
            f"{path} serves {'all versions' if policy.kind == 'all' else 'the latest versions'}, so a "
            "half-written version would go live; publishing needs a list. Publish under another name, or put "
            "`version_policy { specific { versions: [ ... ] } }` with the versions that are live now into it."
        )
    return config


def _find_listed(order: _Order, config: ModelConfig, model_dir: Path) -> int | None:
    """The newest listed version that holds exactly this bundle, no less proven; checked, not trusted."""
    for number in sorted(config.version_policy.versions, reverse=True):
        version_dir = model_dir / str(number)
        try:
            held = read_bundle(version_dir, verify=False)
            same = held.digest == order.bundle.digest
            if same and _as_proven(held.certificate(), order.certificate):
                held.verify()
                return number
        except BundleCorrupt as error:
            raise RepositoryUnavailable(
                f"version {number} of '{order.model}' is listed, but damaged: {error} Take {number} off the "
                "version list, or restore its files, and publish again."
            ) from error
        except BundleError:
            continue  # a version that someone else laid down is no bundle, and so not this one
    return None


def _as_proven(held: Certificate | None, wanted: Certificate | None) -> bool:
    """Whether a version's certificate says no less than the one to be published."""
    if held is None or wanted is None:
        return wanted is None
    return not held.loosened or bool(wanted.loosened)


def _copy_bundle(bundle: Bundle, version_dir: Path) -> None:
    for name, sealed in sorted(bundle.manifest["files"].items()):
        target = version_dir / name
        _make_folders(version_dir, target.parent)
        _copy_checked(bundle, name, target, str(sealed["sha256"]))
    _copy_checked(bundle, MANIFEST_FILE, version_dir / MANIFEST_FILE, bundle.digest.removeprefix("sha256:"))
    present = [name for name in (CERTIFICATE_FILE, SUMMARY_FILE) if (bundle.path / name).is_file()]
    if present:
        os.mkdir(version_dir / EVIDENCE_DIR, 0o755)
    for name in present:  # whatever else lies there is no evidence
        _copy(bundle, name, version_dir / name)


def _make_folders(root: Path, folder: Path) -> None:
    if folder != root and not folder.is_dir():
        _make_folders(root, folder.parent)
        os.mkdir(folder, 0o755)


def _copy_checked(bundle: Bundle, name: str, target: Path, sha256: str) -> None:
    if _copy(bundle, name, target) != sha256:
        raise _changed(bundle, name)


def _copy(bundle: Bundle, name: str, target: Path) -> str:
    """Copy one file of the bundle; gives the digest of what was written."""
    source = bundle.path / name
    try:
        return files.copy_file(source, target)[0]
    except OSError as error:
        if error.filename is not None and Path(error.filename) == source:
            raise BundleError(f"cannot read {source}: {error.strerror}; nothing was published.") from error
        raise


def _changed(bundle: Bundle, name: str) -> BundleChanged:
    return BundleChanged(
        f"{bundle.path / name} changed while it was being published; nothing was published. Validate the bundle "
        "again.",
        file=name,
    )
