"""What is wrong or odd in a model repository, found without a server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from paritygate.converter.bundle import MANIFEST_FILE, read_bundle
from paritygate.converter.errors import BundleError, ConverterError
from paritygate.converter.graph.inspect import is_contained
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import DType
from paritygate.serving.publish.errors import (
    ConfigInvalid,
    ModelNameInvalid,
    ModelUnservable,
    PublishError,
    SignatureMismatch,
)
from paritygate.serving.publish.layout import UNFINISHED_MARKER, check_model_name, parse_version
from paritygate.serving.publish.repository import Finding, ModelRepository
from paritygate.serving.publish.triton_config import (
    BACKEND,
    CONFIG_FILE,
    ModelConfig,
    check_config_against_graph,
)

ERROR = "error"
WARNING = "warning"

_READ_AS_NUMBER = re.compile(r"\s*[+-]?[1-9]")
"""What Triton's parser takes for the beginning of a number: it reads `3.partial` as 3 and `-1` as 2^64-1."""


def lint_root(repository: ModelRepository) -> list[Finding]:
    """What lies at the repository's root and is no model, though Triton takes every folder there for one."""
    return [
        Finding(
            "folder-hidden",
            WARNING,
            entry.name,
            Path(entry.path),
            f"{entry.path} is a hidden folder, which Triton takes for a model that cannot be loaded. Move it out.",
        )
        for entry in sorted(os.scandir(repository.path), key=lambda entry: entry.name)
        if entry.is_dir() and entry.name.startswith(".")
    ]


def lint_model(repository: ModelRepository, model: str) -> list[Finding]:
    """Everything that is wrong or odd with one model."""
    path = repository.path / model
    try:
        check_model_name(model)
        config = repository.load_config(model)
    except ModelNameInvalid as error:
        return [Finding("name-invalid", WARNING, model, path, str(error))]
    except ConfigInvalid as error:
        return [Finding("config-invalid", ERROR, model, path / CONFIG_FILE, str(error))]
    except ModelUnservable as error:
        return [Finding(error.rule, ERROR, model, path / CONFIG_FILE, str(error))]
    except PublishError as error:
        return [Finding("config-unreadable", ERROR, model, path / CONFIG_FILE, str(error))]
    findings = list(layout_findings(repository, model, config))
    if config.backend == BACKEND:
        findings += _content_findings(repository, model, config)
    return findings


def layout_findings(repository: ModelRepository, model: str, config: ModelConfig) -> Iterator[Finding]:
    """What the names of files and folders alone show."""
    yield from _folder_findings(repository, model)
    yield from _version_findings(repository, model, config)
    yield from _label_findings(repository, model, config)


def _folder_findings(repository: ModelRepository, model: str) -> Iterator[Finding]:
    for entry in sorted(os.scandir(repository.path / model), key=lambda entry: entry.name):
        if not entry.is_dir() or entry.name.startswith(".") or parse_version(entry.name) is not None:
            continue
        why = "is not a version number"
        if re.fullmatch(r"0[0-9]+", entry.name):
            why = "is not a version number because of its leading zero"
        elif _READ_AS_NUMBER.match(entry.name):
            why = "is not a version number, but Triton reads the number that it begins with"
        message = f"model '{model}': folder '{entry.name}' {why}; it is ignored. Rename or remove it."
        yield Finding("folder-ignored", WARNING, model, Path(entry.path), message)


def _version_findings(repository: ModelRepository, model: str, config: ModelConfig) -> Iterator[Finding]:
    path = repository.path / model
    available = repository.available_versions(model)
    live = config.version_policy.select(available)
    missing = repository.missing_versions(model)
    for version in missing:
        message = (
            f"model '{model}': version {version} is listed, but there is no folder {path / str(version)}."
        )
        yield Finding("version-missing", WARNING if live else ERROR, model, path / str(version), message)
    if not live and not missing:
        odd = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        message = (
            f"model '{model}' has no version: expected a folder with a whole number for a name, found {odd}."
        )
        yield Finding("version-none", ERROR, model, path, message)
    if config.backend == BACKEND:
        yield from _model_file_findings(repository, model, config, live)
    for version in sorted(set(available) - set(live)):
        yield from _unlisted_findings(path / str(version), model, version, config)


