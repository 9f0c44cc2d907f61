"""Rollout file to Rollout and back: all faults at once, each with its path.

schema: paritygate.rollout/v1
model: digits
stable: 1
topology: gateway-header            # only `render` needs it
sticky: {header: x-user}            # or {parameter: user_id}
routes:                             # first fit wins
  - name: testers
    match: {headers: {x-tester: {exact: a}}}
    weights: {2: 100}
  - weights: {1: 90, 2: 10}         # the last route takes every request
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paritygate.mesh.config_reader import SCHEMA, RolloutReader
from paritygate.mesh.errors import Fault, RolloutInvalid
from paritygate.mesh.types import HeaderMatch, MatchKind, Rollout, Route, Weight
from paritygate.mesh.yaml_text import MAX_BYTES, dump_documents, load_document


def load_rollout(path: Path | str) -> Rollout:
    """Read a rollout file.

    Raises:
        RolloutInvalid: If it cannot be read, is not UTF-8, or has faults.
    """
    return parse_rollout(read_text(path), source=str(path))


def read_text(path: Path | str) -> str:
    """The text of a file from outside, at most one byte more than a reader would take.

    Raises:
        RolloutInvalid: If it cannot be read or is not UTF-8.
    """
    source = str(path)
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except OSError as error:
        raise RolloutInvalid(source, [Fault(f"cannot be read: {error.strerror}", "$")]) from error
    except UnicodeDecodeError as error:
        raise RolloutInvalid(source, [Fault(f"is not UTF-8 text (byte {error.start})", "$")]) from error


def parse_rollout(text: str, *, source: str = "rollout") -> Rollout:
    """Read the text of a rollout file.

    Args:
        text: YAML, or JSON, which is a part of it.
        source: The text's name, for errors.

    Raises:
        RolloutInvalid: With every fault and its path.
    """
    return rollout_from_value(load_document(text, source=source), source=source)


def rollout_from_value(value: object, *, source: str = "rollout") -> Rollout:
    """Check plain values, as a YAML or JSON reader gives them, and build the rollout.

    Raises:
        RolloutInvalid: With every fault and its path.
    """
    reader = RolloutReader()
    rollout = reader.rollout(value)
    if reader.faults or rollout is None:
        raise RolloutInvalid(source, reader.faults)
    return rollout


def rollout_to_value(rollout: Rollout) -> dict[str, Any]:
    """The rollout as plain values in the shape of a rollout file.

    Percents are numbers whose shortest text is exact. The order of weights has a meaning: never sort the keys.
    """
    value: dict[str, Any] = {"schema": SCHEMA, "model": rollout.model, "stable": rollout.stable}
    if rollout.topology:
        value["topology"] = rollout.topology.value
    if rollout.sticky:
        value["sticky"] = {rollout.sticky.source.value: rollout.sticky.name}
    value["routes"] = [_route_to_value(route) for route in rollout.routes]
    return value


def render_rollout(rollout: Rollout) -> str:
    """The rollout as the text of a rollout file; reading it gives the same rollout."""
    return dump_documents([rollout_to_value(rollout)])


def _route_to_value(route: Route) -> dict[str, Any]:
    value: dict[str, Any] = {"name": route.name}
    matches = [{"headers": {h.name: _condition_to_value(h) for h in m.headers}} for m in route.matches]
    if matches:
        value["match"] = matches[0] if len(matches) == 1 else matches
    value["weights"] = {w.version: _percent_number(w) for w in route.weights}
    return value


def _percent_number(weight: Weight) -> int | float:
    whole, rest = divmod(weight.basis_points, 100)
    return float(weight.percent) if rest else whole


def _condition_to_value(header: HeaderMatch) -> dict[str, Any]:
    return {header.kind.value: True if header.kind is MatchKind.PRESENT else header.value}
