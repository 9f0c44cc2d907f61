"""TreeModel: from the root to the first child that holds, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_number, refuse
from paritygate.converter.exporters._pmml.scoring.models import NOTHING, Core, Outcome, Setting
from paritygate.converter.exporters._pmml.scoring.predicates import Test, predicate_in, read_predicate
from paritygate.converter.exporters._pmml.scoring.values import Scope


@dataclass
class _Node:
    test: Test
    outcome: Outcome
    children: list[_Node] = field(default_factory=list)
    default: _Node | None = None


def read_tree(element: Element, setting: Setting) -> Core:
    """A TreeModel as a function of a row."""
    strategy = element.get("missingValueStrategy", "none")
    if strategy not in ("none", "lastPrediction", "nullPrediction", "defaultChild"):
        raise refuse(
            element, f"missingValueStrategy {strategy!r}",
            "none, lastPrediction, nullPrediction and defaultChild are; or replace missing values before.",
        )  # fmt: skip
    last_wins = element.get("noTrueChildStrategy", "returnNullPrediction") == "returnLastPrediction"
    root = _read_nodes(element.child("Node"), setting, needs_default=strategy == "defaultChild")

    def score(scope: Scope) -> Outcome:
        if root.test(scope) is not True:
            return NOTHING
        node = root
        while node.children:
            following = _step(node, scope, strategy)
            if following is None:
                return node.outcome if last_wins else NOTHING
            if isinstance(following, Outcome):
                return following
            node = following
        return node.outcome

    return score


def _step(node: _Node, scope: Scope, strategy: str) -> _Node | Outcome | None:
    """The child to go to, the outcome that a missing value decides, or None if no child holds."""
    for child in node.children:
        holds = child.test(scope)
        if holds:
            return child
        if holds is None and strategy == "defaultChild":
            return node.default
        if holds is None and strategy != "none":
            return node.outcome if strategy == "lastPrediction" else NOTHING
    return None


def _read_nodes(top: Element, setting: Setting, *, needs_default: bool) -> _Node:
    """The nodes below an element, without recursion: trees may be deeper than Python's stack."""
    read_outcome: Callable[[Element, Setting], Outcome] = _class_of if setting.classes else _number_of
    root = _Node(read_predicate(predicate_in(top), setting.types), read_outcome(top, setting))
    stack = [(top, root)]
    while stack:
        element, node = stack.pop()
        by_id: dict[str, _Node] = {}
        for child in element.children:
            if child.tag in ("EmbeddedModel", "Regression", "DecisionTree"):
                raise refuse(child, "a model inside a node", "Write it as a MiningModel with segments.")
            if child.tag != "Node":
                continue
            made = _Node(read_predicate(predicate_in(child), setting.types), read_outcome(child, setting))
            node.children.append(made)
            by_id[child.get("id")] = made
            stack.append((child, made))
        if node.children and needs_default:
            node.default = by_id.get(element.need("defaultChild"))
            if node.default is None:
                raise malformed(
                    element, f"defaultChild {element.get('defaultChild')!r} is none of its children"
                )
    return root


def _number_of(element: Element, setting: Setting) -> Outcome:
    score = element.attributes.get("score")
    return NOTHING if score is None else Outcome(parse_number(score, element))


def _class_of(element: Element, setting: Setting) -> Outcome:
    entries = element.all("ScoreDistribution")
    shares = _shares(entries, element, setting) if entries else None
    score: Any = element.attributes.get("score")
    if score is None and shares is not None:
        counts = {e.need("value"): e.number("recordCount") for e in entries}
        score = max(counts, key=lambda name: counts[name])
    if score is None:
        return NOTHING
    if score not in setting.classes:
        raise malformed(element, f"score {score!r} is none of the classes {list(setting.classes)}")
    return Outcome(score, shares)


def _shares(entries: list[Element], element: Element, setting: Setting) -> tuple[float, ...]:
    """Probabilities as the distribution gives them, else shares of its record counts."""
    given = [e for e in entries if "probability" in e.attributes]
    if given and len(given) != len(entries):
        raise malformed(element, "only some of its ScoreDistributions have a probability")
    key = "probability" if given else "recordCount"
    found = {e.need("value"): e.number(key) for e in entries}
    odd = [name for name in found if name not in setting.classes]
    if odd:
        raise malformed(
            element, f"the distribution names {odd[0]!r}, none of the classes {list(setting.classes)}"
        )
    total = 1.0 if given else sum(found.values())
    if total <= 0:
        raise malformed(element, "the records of its distribution sum to nothing")
    return tuple(found.get(name, 0.0) / total for name in setting.classes)
