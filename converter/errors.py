"""Errors of the converter package.

ConverterError
├── SourceError            the source cannot be opened as a model
│   ├── SourceNotFound     no such checkpoint, file or module
│   ├── UnsafeSource       opening it could run code; needs --trust
│   └── FactoryError       the user's factory is missing or raised
│       └── FrameworkMissing   it needs a framework that is not installed here
├── ExportError            the model cannot become ONNX
│   ├── ModuleMissing      what was opened needs a package that is not installed here
│   └── UnsupportedOperator  an operator has no ONNX form; names it and the module that uses it
├── BundleError            a bundle cannot be written or read
│   └── BundleCorrupt      bytes differ from the manifest, or a name leaves the directory
├── ModelInvalid           the bytes are no ONNX model that can be read or loaded
├── ModelRunError          a loaded model refused its inputs or failed while it ran
├── ParityError            a comparison could not be made (a failed comparison is a verdict, not an error)
├── RuntimeUnavailable     the runtime or provider asked for is not there
└── EnvironmentFailure     a framework environment cannot be built or its child died
"""

from __future__ import annotations

import re

_LONGEST_WORD = 500
"""Characters of a word without a blank; a hostile file may give anything a name of any length."""


class ConverterError(Exception):
    """Base of all errors of this package: one sentence with what was given, expected, and what to do.

    Names and texts of a hostile file may stand in it: what no terminal should be sent is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """The text with control characters, lone surrogates and the like as Python escapes, endless words cut short.

    Line breaks stay.
    """
    words = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][: _LONGEST_WORD - 1]}…", text)
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in words)


class SourceError(ConverterError):
    """The source cannot be opened as a model."""


class SourceNotFound(SourceError):
    """There is no such checkpoint, file, module or factory."""


class UnsafeSource(SourceError):
    """Opening the source could run code that it carries; it was not opened."""


class FactoryError(SourceError):
    """The user's factory is missing, raised, or did not give a model."""


class FrameworkMissing(FactoryError):
    """A factory needs a framework that is not installed here.

    Attributes:
        exporter: The exporter in whose environment the framework is.
    """

    def __init__(self, message: str, *, exporter: str) -> None:
        super().__init__(message)
        self.exporter = exporter


class ExportError(ConverterError):
    """The model was opened but cannot become ONNX."""


class ModuleMissing(ExportError):
    """What was opened needs a package that is not installed here.

    Attributes:
        module: Its import name.
    """

    def __init__(self, message: str, *, module: str) -> None:
        super().__init__(message)
        self.module = module


class UnsupportedOperator(ExportError):
    """An operator has no ONNX form.

    Attributes:
        operator: The operator, as its framework spells it.
        module: The module or layer that uses it, or None where the framework does not say.
    """

    def __init__(self, message: str, *, operator: str, module: str | None = None) -> None:
        super().__init__(message)
        self.operator = operator
        self.module = module


class BundleError(ConverterError):
    """A bundle cannot be written or read."""


class BundleCorrupt(BundleError):
    """The bytes of a bundle are not those that its manifest seals.

    Attributes:
        file: The offending file, relative to the bundle.
    """

    def __init__(self, message: str, *, file: str) -> None:
        super().__init__(message)
        self.file = file


class ModelInvalid(ConverterError):
    """The bytes are no ONNX model that can be read or loaded: truncated, foreign, or of an unknown form."""


class ModelRunError(ConverterError):
    """A loaded model refused its inputs or failed while it ran.

    Attributes:
        inputs_refused: Whether the runtime blames the values that it was given, such as an index out of range.
    """

    def __init__(self, message: str, *, inputs_refused: bool = False) -> None:
        super().__init__(message)
        self.inputs_refused = inputs_refused


class ParityError(ConverterError):
    """A comparison could not be made at all, which is never a pass."""


class RuntimeUnavailable(ConverterError):
    """The runtime or execution provider that was asked for is not the one that would run."""


class EnvironmentFailure(ConverterError):
    """A framework environment cannot be built, or the child in it died.

    Attributes:
        detail: The last lines that the failing command wrote, or an empty string.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