def _model_file_findings(
    repository: ModelRepository, model: str, config: ModelConfig, live: tuple[int, ...]
) -> Iterator[Finding]:
    for version in live:
        file = repository.version_path(model, version) / config.model_filename
        if not file.exists():
            name = config.model_filename
            message = f"model '{model}': version {version} has no model file {name} in {file.parent}."
            yield Finding("model-file-missing", ERROR, model, file, message)


def _unlisted_findings(path: Path, model: str, version: int, config: ModelConfig) -> Iterator[Finding]:
    if config.version_policy.kind != "specific":
        return
    if (path / UNFINISHED_MARKER).exists():
        message = (
            f"model '{model}': version {version} is half-written; the next publish of the model removes it, "
            "unless its publisher is still at work."
        )
        yield Finding("version-unfinished", WARNING, model, path, message)
    else:
        message = (
            f"model '{model}': version {version} is not listed and so not served. List it, or remove {path}."
        )
        yield Finding("version-unlisted", WARNING, model, path, message)


def _label_findings(repository: ModelRepository, model: str, config: ModelConfig) -> Iterator[Finding]:
    path = repository.path / model
    for output in config.outputs:
        name = output.label_filename
        if not name:
            continue
        if not is_contained(name):
            message = (
                f"model '{model}': label file {name!r} of output '{output.name}' leaves the model's folder."
            )
            yield Finding("label-file-outside", ERROR, model, path, message)
        elif not (path / name).is_file():
            message = f"model '{model}': label file {name} of output '{output.name}' is not in {path}."
            yield Finding("label-file-missing", ERROR, model, path / name, message)


def _content_findings(repository: ModelRepository, model: str, config: ModelConfig) -> Iterator[Finding]:
    """What only opening the files shows, for versions that the onnxruntime backend would load."""
    for tensor in (*config.inputs, *config.outputs):
        if tensor.dtype is DType.BFLOAT16:
            message = (
                f"model '{model}': '{tensor.name}' is TYPE_BF16, which this gateway serves and Triton's "
                "onnxruntime backend refuses."
            )
            yield Finding(
                "datatype-not-in-triton", WARNING, model, repository.path / model / CONFIG_FILE, message
            )
    for version in repository.versions(model):
        path = repository.version_path(model, version)
        if (path / config.model_filename).exists():
            yield from _bundle_findings(path, model, version)
            yield from _graph_findings(path / config.model_filename, model, version, config)


def _bundle_findings(path: Path, model: str, version: int) -> Iterator[Finding]:
    if not (path / MANIFEST_FILE).exists():
        return
    try:
        bundle = read_bundle(path)
        certificate = bundle.certificate()
    except BundleError as error:
        yield Finding("bundle-corrupt", ERROR, model, path, f"model '{model}', version {version}: {error}")
        return
    fault = None
    if certificate is None:
        fault = "carries no certificate"
    elif certificate.bundle_digest != bundle.digest:
        fault = "carries a certificate for other bytes"
    elif certificate.verdict != "pass":
        fault = f"carries a certificate that says '{certificate.verdict}'"
    elif certificate.loosened:
        fault = "passed only under tolerances looser than ours"
    if fault:
        message = (
            f"model '{model}': version {version} {fault}; the gateway refuses it unless --allow-unproven."
        )
        yield Finding("version-unproven", WARNING, model, path, message)


def _graph_findings(file: Path, model: str, version: int, config: ModelConfig) -> Iterator[Finding]:
    if not config.inputs or not config.outputs:
        return  # left to the server to complete from the graph
    try:
        check_config_against_graph(
            config, open_session(file, optimize=False).inferred_signature(), model=model
        )
    except SignatureMismatch as error:
        message = f"model '{model}', version {version}: {error}"
        yield Finding("config-graph-mismatch", ERROR, model, file, message)
    except ConverterError as error:
        yield Finding("model-unloadable", ERROR, model, file, f"model '{model}', version {version}: {error}")
