"""TreeModels as one ai.onnx.ml ensemble that says which leaf each tree ends in; tables turn leaves into results.

The ensemble compares doubles with doubles, and leaf numbers are small whole numbers, so no decision and no score
is rounded. A PMML node tries its children in order, so it becomes a chain of binary nodes:

- a NaN makes every comparison false, which is what `none` asks for; other strategies get a test for NaN first
  (`x <= infinity` is false for NaN only) or let the missing value follow a branch;
- what one comparison cannot say (sets, compound predicates) is computed before as a column of 0 and 1;
- where a missing value may send the row to a child that is not next, the choice itself is computed before, as the
  number of the child.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_number, refuse
from paritygate.converter.exporters._pmml.emission.graph import ML, Column, Graph, Truth
from paritygate.converter.exporters._pmml.emission.models import Place, Result
from paritygate.converter.exporters._pmml.emission.predicates import emit_predicate, predicate_of
from paritygate.converter.exporters._pmml.emission.scope import Fields, value_of

_INT64, _DOUBLE = onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE

_MODES = {
    "lessThan": "BRANCH_LT", "lessOrEqual": "BRANCH_LEQ", "greaterThan": "BRANCH_GT",
    "greaterOrEqual": "BRANCH_GTE", "equal": "BRANCH_EQ",
}  # fmt: skip
_OPPOSITES = {
    ("lessThan", "greaterOrEqual"), ("greaterOrEqual", "lessThan"), ("lessOrEqual", "greaterThan"),
    ("greaterThan", "lessOrEqual"), ("equal", "notEqual"), ("notEqual", "equal"),
}  # fmt: skip

_NO_CHILD, _MISSING = -1.0, -2.0
_ALWAYS = "always"


@dataclass(frozen=True)
class _Test:
    """One comparison of a column with a number.

    Attributes:
        column: What is compared.
        mode: The mode of the ensemble's node.
        bound: With what.
        turned: Whether the child is behind the false branch.
    """

    column: Column
    mode: str
    bound: float
    turned: bool = False


@dataclass(frozen=True)
class Leaves:
    """What the leaves of some trees stand for, one row a leaf.

    Attributes:
        numbers: Scores, NaN where there is none.
        labels: Classes, -1 where there is none.
        shares: Probabilities; None if some leaf has none to give.
    """

    numbers: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    shares: list[tuple[float, ...] | None] = field(default_factory=list)


class Forest:
    """Trees that are written as one ensemble."""

    def __init__(self, graph: Graph, classes: Sequence[str]) -> None:
        self.graph = graph
        self.classes = tuple(classes)
        self.leaves = Leaves()
        self._columns: dict[str, int] = {}
        self._nodes = _Nodes()
        self._offsets: list[int] = []
        self.shares_known = True

    def add(self, tree: Element, fields: Fields) -> None:
        """Add one TreeModel."""
        _Planter(self, tree, fields, len(self._offsets)).plant()

    def new_tree(self) -> None:
        """Remember where the leaves of a tree begin."""
        self._offsets.append(len(self.leaves.labels))

    def feature(self, name: str) -> int:
        """The number of a column among the ensemble's inputs."""
        return self._columns.setdefault(name, len(self._columns))

    @property
    def nodes(self) -> _Nodes:
        """The nodes so far."""
        return self._nodes

    def leaf_numbers(self) -> str:
        """int64[rows, trees]: in which leaf each row ends, counted over all trees."""
        graph = self.graph
        names = list(self._columns) or [graph.rows]
        matrix = graph.side_by_side(names)
        ends = graph.op(
            "TreeEnsembleRegressor", matrix, domain=ML, **self._nodes.attributes(len(self._offsets))
        )
        own = graph.cast(ends, _INT64)
        return graph.op("Add", own, graph.constant(np.array([self._offsets], dtype=np.int64)))

    def results(self) -> tuple[str, str, str | None]:
        """(numbers[rows, trees], labels[rows, trees], shares[rows, trees, classes]); empty where none are."""
        graph, ends = self.graph, self.leaf_numbers()
        if not self.classes:
            table = np.array(self.leaves.numbers, dtype=np.float64)
            return graph.op("Gather", graph.constant(table), ends, axis=0), "", None
        labels = graph.op(
            "Gather", graph.constant(np.array(self.leaves.labels, dtype=np.int64)), ends, axis=0
        )
        if not self.shares_known:
            return "", labels, None
        nothing = (math.nan,) * len(self.classes)
        table = np.array([s or nothing for s in self.leaves.shares], dtype=np.float64)
        return "", labels, graph.op("Gather", graph.constant(table), ends, axis=0)


