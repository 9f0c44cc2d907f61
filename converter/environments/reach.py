"""Whether the module of a factory can be found where it will be imported: seen before anything is built or run.

A child in an environment imports from its own packages and from the working directory, and from nowhere else
(`isolated.py`). Nothing is imported to find out, since importing runs code.
"""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from paritygate.converter.checkpoints.factories import module_of
from paritygate.converter.environments.manager import find
from paritygate.converter.environments.pins import canonical, read_pins
from paritygate.converter.environments.specs import EnvironmentSpec
from paritygate.converter.errors import SourceNotFound

_BROUGHT_UNDER_OTHER_NAMES = frozenset(
    {
        "PIL", "clang", "examples", "flaxlib_src", "functorch", "google", "grpc", "isympy", "paddle",
        "pkg_resources", "sklearn", "tests", "tlz", "tools", "torchgen", "yaml",
    }
)  # fmt: skip
"""Modules of pinned packages whose names do not tell: which wheel brings which is known once it is installed."""


def refuse_unreachable(factory: str, spec: EnvironmentSpec) -> None:
    """Refuse a factory whose module a child in an environment could not find.

    Args:
        factory: `module:function`.
        spec: The environment; it need not be built.

    Raises:
        SourceNotFound: If there is no such module, neither in the environment nor in the working directory.
        FactoryError: If it is no `module:function`.
    """
    name = module_of(factory)
    top, _, below = name.partition(".")
    if _comes_with(spec, top):
        return
    here = str(Path.cwd())
    found = importlib.machinery.PathFinder.find_spec(top, [here])
    if found is None:
        raise SourceNotFound(
            f"there is no module {top!r} for the factory {factory}: it is neither in {here} nor a package of "
            f"environment '{spec.name}', where it is imported.{_hint(top, here)}"
        )
    if below and not _has(found, below):
        raise SourceNotFound(f"there is no module {name!r} for the factory {factory}; {top} is in {here}.")


def _comes_with(spec: EnvironmentSpec, top: str) -> bool:
    """Whether Python or the environment brings a module; before it is built, whether it may."""
    if top in sys.stdlib_module_names:
        return True
    environment = find(spec.name)
    if environment is not None:
        packages = [str(folder) for folder in environment.directory.glob("lib/python*/site-packages")]
        if importlib.machinery.PathFinder.find_spec(top, packages) is not None:
            return True
    pins = [*read_pins(spec.requirements), *(read_pins(spec.supplement) if spec.supplement.exists() else ())]
    plain = canonical(top)
    return top in _BROUGHT_UNDER_OTHER_NAMES or any(
        pin == plain or pin.startswith(f"{plain}-") or pin.endswith(f"-{plain}") for pin in pins
    )


def _has(package: importlib.machinery.ModuleSpec, below: str) -> bool:
    """Whether a package's folders hold a module below it; True where its code may look elsewhere."""
    for part in below.split("."):
        if _finds_its_own(package):
            return True
        where: Sequence[str] = list(package.submodule_search_locations or ())
        found = importlib.machinery.PathFinder.find_spec(f"{package.name}.{part}", where) if where else None
        if found is None:
            return False
        package = found
    return True


def _finds_its_own(package: importlib.machinery.ModuleSpec) -> bool:
    """Whether the code of a module may change where those below it are found, or is not there to be read."""
    if package.origin is None:
        return False
    if not package.origin.endswith(".py"):
        return True
    text = Path(package.origin).read_bytes()
    return b"__path__" in text or b"sys.modules" in text


def _hint(top: str, here: str) -> str:
    near = difflib.get_close_matches(top, [module.name for module in pkgutil.iter_modules([here])], n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    if importlib.util.find_spec(top) is not None:
        return (
            " It is installed beside paritygate, which an environment does not see: run where its code lies."
        )
    return " Run in the folder that holds it."
