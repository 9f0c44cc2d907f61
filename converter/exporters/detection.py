"""Which exporter a source belongs to: a model by its type, a file by its content, a factory by what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.hugging_face import CONFIG_FILE
from paritygate.converter.checkpoints.sniffing import advice_on, look_at
from paritygate.converter.errors import FactoryError, FrameworkMissing, SourceError, SourceNotFound
from paritygate.converter.names import FRAMEWORK_MODULES


def detect(source: Any) -> str:
    """The name of the exporter that a source belongs to.

    A `module:function` is built and told from what it gives, since its name says nothing.

    Raises:
        SourceError: If no exporter, or more than one, says that it is its own.
        FactoryError: If a factory cannot be built.
        FrameworkMissing: If it cannot be built because a framework is not installed here.
    """
    if is_factory(source) and not Path(source).exists():
        return _detect_built(source)
    if isinstance(source, str | Path):
        return _detect_path(Path(source))
    return _claimed(source, f"a {type(source).__module__}.{type(source).__qualname__}")


def _detect_path(path: Path) -> str:
    _refuse_a_part(path)
    form = look_at(path)
    if form is not None and form.exporters:
        return form.exporters[0]
    if form is not None:
        raise SourceError(f"{path} is {form.words}. {advice_on(form, path)}")
    return _claimed(path, str(path))


def _refuse_a_part(path: Path) -> None:
    """What is a part of a model, or all of it but a part, is told as that."""
    if path.name in ("saved_model.pb", "saved_model.pbtxt") and path.is_file():
        raise SourceError(f"{path} is one file of a SavedModel; give its directory, {path.resolve().parent}.")
    if path.is_dir() and (path / CONFIG_FILE).is_file() and look_at(path) is None:
        raise SourceError(
            f"{path} has a {CONFIG_FILE} as Hugging Face directories have, and no weights beside it "
            "(model.safetensors or pytorch_model.bin). Save the model there whole: model.save_pretrained(...)."
        )


def _detect_built(factory: str) -> str:
    try:
        return detect(build(factory).model)
    except FactoryError as error:
        missing = _missing_framework(error)
        if missing not in FRAMEWORK_MODULES:
            raise
        raise FrameworkMissing(
            f"factory {factory} needs {missing}, which is not installed here. Install it beside paritygate, or "
            f"run `paritygate export`, which uses an environment of its own.",
            exporter=FRAMEWORK_MODULES[missing],
        ) from error


def taken_for_another(error: Exception, source: Any, exporter: str) -> FactoryError | None:
    """What is said where a factory needs another framework than the one its source was taken for.

    Args:
        error: What the export raised.
        source: What was to be exported.
        exporter: The name of its exporter.

    Returns:
        The same error with what the source was taken for and which framework to name; None for other errors.
    """
    missing = _missing_framework(error) if isinstance(error, FactoryError) else ""
    meant = FRAMEWORK_MODULES.get(missing, exporter)
    if meant == exporter or not isinstance(source, str | Path):
        return None
    named = f"give --framework {meant} (framework={meant!r})"
    form = None if is_factory(source) and not Path(source).exists() else look_at(Path(source))
    taken = f"{source} is {form.words} and was" if form is not None else f"{source} was"
    taken = f"{error} {taken} taken for one of framework {exporter!r}"
    if form is None or meant in form.exporters:
        return FactoryError(f"{taken}; if its model is one of {meant}, {named}.")
    return FactoryError(
        f"{taken}, and the {meant} exporter does not read that. Name a factory (--factory, factory=) that builds "
        f"the model in {exporter}, without {missing}."
    )


def _missing_framework(error: BaseException) -> str:
    """The package that a factory could not import; empty if that was not what hindered it."""
    cause = error.__cause__
    return (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""


def _claimed(source: Any, shown: str) -> str:
    from paritygate.converter.exporters import EXPORTERS, get_exporter

    claims = [name for name in EXPORTERS if get_exporter(name).recognises(source)]
    if len(claims) == 1:
        return claims[0]
    if isinstance(source, Path) and not source.exists() and not claims:
        raise SourceNotFound(
            f"there is no file {shown}; expected a checkpoint, a saved model, or module:factory."
        )
    said = f"{claims} all read it" if claims else _what_it_is_not(source)
    raise SourceError(
        f"cannot tell the framework of {shown}: {said}. Name it (framework=, or --framework), "
        f"one of {sorted(EXPORTERS)}."
    )


def _what_it_is_not(source: Any) -> str:
    if not isinstance(source, Path):
        return "no exporter knows it"
    if source.is_dir():
        names = sorted(entry.name for entry in source.iterdir())
        return f"it is a folder with {', '.join(names[:4])} ..." if names else "it is an empty folder"
    with source.open("rb") as file:
        head = file.read(8)
    return f"it begins with {head!r}, as no form that is known" if head else "it is empty"
