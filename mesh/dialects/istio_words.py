"""The names that the Istio renderer writes and its reader looks for."""

from __future__ import annotations

import re

BUCKET_HEADER = "x-pg-bucket"
"""The header that carries the bucket, four digits."""

MODEL = "paritygate/model"
STABLE = "paritygate/stable"
STICKY = "paritygate/sticky"
TOPOLOGY = "paritygate/topology"

_SUBSET = re.compile(r"v([1-9][0-9]{0,18})")


def subset_name(version: int) -> str:
    """The name of a version's subset, and the value of its pods' label."""
    return f"v{version}"


def no_bucket(version: int) -> str:
    """A value that the bucket header never has; a rule on it keeps the place of a version without a share."""
    return f"none-{subset_name(version)}"


def version_of_subset(name: object) -> int:
    """The version that a subset's name stands for.

    Raises:
        ValueError: If it is not a name that `subset_name` gives.
    """
    found = _SUBSET.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"subset '{name}' is not named after a version; expected v1, v2, ...")
    return int(found.group(1))
