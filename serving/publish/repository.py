"""Read a Triton model repository, our own or anyone's: models, live versions, configs, signatures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.bundle import MANIFEST_FILE, read_bundle
from paritygate.converter.graph.inspect import graph_signature, parse_model
from paritygate.converter.types import Signature
from paritygate.serving.publish.errors import ModelNotFound, ModelUnservable, RepositoryUnavailable
from paritygate.serving.publish.layout import check_model_name, version_folders
from paritygate.serving.publish.triton_config import CONFIG_FILE, ModelConfig, load_config


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or odd, in a repository.

    Attributes:
        rule: A short fixed name for the kind of thing.
        severity: `error` where the model cannot be served as its config says, else `warning`.
        model: The model's folder.
        path: The file or folder that it is about.
        message: What is there, what was expected, what to do.
    """

    rule: str
    severity: str
    model: str
    path: Path
    message: str

    def to_json(self) -> dict[str, str]:
        """This finding as plain JSON values."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "model": self.model,
            "path": str(self.path),
            "message": self.message,
        }

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.rule}]"


class ModelRepository:
    """A directory of models as Triton lays it out; every call reads what is on disk now."""

    def __init__(self, path: Path) -> None:
        """Open a repository.

        Raises:
            RepositoryUnavailable: If there is no such directory.
        """
        self.path = Path(path)
        if not self.path.is_dir():
            raise RepositoryUnavailable(f"{self.path} is not a directory, expected a model repository.")

    def models(self) -> tuple[str, ...]:
        """The names of all models: every visible folder at the root."""
        return tuple(
            sorted(
                entry.name
                for entry in os.scandir(self.path)
                if entry.is_dir() and not entry.name.startswith(".")
            )
        )

    def model_path(self, model: str) -> Path:
        """The model's folder.

        Raises:
            ModelNotFound: If there is none; names that leave the repository are never looked up.
        """
        path = self.path / check_model_name(model)
        if not path.is_dir():
            raise ModelNotFound(
                f"the repository {self.path} has no model '{model}', only {list(self.models())}."
            )
        return path

    def load_config(self, model: str) -> ModelConfig:
        """The model's config as it stands now.

        Raises:
            ConfigInvalid: If it cannot be parsed, or says what Triton refuses.
            ModelUnservable: If there is no config.pbtxt.
        """
        path = self.model_path(model) / CONFIG_FILE
        try:
            return load_config(path, model=model)
        except FileNotFoundError:
            raise ModelUnservable(
                f"model '{model}' has no {CONFIG_FILE} in {path.parent}. Publish it, or write one.",
                model=model,
                rule="config-missing",
            ) from None
        except OSError as error:
            raise RepositoryUnavailable(f"cannot read {path}: {error.strerror}.") from error

    def available_versions(self, model: str) -> tuple[int, ...]:
        """Every version that has a folder, listed or not, ascending."""
        return tuple(version_folders(self.model_path(model)))

    def versions(self, model: str) -> tuple[int, ...]:
        """The versions that are live: picked by the config's policy and present, ascending."""
        return self.load_config(model).version_policy.select(self.available_versions(model))

    def missing_versions(self, model: str) -> tuple[int, ...]:
        """The versions that the config lists although they have no folder, ascending."""
        listed = self.load_config(model).version_policy.versions
        return tuple(sorted(set(listed) - set(self.available_versions(model))))

    def version_path(self, model: str, version: int) -> Path:
        """The version's folder.

        Raises:
            ModelNotFound: If the model has no such version.
        """
        folders = version_folders(self.model_path(model))
        if version not in folders:
            raise ModelNotFound(f"model '{model}' has no version {version}, only {list(folders)}.")
        return folders[version]

    def signature(self, model: str, version: int) -> Signature:
        """What a version takes and gives.

        That is the proven signature, else the bundle's, else (in a repository that we did not write) the graph's.

        Raises:
            BundleCorrupt: If a manifest or certificate is damaged.
            ModelUnservable: If the version has no model file.
        """
        path = self.version_path(model, version)
        if not (path / MANIFEST_FILE).exists():
            return self._graph_signature(model, path)
        bundle = read_bundle(path, verify=False)
        certificate = bundle.certificate()
        proven = certificate is not None and certificate.bundle_digest == bundle.digest
        return certificate.signature if certificate is not None and proven else bundle.signature

    def _graph_signature(self, model: str, version_dir: Path) -> Signature:
        file = version_dir / self.load_config(model).model_filename
        try:
            return graph_signature(parse_model(file.read_bytes()))
        except OSError as error:
            raise ModelUnservable(
                f"cannot read {file} of model '{model}': {error.strerror}.",
                model=model,
                rule="model-file-missing",
            ) from error

    def lint(self, model: str | None = None) -> list[Finding]:
        """Everything that is wrong or odd, in one model or in all; opens every live model, changes nothing."""
        from paritygate.serving.publish.lint import lint_model, lint_root

        if model is not None:
            return lint_model(self, model)
        return [*lint_root(self), *(finding for name in self.models() for finding in lint_model(self, name))]

    def require_servable(self, model: str) -> tuple[int, ...]:
        """The live versions of a model whose files are all there, for a server that is about to load it.

        Cheap: opens no model and checks no digest, which a server does anyway with the bytes that it loads.

        Raises:
            ConfigInvalid: If the config cannot be used.
            ModelUnservable: If a version, model file or label file is missing.
        """
        from paritygate.serving.publish.lint import layout_findings

        config = self.load_config(model)
        for finding in layout_findings(self, model, config):
            if finding.severity == "error":
                raise ModelUnservable(finding.message, model=model, rule=finding.rule)
        return self.versions(model)
