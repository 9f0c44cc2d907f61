"""What a weighted, sticky rollout costs a request: one routing decision against the hash alone."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from benchmarks.measure import Ratio, compare
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.routing import Facts, choose, compile_table

_ROLLOUT = """
schema: paritygate.rollout/v1
model: m
stable: 1
sticky: {header: x-user}
routes:
  - {name: testers, match: {headers: {x-tester: {exact: "yes"}}}, weights: {2: 100}}
  - weights: {1: 90, 2: 10}
"""


def run() -> Iterator[Ratio]:
    table = compile_table(parse_rollout(_ROLLOUT))
    facts = Facts({"x-user": "user-123", "accept": "*/*"}, {}, 0)
    yield compare(
        "routing: one decision (header rule, sticky weights) / xxh64 alone",
        lambda: choose(table, facts),
        lambda: xxhash.xxh64_intdigest(b"user-123"),
        rounds=15,
        calls_a=20_000,
        calls_b=20_000,
    )
