"""What the repository says now: the models, and for one model its listed versions and their marks.

Reading is cheap enough to do every second: a config is parsed again only when its file changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paritygate.converter.bundle import CERTIFICATE_FILE, DATA_FILE, MANIFEST_FILE
from paritygate.serving.errors import LoadFailed
from paritygate.serving.overrides import Override
from paritygate.serving.publish import ModelRepository
from paritygate.serving.publish.layout import version_folders
from paritygate.serving.publish.triton_config import CONFIG_FILE, ModelConfig

log = logging.getLogger("paritygate.serving")


@dataclass(frozen=True)
class Snapshot:
    """One model as the repository has it.

    Attributes:
        config: Its config.
        versions: The versions that the policy selects, ascending.
        missing: Versions that the policy names although they have no folder, ascending.
        stamps: By version, what changes when its files or the config (but for the version list) do.
    """

    config: ModelConfig | None
    versions: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    stamps: Mapping[int, object] = field(default_factory=dict)


class RepositoryView:
    """Reads a repository for the gateway."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._repository = ModelRepository(root)
        self._configs: dict[str, tuple[object, ModelConfig]] = {}
        self._ignored: set[str] = set()
        self._overrides: dict[str, Override] = {}

    def directory(self, model: str) -> Path:
        """The model's folder, or the one that stands for it."""
        override = self._overrides.get(model)
        return (override.directory if override is not None else None) or self._root / model

    def override(self, model: str, override: Override | None) -> Override | None:
        """Have something stand for what the repository says of a model, or nothing; gives what did before."""
        before = self._overrides.pop(model, None)
        if override is not None:
            self._overrides[model] = override
        return before

    def models(self) -> list[str]:
        """The names of all models."""
        return list(self._repository.models())

    def snapshot(self, model: str) -> Snapshot:
        """What the repository says about one model; without config and versions if it is not there any more.

        Raises:
            PublishError: If its config cannot be read.
            LoadFailed: If the policy selects nothing.
        """
        directory = self.directory(model)
        if not directory.is_dir():
            self._configs.pop(model, None)
            return Snapshot(None)
        override = self._overrides.get(model)
        config = override.config if override is not None else self._config(model)
        available = tuple(version_folders(directory))
        versions = config.version_policy.select(available)
        missing = tuple(sorted(set(config.version_policy.versions) - set(available)))
        self._warn_about_ignored(model, directory)
        if not versions and not missing:
            raise LoadFailed(
                f"at least one version must be available under the version policy of model '{model}', "
                f"but its folder holds {_folders(directory) or 'none'}; "
                "a version is a whole number without leading zeros."
            )
        key = _without_versions(config)
        stamps = {v: (key, _file_marks(directory / str(v), config.model_filename)) for v in versions}
        return Snapshot(config, versions, missing, stamps)

    def _config(self, model: str) -> ModelConfig:
        mark = _mark(self.directory(model) / CONFIG_FILE)
        known = self._configs.get(model)
        if known is None or known[0] != mark:
            known = (mark, self._repository.load_config(model))
            self._configs[model] = known
        return known[1]

    def _warn_about_ignored(self, model: str, directory: Path) -> None:
        """Say once about each visible folder that it is taken for no version."""
        for name in _folders(directory):
            path = f"{model}/{name}"
            if path not in self._ignored and not _is_version(name):
                self._ignored.add(path)
                log.warning("folder '%s' is ignored: a version is a whole number without leading zeros", path)


def _folders(directory: Path) -> list[str]:
    """The visible folders in a model's folder, by name."""
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith((".", "_")))


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0"))


def _without_versions(config: ModelConfig) -> bytes:
    message = type(config.message)()
    message.CopyFrom(config.message)
    message.ClearField("version_policy")
    return bytes(message.SerializeToString(deterministic=True))


def _file_marks(directory: Path, model_file: str) -> tuple[object, ...]:
    files = (model_file, DATA_FILE, MANIFEST_FILE, CERTIFICATE_FILE)
    return tuple(_mark(directory / name) for name in files)


def _mark(path: Path) -> object:
    """What changes when a file is replaced or written; None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
