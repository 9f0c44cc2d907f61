"""Samples at decisions of trees of unusual shape."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._trees.edges import NUM_STEPS, asked_note, edge_rows
from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree, check_trees


def chain(length: int) -> Forest:
    """One tree, in which each decision hangs on the no of the one before: feature k % 3 <= k."""
    count = 2 * length + 1
    place = np.arange(length)
    feature, yes, no = np.full(count, LEAF), np.zeros(count, np.int64), np.zeros(count, np.int64)
    threshold, values = np.zeros(count), np.arange(count, dtype=np.float64)[:, None]
    feature[0:-1:2], threshold[0:-1:2] = place % 3, place
    yes[0:-1:2], no[0:-1:2] = 2 * place + 1, 2 * place + 2
    tree = Tree(feature, threshold, yes, no, np.zeros(count, bool), values)
    check_trees([tree], num_features=3, num_outputs=1)
    return Forest((tree,), 3, 1, np.zeros(1), strict=False)


def test_depths_count_the_decisions_above() -> None:
    assert chain(3).trees[0].depths().tolist() == [0, 1, 1, 2, 2, 3, 3]


def test_every_decision_of_a_short_chain_is_asked() -> None:
    forest = chain(30)
    rows = edge_rows(forest)
    assert len(rows["thresholds"]) == 60
    assert asked_note(forest, rows) is None


def test_a_long_chain_is_asked_at_as_many_decisions_as_can_be_reached_in_time() -> None:
    forest = chain(20_000)
    rows = edge_rows(forest)
    asked = len(rows["thresholds"]) // 2
    assert 0 < asked * 10_000 <= NUM_STEPS
    note = asked_note(forest, rows)
    assert note is not None
    assert f"20000 decisions; the probes ask {asked} of them" in note
