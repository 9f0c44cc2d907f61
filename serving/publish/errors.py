"""Errors of publishing and of reading a model repository.

PublishError
├── ModelNameInvalid         the name cannot be a folder in a Triton repository
├── NotProven                no passing certificate for exactly these bytes
├── BundleChanged            the bundle's files changed while they were being published
├── SignatureMismatch        the model does not fit the config that its versions share
├── ConfigInvalid            a config.pbtxt cannot be read, or says what Triton refuses
├── ForeignModel             the model's folder is not run by a version list, so publishing must not touch it
├── ModelNotFound            the repository has no such model or version
├── ModelUnservable          the model is there but cannot be loaded as its config says
└── RepositoryUnavailable    the repository cannot be read or written now
    └── RepositoryBusy       another publisher holds the model's lock
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class PublishError(Exception):
    """Base of all errors of this package: one sentence with what was given, expected, and what to do."""


class ModelNameInvalid(PublishError):
    """The name cannot be a folder of a model repository and part of a URL."""


class NotProven(PublishError):
    """There is no passing certificate for exactly these bytes, so nothing was published.

    Attributes:
        verdict: The certificate's verdict, or None where there is no certificate.
    """

    def __init__(self, message: str, *, verdict: str | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class BundleChanged(PublishError):
    """The bundle's files changed between the check and the copy; the copy was withdrawn.

    Attributes:
        file: The file whose bytes changed, relative to the bundle.
    """

    def __init__(self, message: str, *, file: str) -> None:
        super().__init__(message)
        self.file = file


class SignatureMismatch(PublishError):
    """The model does not fit the config.pbtxt that all versions of the model share.

    Attributes:
        faults: Every way in which it does not fit, one short text each.
    """

    def __init__(self, message: str, *, faults: Sequence[str]) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class ConfigInvalid(PublishError):
    """A config.pbtxt cannot be parsed, or holds what no Triton would accept.

    Attributes:
        model: The model that the config belongs to.
        path: The file, or None where the text came from elsewhere.
    """

    def __init__(self, message: str, *, model: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.model = model
        self.path = path


class ForeignModel(PublishError):
    """The model's folder was laid out by someone else in a way that publishing must not touch."""


class ModelNotFound(PublishError):
    """The repository has no such model, or the model no such version."""


class ModelUnservable(PublishError):
    """The model is in the repository but cannot be loaded as its config says.

    Attributes:
        model: The model.
        rule: The lint rule that found it.
    """

    def __init__(self, message: str, *, model: str, rule: str) -> None:
        super().__init__(message)
        self.model = model
        self.rule = rule


class RepositoryUnavailable(PublishError):
    """The repository cannot be read or written: missing, no permission, no space, a wrong file system."""


class RepositoryBusy(RepositoryUnavailable):
    """Another publisher held the model's lock for longer than this one was willing to wait."""
