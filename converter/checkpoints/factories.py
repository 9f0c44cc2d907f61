"""`module:function`: the user's own code that builds a network. It is run because the user named it."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from paritygate.converter.errors import FactoryError, SourceNotFound

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_FORM = re.compile(rf"(?P<module>{_MODULE.pattern}):(?P<name>{_MODULE.pattern})")
_FILE_FORM = re.compile(rf"(?P<path>[^:\0]+\.py):(?P<name>{_MODULE.pattern})")


@dataclass(frozen=True)
class Built:
    """What a factory gave.

    Attributes:
        model: The model.
        example: Example inputs, where the factory gave `(model, example)`; else None.
    """

    model: Any
    example: Any = None


def is_factory(source: Any) -> bool:
    """Whether a source is a text of the form `module:function`."""
    return isinstance(source, str) and _FORM.fullmatch(source) is not None


def build(factory: str) -> Built:
    """Import a module from sys.path or the working directory, and call its factory without arguments.

    Args:
        factory: `module:function`. A class is called too; a model that stands there ready is taken as it is.

    Raises:
        SourceNotFound: If there is no such module.
        FactoryError: If the module or the factory raises, or has no such name; one line with file and line.
    """
    name = module_of(factory)
    with working_directory_on_path():
        module = _import(name, factory)
        target = _attribute(module, factory.partition(":")[2], factory)
        made = _call(target, module, factory) if _is_factory_function(target) else target
    return Built(*made) if isinstance(made, tuple) and len(made) == 2 else Built(made)


def module_of(factory: str) -> str:
    """The module that a factory names; nothing is looked for.

    Raises:
        FactoryError: If the text is no `module:function`, or names a file; it says how that is written.
    """
    refuse_file_name(factory)
    match = _FORM.fullmatch(factory)
    if match is None:
        raise FactoryError(f"{factory!r} is no factory; expected module:function, as in train:build_model.")
    return match["module"]


def refuse_file_name(text: str) -> None:
    """Refuse `net.py:build`, which Python would take for the module `py` in a package `net`.

    Raises:
        FactoryError: Naming the module of the file.
    """
    match = _FILE_FORM.fullmatch(text)
    if match is None or not Path(match["path"]).stem.isidentifier():
        return
    path, name = Path(match["path"]), match["name"]
    package = path.with_suffix("")
    if package.joinpath("py.py").exists() or package.joinpath("py").is_dir():
        return  # there is such a module, and Python finds it before the file
    *folders, stem = package.parts
    inside = ".".join([*folders, stem])
    if not path.is_absolute() and ".." not in folders and _MODULE.fullmatch(inside):
        raise FactoryError(f"{text!r} names a file, and a factory names its module. Write {inside}:{name}.")
    raise FactoryError(
        f"{text!r} names a file, and a factory names a module. Run in {path.parent} and write {stem}:{name}."
    )


@contextlib.contextmanager
def working_directory_on_path() -> Iterator[None]:
    """Let modules of the working directory be imported, as a script that runs there could."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _import(name: str, factory: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SourceNotFound(
                f"there is no module {error.name!r} for the factory {factory}; "
                f"looked on sys.path and in {Path.cwd()}."
            ) from error
        raise _raised(f"importing the module of factory {factory}", error, None) from error
    except (Exception, SystemExit) as error:
        raise _raised(f"importing the module of factory {factory}", error, None) from error


def _attribute(module: ModuleType, name: str, factory: str) -> Any:
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            near = difflib.get_close_matches(part, dir(target), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise FactoryError(f"{module.__file__} has no {name!r}, which {factory} names.{hint}")
        target = getattr(target, part)
    return target


def _is_factory_function(target: Any) -> bool:
    """A function or class is called; a model is callable too, but stands there ready."""
    stands_ready = hasattr(target, "forward") or hasattr(target, "predict")
    return isinstance(target, type) or (callable(target) and not stands_ready)


def _call(target: Any, module: ModuleType, factory: str) -> Any:
    needed = _needed(target)
    if needed:
        raise FactoryError(
            f"{factory} needs {', '.join(needed)}, and a factory is called without arguments. Name a function "
            "that gives the model; where this one is the model, write one that returns it."
        )
    try:
        return target()
    except (Exception, SystemExit) as error:
        raise _raised(f"factory {factory}", error, module) from error


def _needed(target: Any) -> list[str]:
    """Parameters without a default, as far as the signature is told."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _raised(what: str, error: BaseException, module: ModuleType | None) -> FactoryError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return FactoryError(f"{what} raised {said[:300]} ({_place(error, module)}).")


def _place(error: BaseException, module: ModuleType | None) -> str:
    """`file.py:12`: the deepest line of the factory's own file, or the deepest of any that is no library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if module is not None and f.filename == module.__file__]
    users = own or [f for f in frames if not _is_machinery(f.filename)] or list(frames)
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}"


def _is_machinery(filename: str) -> bool:
    library = "site-packages" in Path(filename).parts or filename.startswith(sys.base_prefix)
    return library or filename.startswith("<") or filename == __file__
