"""Facades: the protocols that clients speak, each a thin translation to and from the one data plane.

A new protocol is one file and one line in `FACADES`.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paritygate.serving.facades.base import Facade

FACADES: dict[str, str] = {
    "v2_rest": "paritygate.serving.facades.v2_rest:RestFacade",
    "v2_grpc": "paritygate.serving.facades.v2_grpc:GrpcFacade",
    "admin": "paritygate.serving.facades.admin:AdminFacade",
    "metrics": "paritygate.serving.facades.metrics:MetricsFacade",
}


def get_facade(name: str) -> type[Facade]:
    """The facade of this name, imported on first use.

    Raises:
        ValueError: If there is none; the message lists the known ones.
    """
    if name not in FACADES:
        raise ValueError(f"there is no facade '{name}'; known: {', '.join(sorted(FACADES))}.")
    facade: type[Facade] = pkgutil.resolve_name(FACADES[name])
    return facade
