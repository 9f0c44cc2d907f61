"""The dialects by name; a new one is one new file and one line here."""

from __future__ import annotations

import pkgutil
from typing import Any

from paritygate.mesh.dialects.base import Dialect
from paritygate.mesh.errors import UnknownDialect
from paritygate.mesh.types import Rollout
from paritygate.mesh.yaml_text import dump_documents

DIALECTS = {
    "istio": "paritygate.mesh.dialects.istio:IstioDialect",
}


def get_dialect(name: str) -> Dialect[Any]:
    """The dialect with this name.

    Raises:
        UnknownDialect: If there is none; lists the known ones.
    """
    if name not in DIALECTS:
        raise UnknownDialect(f"there is no dialect '{name}'; known are {', '.join(sorted(DIALECTS))}")
    dialect: Dialect[Any] = pkgutil.resolve_name(DIALECTS[name])()
    return dialect


def render_text(rollout: Rollout, to: str, target: Any = None) -> str:
    """A rollout as the YAML text of a dialect.

    Args:
        rollout: What to say.
        to: The dialect's name.
        target: The dialect's own target, or None for its defaults.

    Raises:
        UnknownDialect: If there is no such dialect.
        CannotExpress: If the dialect cannot say a field of the rollout.
    """
    return dump_documents(get_dialect(to).render(rollout, target))