def emit_tree(element: Element, place: Place) -> Result:
    """One TreeModel by itself."""
    forest = Forest(place.graph, place.classes)
    forest.add(element, place.fields)
    numbers, labels, shares = forest.results()
    if not place.classes:
        return Result(numbers)
    if shares is None:
        return Result(label=labels)
    flat = place.graph.op("Reshape", shares, place.graph.ints(-1, len(place.classes)))
    return Result(label=labels, shares=flat)


@dataclass
class _Nodes:
    """The ensemble's attributes as they grow."""

    trees: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    tracks: list[int] = field(default_factory=list)
    leaf_trees: list[int] = field(default_factory=list)
    leaf_ids: list[int] = field(default_factory=list)
    leaf_numbers: list[float] = field(default_factory=list)

    def branch(
        self, tree: int, at: int, feature: int, mode: str, bound: float, yes: int, no: int, track: bool
    ) -> None:
        self._add(tree, at, feature, mode, bound, yes, no, int(track))

    def leaf(self, tree: int, at: int, number: int) -> None:
        self._add(tree, at, 0, "LEAF", 0.0, 0, 0, 0)
        self.leaf_trees.append(tree)
        self.leaf_ids.append(at)
        self.leaf_numbers.append(float(number))

    def _add(
        self, tree: int, at: int, feature: int, mode: str, bound: float, yes: int, no: int, track: int
    ) -> None:
        self.trees.append(tree)
        self.ids.append(at)
        self.features.append(feature)
        self.modes.append(mode)
        self.bounds.append(bound)
        self.yes.append(yes)
        self.no.append(no)
        self.tracks.append(track)

    def attributes(self, num_trees: int) -> dict[str, object]:
        """As TreeEnsembleRegressor takes them, nodes in the order of their trees and numbers."""
        order = np.lexsort((np.array(self.ids), np.array(self.trees)))
        tracks = {"nodes_missing_value_tracks_true": _at(self.tracks, order)} if any(self.tracks) else {}
        return {
            "n_targets": num_trees,
            "nodes_treeids": _at(self.trees, order),
            "nodes_nodeids": _at(self.ids, order),
            "nodes_featureids": _at(self.features, order),
            "nodes_modes": [self.modes[k] for k in order],
            "nodes_values_as_tensor": numpy_helper.from_array(
                np.array(self.bounds, dtype=np.float64)[order], "bounds"
            ),
            "nodes_truenodeids": _at(self.yes, order),
            "nodes_falsenodeids": _at(self.no, order),
            "target_treeids": self.leaf_trees,
            "target_nodeids": self.leaf_ids,
            "target_ids": self.leaf_trees,
            "target_weights_as_tensor": numpy_helper.from_array(
                np.array(self.leaf_numbers, dtype=np.float64), "leaves"
            ),
            **tracks,
        }


