"""One rollout of model versions, said in several dialects: rules, routing, state and the actions on it."""

from __future__ import annotations

from paritygate.mesh.config import load_rollout, parse_rollout, render_rollout
from paritygate.mesh.errors import MeshError, RolloutInvalid
from paritygate.mesh.explain import Explanation, explain, load_request
from paritygate.mesh.routing import Decision, Facts, RouteTable, choose, compile_table
from paritygate.mesh.types import Rollout

__all__ = [
    "Decision",
    "Explanation",
    "Facts",
    "MeshError",
    "Rollout",
    "RolloutInvalid",
    "RouteTable",
    "choose",
    "compile_table",
    "explain",
    "load_request",
    "load_rollout",
    "parse_rollout",
    "render_rollout",
]
