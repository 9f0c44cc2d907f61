"""Why a request goes where it goes, step by step, for people: `paritygate route ROLLOUT --request FILE`.

headers: {x-user: alice, x-tester: a}
parameters: {user_id: 17}
draw: 4711                     # only for requests without a key; left out, all shares are shown
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from paritygate.mesh.config import read_text
from paritygate.mesh.config_reader import nearest_hint
from paritygate.mesh.errors import Fault, RolloutInvalid
from paritygate.mesh.routing import (
    Facts,
    bucket_of,
    bucket_text,
    choose,
    compile_table,
    header_fits,
    sticky_key,
)
from paritygate.mesh.types import BUCKETS, Match, Rollout, Route
from paritygate.mesh.yaml_text import load_document


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """A request to explain.

    Attributes:
        headers: Headers by lower-case name.
        parameters: Parameters of the v2 protocol by name.
        draw: What chance says, 0 to 9999, or None to leave it open.
    """

    headers: Mapping[str, str]
    parameters: Mapping[str, object]
    draw: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request goes, and how that comes about.

    Attributes:
        rule: The route that takes it.
        version: The version that answers, or None where chance decides between several and no draw was given.
        bucket: Its bucket, or None where no draw was given.
        keyed: Whether the bucket comes from the request's key.
        shares: Percent of each version in that route, as text, by version.
        steps: One sentence a step.
    """

    rule: str
    version: int | None
    bucket: int | None
    keyed: bool
    shares: Mapping[int, str]
    steps: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain JSON values."""
        return {
            "rule": self.rule,
            "version": self.version,
            "bucket": self.bucket,
            "keyed": self.keyed,
            "shares": {str(version): percent for version, percent in self.shares.items()},
            "steps": list(self.steps),
        }


def load_request(path: Path | str) -> RequestFacts:
    """Read a request file, YAML or JSON with `headers`, `parameters` and `draw`.

    Raises:
        RolloutInvalid: If it cannot be read or has faults.
    """
    return parse_request(read_text(path), source=str(path))


def parse_request(text: str, *, source: str = "request") -> RequestFacts:
    """Read the text of a request file.

    Raises:
        RolloutInvalid: With every fault and its path.
    """
    value = load_document(text, source=source)
    known = ("headers", "parameters", "draw")
    if not isinstance(value, dict):
        raise RolloutInvalid(source, [Fault(f"must be a mapping with {', '.join(known)}", "$")])
    faults = [
        Fault(f"unknown key '{key}'; {nearest_hint(str(key), known)}", "$")
        for key in value
        if key not in known
    ]
    headers = _headers(value.get("headers"), faults)
    parameters = _parameters(value.get("parameters"), faults)
    draw = _draw(value.get("draw"), faults)
    if faults:
        raise RolloutInvalid(source, faults)
    return RequestFacts(headers, parameters, draw)


def explain(rollout: Rollout, request: RequestFacts) -> Explanation:
    """Say which route, bucket and version act on a request, and why."""
    steps: list[str] = []
    route = _taking_route(rollout, request.headers, steps)
    facts = Facts(request.headers, request.parameters, request.draw or 0)
    key, missing = sticky_key(rollout.sticky, facts)
    shares = {weight.version: weight.percent for weight in route.weights}
    if key is None and request.draw is None:
        reachable = [weight.version for weight in route.weights if weight.basis_points]
        split = ", ".join(f"{percent} % version {version}" for version, percent in shares.items())
        steps.append(f"chance decides, because {missing}: {split}")
        only = reachable[0] if len(reachable) == 1 else None
        return Explanation(route.name, only, None, False, shares, tuple(steps))
    decision = choose(compile_table(rollout), facts)
    if key is None:
        steps.append(f"bucket {bucket_text(decision.bucket)} is the draw, because {missing}")
    else:
        steps.append(
            f"bucket {bucket_text(bucket_of(key))} = xxh64({key[:60]!r}) mod {BUCKETS}: {rollout.sticky}"
        )
    steps.append(_range_step(route, decision.bucket))
    return Explanation(route.name, decision.version, decision.bucket, decision.keyed, shares, tuple(steps))


def _taking_route(rollout: Rollout, headers: Mapping[str, str], steps: list[str]) -> Route:
    for route in rollout.routes:
        if route.is_catch_all:
            steps.append(f"route '{route.name}' takes it: it takes every request")
            return route
        for match in route.matches:
            failures = _failures(match, headers)
            if not failures:
                steps.append(f"route '{route.name}' takes it: {match}")
                return route
            steps.append(f"route '{route.name}' does not: {', '.join(failures)}")
    raise AssertionError("the last route of a rollout takes every request")  # config.py keeps this true


def _failures(match: Match, headers: Mapping[str, str]) -> list[str]:
    return [
        f"{condition} does not hold ({_got(headers.get(condition.name))})"
        for condition in match.headers
        if not header_fits(condition, headers)
    ]


def _got(value: str | None) -> str:
    return "the header is absent" if value is None else f"got {value[:60]!r}"


def _range_step(route: Route, bucket: int) -> str:
    start = 0
    for weight in route.weights:
        end = start + weight.basis_points
        if start <= bucket < end:
            span = f"{bucket_text(start)} to {bucket_text(end - 1)}"
            return f"version {weight.version} has {weight.percent} %: buckets {span}"
        start = end
    raise AssertionError("the weights of a route sum to 10,000")  # config.py keeps this true


def _headers(value: object, faults: list[Fault]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, text in _items(value, "$.headers", faults):
        if not isinstance(key, str) or not isinstance(text, str):
            faults.append(Fault(f"header '{key}' must be text; put it in quotes", f"$.headers.{key}"))
        elif key.lower() in found:
            faults.append(Fault(f"header '{key}' is given twice; names know no case", f"$.headers.{key}"))
        else:
            found[key.lower()] = text.encode("utf-8").decode("latin-1")  # as the bytes arrive at a server
    return found


def _parameters(value: object, faults: list[Fault]) -> dict[str, object]:
    return {
        str(name): float(item) if isinstance(item, Decimal) else item
        for name, item in _items(value, "$.parameters", faults)
    }


def _items(value: object, path: str, faults: list[Fault]) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if value is not None:
        faults.append(Fault("must be a mapping of names to values", path))
    return []


def _draw(value: object, faults: list[Fault]) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < BUCKETS:
        return value
    faults.append(Fault(f"draw must be a whole number from 0 to {BUCKETS - 1}, got {value}", "$.draw"))
    return None