def _at(values: list[int], order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    return [int(v) for v in np.array(values, dtype=np.int64)[order]]


class _Planter:
    """Writes one tree into a forest, without recursion."""

    def __init__(self, forest: Forest, tree: Element, fields: Fields, index: int) -> None:
        self.forest, self.graph, self.fields, self.index = forest, forest.graph, fields, index
        self.top = tree.child("Node")
        self.strategy = tree.get("missingValueStrategy", "none")
        if self.strategy not in ("none", "lastPrediction", "nullPrediction", "defaultChild"):
            raise refuse(
                tree, f"missingValueStrategy {self.strategy!r}", "Replace missing values in the MiningSchema."
            )
        self.last_wins = tree.get("noTrueChildStrategy", "returnNullPrediction") == "returnLastPrediction"
        self._next = 0
        self._begin = 0
        self._leaves: dict[Element | None, int] = {}
        self._todo: list[tuple[Element, int]] = []

    def plant(self) -> None:
        self.forest.new_tree()
        self._begin = len(self.forest.leaves.labels)
        at = self._new()
        predicate = predicate_of(self.top)
        if predicate.tag != "True":
            truth = emit_predicate(predicate, self.fields)
            inside, outside = self._new(), self._new()
            self._branch(at, self._as_test(truth), inside, outside, track=False)
            self._leaf(outside, None)
            at = inside
        self._todo.append((self.top, at))
        while self._todo:
            node, at = self._todo.pop()
            children = node.all("Node")
            if children:
                self._split(node, children, at)
            else:
                self._leaf(at, node)

    # --- one split ------------------------------------------------------------------------------------------

    def _split(self, node: Element, children: list[Element], at: int) -> None:
        children = _up_to_always(children)
        tests = [self._test(predicate_of(child)) for child in children]
        if self.strategy == "none" or not any(map(_may_be_open, tests)):
            self._chain(node, children, [self._ready(test) for test in tests], at)
            return
        compared = [test for test in tests if test is not _ALWAYS]
        names = {test.column.name if isinstance(test, _Test) else "" for test in compared}
        if len(names) > 1 or "" in names:
            self._split_by_number(node, children, at)
            return
        ready = [self._ready(test) for test in tests]
        if self.strategy == "defaultChild":
            self._chain(node, children, ready, at, tracking=self._default_of(node, children))
        else:
            self._split_where_there(node, children, ready, at)

    def _split_where_there(
        self, node: Element, children: list[Element], tests: Sequence[_Test | None], at: int
    ) -> None:
        """A missing value ends the way; all others go on as if none could be missing."""
        first = tests[0]
        assert first is not None, "a split that only asks nothing cannot be open"
        there, gone = self._new(), self._new()
        self._branch(at, _Test(first.column, "BRANCH_LEQ", math.inf), there, gone, track=False)
        self._leaf(gone, node if self.strategy == "lastPrediction" else None)
        self._chain(node, children, tests, there, present=True)

    def _default_of(self, node: Element, children: list[Element]) -> int:
        wanted = node.need("defaultChild")
        for k, child in enumerate(children):
            if child.get("id") == wanted:
                return k
        raise malformed(node, f"defaultChild {wanted!r} is none of its children")

    def _chain(
        self, node: Element, children: list[Element], tests: Sequence[_Test | None], at: int, *,
        tracking: int | None = None, present: bool = False,
    ) -> None:  # fmt: skip
        """Test after test; behind the last one no child holds.

        Args:
            tracking: The child that a missing value goes to.
            present: Whether the value is surely there.
        """
        sure = tracking is not None or present or not any(t is not None and t.column.may_miss for t in tests)
        last = len(children) - 1
        for k, (child, test) in enumerate(zip(children, tests, strict=True)):
            if test is None or (
                k == last and k > 0 and sure and _completes(children[k - 1 :], tests[k - 1 :])
            ):
                self._todo.append((child, at))
                return
            yes, no = self._new(), self._new()
            self._branch(at, test, yes, no, track=k == tracking)
            self._todo.append((child, yes))
            at = no
        self._leaf(at, node if self.last_wins else None)

    def _split_by_number(self, node: Element, children: list[Element], at: int) -> None:
        """The choice among the children is computed before: its number, or why there is none."""
        graph = self.graph
        default = float(self._default_of(node, children)) if self.strategy == "defaultChild" else _MISSING
        choice = graph.filled(_NO_CHILD)
        for k in range(len(children) - 1, -1, -1):
            truth = emit_predicate(predicate_of(children[k]), self.fields)
            if truth.open is not None:
                choice = graph.where(truth.open, graph.number(default), choice)
            choice = graph.where(truth.true, graph.number(float(k)), choice)
        column = Column(choice, "double", False)
        for k, child in enumerate(children):
            yes, no = self._new(), self._new()
            self._branch(at, _Test(column, "BRANCH_EQ", float(k)), yes, no, track=False)
            self._todo.append((child, yes))
            at = no
        no_child, gone = self._new(), self._new()
        self._branch(at, _Test(column, "BRANCH_EQ", _NO_CHILD), no_child, gone, track=False)
        self._leaf(no_child, node if self.last_wins else None)
        self._leaf(gone, node if self.strategy == "lastPrediction" else None)

    # --- tests ----------------------------------------------------------------------------------------------

    def _test(self, predicate: Element) -> _Test | Truth | str:
        """A predicate as one comparison where it is one, else as a truth that is computed before."""
        if predicate.tag == "True":
            return _ALWAYS
        sign = predicate.get("operator")
        if predicate.tag != "SimplePredicate" or sign not in (*_MODES, "notEqual"):
            return emit_predicate(predicate, self.fields)
        column = self.fields.column(predicate.need("field"), predicate)
        bound = value_of(self.graph, predicate.need("value"), column.data_type, predicate)
        if sign == "notEqual":
            return _Test(column, "BRANCH_EQ", bound, turned=True)
        if column.data_type == "string" and sign != "equal":
            raise refuse(
                predicate, f"{sign} on texts", "Compare texts with equal, notEqual, isIn or isNotIn."
            )
        return _Test(column, _MODES[sign], bound)

    def _ready(self, test: _Test | Truth | str) -> _Test | None:
        """A test for the ensemble; None for one that always holds."""
        if isinstance(test, Truth):
            return self._as_test(test)
        return test if isinstance(test, _Test) else None

    def _as_test(self, truth: Truth) -> _Test:
        column = Column(self.graph.cast(truth.true, _DOUBLE), "double", False)
        return _Test(column, "BRANCH_GT", 0.5)

    # --- nodes ----------------------------------------------------------------------------------------------

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def _branch(self, at: int, test: _Test, yes: int, no: int, *, track: bool) -> None:
        """A node; a missing value goes to `no` unless it tracks, whichever branch that is."""
        feature = self.forest.feature(test.column.name)
        if test.turned:
            track = test.column.may_miss and not track
            yes, no = no, yes
        self.forest.nodes.branch(self.index, at, feature, test.mode, test.bound, yes, no, track)

    def _leaf(self, at: int, node: Element | None) -> None:
        if node not in self._leaves:
            self._leaves[node] = len(self.forest.leaves.labels) - self._begin
            self._outcome(node)
        self.forest.nodes.leaf(self.index, at, self._leaves[node])

    def _outcome(self, node: Element | None) -> None:
        leaves, classes = self.forest.leaves, self.forest.classes
        if not classes:
            text = None if node is None else node.attributes.get("score")
            leaves.numbers.append(math.nan if text is None or node is None else parse_number(text, node))
            leaves.labels.append(-1)
            return
        label, shares = (-1, None) if node is None else _class_of(node, classes)
        leaves.labels.append(label)
        leaves.shares.append(shares)
        if label >= 0 and shares is None:
            self.forest.shares_known = False


def _up_to_always(children: list[Element]) -> list[Element]:
    """The children that can be reached: none behind one that always holds."""
    for k, child in enumerate(children):
        if predicate_of(child).tag == "True":
            return children[: k + 1]
    return children


def _may_be_open(test: _Test | Truth | str) -> bool:
    if isinstance(test, Truth):
        return test.open is not None
    return isinstance(test, _Test) and test.column.may_miss


def _completes(children: Sequence[Element], tests: Sequence[_Test | None]) -> bool:
    """Whether the second of two children holds wherever the first does not, if the value is there."""
    first, second = tests
    if first is None or second is None or first.column != second.column or first.bound != second.bound:
        return False
    return tuple(predicate_of(child).get("operator") for child in children) in _OPPOSITES


def _class_of(node: Element, classes: Sequence[str]) -> tuple[int, tuple[float, ...] | None]:
    entries = node.all("ScoreDistribution")
    shares: tuple[float, ...] | None = None
    score = node.attributes.get("score")
    if entries:
        counts = dict.fromkeys(classes, 0.0)
        told = all("probability" in e.attributes for e in entries)
        for e in entries:
            if e.need("value") not in counts:
                raise malformed(e, f"{e.get('value')!r} is none of the classes {list(classes)}")
            counts[e.need("value")] = e.number("probability" if told else "recordCount")
        total = 1.0 if told else sum(counts.values())
        shares = tuple(count / total for count in counts.values())
        if score is None:
            records = {e.need("value"): e.number("recordCount") for e in entries}
            score = max(records, key=records.__getitem__)
    if score is None:
        return -1, None
    if score not in classes:
        raise malformed(node, f"score {score!r} is none of the classes {list(classes)}")
    return list(classes).index(score), shares
