"""A linear model or trees as PMML 4.4 text.

Trees are sums of regression trees, one sum for each score, and a RegressionModel at the end of the chain makes
probabilities of the sums. Comparisons are moved to the next number that the field's type can hold, so that a field
in single precision is decided as the ensemble decides it, also where its thresholds are doubles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import quoteattr

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.pmml.tabular import Columns, Scores, Tabular, TreeNode, Trees
from paritygate.converter.types import Array

_TARGET = "predicted"


def document_text(tabular: Tabular, name: str) -> str:
    """The whole document.

    Raises:
        ExportError: If a result would have the name of an input field, or a number has no PMML form.
    """
    _check_names(tabular)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<PMML xmlns="http://www.dmg.org/PMML-4_4" version="4.4">',
        '<Header><Application name="paritygate"/></Header>',
        *_dictionary(tabular),
        *(_classifier(tabular, name) if tabular.classes else _regression(tabular, name)),
        "</PMML>",
    ]
    return "\n".join(lines) + "\n"


def _target(tabular: Tabular) -> str:
    name = tabular.prediction or tabular.label or "class"
    return name if name not in tabular.fields else f"{name}_{_TARGET}"


def _check_names(tabular: Tabular) -> None:
    results = [_target(tabular)]
    if tabular.classes:
        results += [_label(tabular), *map(probability_field, tabular.classes)]
    taken = [name for name in results if name in tabular.fields]
    if taken:
        raise ExportError(
            f"the input field {taken[0]!r} has the name that a result of the PMML would have; export the model "
            "with another name for it (input_names=)."
        )
    if len(set(results)) != len(results):
        raise ExportError("two classes bear the same name, which PMML cannot tell apart.")


def _dictionary(tabular: Tabular) -> Iterator[str]:
    yield f'<DataDictionary numberOfFields="{len(tabular.fields) + 1}">'
    for name, kind in tabular.fields.items():
        yield f'<DataField name={quoteattr(name)} optype="continuous" dataType="{kind}"/>'
    if tabular.classes:
        kind = _kind(tabular)
        values = "".join(f"<Value value={quoteattr(name)}/>" for name in tabular.classes)
        yield f'<DataField name={quoteattr(_target(tabular))} optype="categorical" dataType="{kind}">'
        yield f"{values}</DataField>"
    else:
        yield f'<DataField name={quoteattr(_target(tabular))} optype="continuous" dataType="double"/>'
    yield "</DataDictionary>"


def _schema(fields: Sequence[str], target: str = "") -> str:
    told = f'<MiningField name={quoteattr(target)} usageType="target"/>' if target else ""
    return (
        f"<MiningSchema>{told}{''.join(f'<MiningField name={quoteattr(n)}/>' for n in fields)}</MiningSchema>"
    )


def _number(value: float) -> str:
    if math.isnan(value):
        raise ExportError("the model holds a weight or threshold that is NaN, which PMML cannot hold.")
    return repr(float(value)).replace("inf", "INF")


def _score(tabular: Tabular, row: int) -> str:
    """The name of a score between the segments, which no input field may have."""
    name = f"score_{row}"
    while name in tabular.fields:
        name += "_"
    return name


# --- regression ---------------------------------------------------------------------------------------------


def _regression(tabular: Tabular, name: str) -> Iterator[str]:
    scores, fields, target = tabular.scores, list(tabular.fields), _target(tabular)
    if scores.constant.size != 1 or scores.link == "softmax" or scores.shares:
        raise ExportError(
            f"output {tabular.prediction!r} holds {scores.constant.size} numbers a row; PMML is written of a "
            "regression of one number, and of classifiers with their labels. Export one target at a time."
        )
    if not isinstance(scores.source, Trees):
        yield (
            f'<RegressionModel modelName={quoteattr(name)} functionName="regression" '
            f'normalizationMethod="{scores.link}">{_schema(fields, target)}'
        )
        yield from _table(scores, 0)
        yield "</RegressionModel>"
    elif scores.link == "none":
        yield from _sum(scores, scores.source, 0, fields, target, name=name)
    else:
        yield from _chain(tabular, name, "regression", [0])


def _table(scores: Scores, row: int, category: str = "") -> Iterator[str]:
    """A linear score with the scaling of its fields worked in."""
    assert not isinstance(scores.source, Trees)
    columns = scores.columns
    weights: Array = scores.source[row] * columns.scale * scores.factor
    intercept = float(scores.constant[row]) - float(weights @ columns.offset)
    told = f" targetCategory={quoteattr(category)}" if category else ""
    yield f'<RegressionTable intercept="{_number(intercept)}"{told}>'
    for field, weight in zip(columns.fields, weights, strict=True):
        yield f'<NumericPredictor name={quoteattr(field)} coefficient="{_number(weight)}"/>'
    yield "</RegressionTable>"


# --- classification -----------------------------------------------------------------------------------------


def _classifier(tabular: Tabular, name: str) -> Iterator[str]:
    scores, count = tabular.scores, len(tabular.classes)
    given = scores.constant.size
    if given not in (1, count) or (given == 1 and not scores.positive):
        raise ExportError(f"the graph has {given} scores for {count} classes; expected one for each.")
    alone = scores.link == "logit" and count > 2
    if not isinstance(scores.source, Trees) and not alone and given == count:
        yield (
            f'<RegressionModel modelName={quoteattr(name)} functionName="classification" '
            f'normalizationMethod="{_method(scores, count)}">{_schema(list(tabular.fields), _target(tabular))}'
        )
        yield _output(tabular)
        if scores.link == "logit":
            yield from _table(scores, 0, tabular.classes[0])
            yield f'<RegressionTable intercept="0" targetCategory={quoteattr(tabular.classes[1])}/>'
        else:
            for row, category in enumerate(tabular.classes):
                yield from _table(scores, row, category)
        yield "</RegressionModel>"
        return
    yield from _chain(tabular, name, "classification", list(range(given)))


def _method(scores: Scores, count: int) -> str:
    if scores.link == "softmax":
        return "softmax"
    return "logit" if scores.link == "logit" and count == 2 else "simplemax"


def _output(tabular: Tabular) -> str:
    label = (
        f'<OutputField name={quoteattr(_label(tabular))} feature="predictedValue" optype="categorical" '
        f'dataType="{_kind(tabular)}"/>'
    )
    fields = "".join(
        f'<OutputField name={quoteattr(probability_field(name))} feature="probability" value={quoteattr(name)} '
        'optype="continuous" dataType="double"/>'
        for name in tabular.classes
    )
    return f"<Output>{label}{fields}</Output>"


def _kind(tabular: Tabular) -> str:
    return "integer" if tabular.whole_labels else "string"


def _label(tabular: Tabular) -> str:
    return f"predicted_{_target(tabular)}"


def label_field(tabular: Tabular) -> str:
    """The output field with the class."""
    return _label(tabular)


def prediction_field(tabular: Tabular) -> str:
    """The output field of a regression."""
    return _target(tabular)


def probability_field(category: str) -> str:
    """The output field with the probability of a class."""
    return f"probability({category})"


def _chain(tabular: Tabular, name: str, function: str, rows: Sequence[int]) -> Iterator[str]:
    """One segment a score, and one that makes the result of them."""
    fields, scores = list(tabular.fields), tabular.scores
    yield f'<MiningModel modelName={quoteattr(name)} functionName="{function}">{_schema(fields, _target(tabular))}'
    yield _output(tabular) if function == "classification" else ""
    yield '<Segmentation multipleModelMethod="modelChain">'
    alone = scores.link == "logit" and len(tabular.classes) > 2
    for row in rows:
        yield f'<Segment id="score_{row}"><True/>'
        if isinstance(scores.source, Trees):
            yield from _sum(scores, scores.source, row, fields, "", output=_score(tabular, row))
        else:
            link = "logit" if alone else "none"
            output = _score_output(_score(tabular, row))
            yield f'<RegressionModel functionName="regression" normalizationMethod="{link}">'
            yield _schema(fields) + output
            yield from _table(scores, row)
            yield "</RegressionModel>"
        yield "</Segment>"
    yield '<Segment id="result"><True/>'
    yield from _result(tabular, function, rows)
    yield "</Segment></Segmentation></MiningModel>"


def _score_output(name: str) -> str:
    return (
        f'<Output><OutputField name={quoteattr(name)} feature="predictedValue" optype="continuous" '
        'dataType="double" isFinalResult="false"/></Output>'
    )


def _result(tabular: Tabular, function: str, rows: Sequence[int]) -> Iterator[str]:
    scores, classes = tabular.scores, tabular.classes
    names = [_score(tabular, row) for row in rows]
    if function == "regression":
        yield f'<RegressionModel functionName="regression" normalizationMethod="{scores.link}">'
        yield _schema(names, _target(tabular)) + _weighted(names[0], "") + "</RegressionModel>"
        return
    if scores.link == "logit" and len(classes) > 2 and isinstance(scores.source, Trees):
        raise ExportError(
            "trees with a logistic link for each of several classes are not written as PMML; expected softmax, "
            "or two classes. Serve the bundle as it is."
        )
    method = "logit" if scores.positive else _method(scores, len(classes))
    yield f'<RegressionModel functionName="classification" normalizationMethod="{method}">'
    yield _schema(names, _target(tabular))
    if method == "logit":
        first, second = (classes[1], classes[0]) if scores.positive else (classes[0], classes[1])
        yield _weighted(names[0], first)
        yield f'<RegressionTable intercept="0" targetCategory={quoteattr(second)}/>'
    else:
        for score, category in zip(names, classes, strict=True):
            yield _weighted(score, category)
    yield "</RegressionModel>"


def _weighted(score: str, category: str) -> str:
    told = f" targetCategory={quoteattr(category)}" if category else ""
    predictor = f'<NumericPredictor name={quoteattr(score)} coefficient="1"/>'
    return f'<RegressionTable intercept="0"{told}>{predictor}</RegressionTable>'


# --- trees --------------------------------------------------------------------------------------------------


def _sum(
    scores: Scores,
    trees: Trees,
    row: int,
    fields: Sequence[str],
    target: str,
    *,
    name: str = "",
    output: str = "",
) -> Iterator[str]:
    told = f" modelName={quoteattr(name)}" if name else ""
    yield f'<MiningModel{told} functionName="regression">{_schema(fields, target)}'
    yield _score_output(output) if output else ""
    field = f" field={quoteattr(target)}" if target else ""
    yield (
        f'<Targets><Target{field} rescaleFactor="{_number(scores.factor)}" '
        f'rescaleConstant="{_number(scores.constant[row])}"/></Targets>'
    )
    yield '<Segmentation multipleModelMethod="sum">'
    for index, nodes in trees.nodes.items():
        yield f'<Segment id="tree_{index}"><True/><TreeModel functionName="regression" '
        yield f'missingValueStrategy="defaultChild" splitCharacteristic="binarySplit">{_schema(fields)}'
        yield from _tree(nodes, trees, row)
        yield "</TreeModel></Segment>"
    yield "</Segmentation></MiningModel>"


_SIGNS = {
    "BRANCH_LEQ": ("lessOrEqual", "greaterThan"), "BRANCH_LT": ("lessThan", "greaterOrEqual"),
    "BRANCH_GT": ("greaterThan", "lessOrEqual"), "BRANCH_GTE": ("greaterOrEqual", "lessThan"),
    "BRANCH_EQ": ("equal", "notEqual"), "BRANCH_NEQ": ("notEqual", "equal"),
}  # fmt: skip


def _tree(nodes: dict[int, TreeNode], trees: Trees, row: int) -> Iterator[str]:
    """The nodes from the root, without recursion."""
    behind = {k for node in nodes.values() if node.mode != "LEAF" for k in (node.yes, node.no)}
    root = next(number for number in nodes if number not in behind)
    stack: list[tuple[int, str] | None] = [(root, "<True/>")]
    while stack:
        entry = stack.pop()
        if entry is None:
            yield "</Node>"
            continue
        number, predicate = entry
        node = nodes[number]
        if node.mode == "LEAF":
            yield f'<Node id="{number}" score="{_number(node.weights.get(row, 0.0))}">{predicate}</Node>'
            continue
        default = node.yes if node.missing_is_yes else node.no
        yield f'<Node id="{number}" defaultChild="{default}">{predicate}'
        yes, no = _predicates(node, trees)
        stack += [None, (node.no, no), (node.yes, yes)]


def _predicates(node: TreeNode, trees: Trees) -> tuple[str, str]:
    if node.mode not in _SIGNS:
        raise ExportError(
            f"a tree compares by {node.mode}, which PMML has no word for; expected {sorted(_SIGNS)}."
        )
    bound = _held(node, trees.columns)
    field = quoteattr(trees.columns.fields[node.feature])
    yes, no = (
        f'<SimplePredicate field={field} operator="{sign}" value="{_number(bound)}"/>'
        for sign in _SIGNS[node.mode]
    )
    return yes, no


def _held(node: TreeNode, columns: Columns) -> float:
    """The threshold as a number of the field's type that decides as the ensemble does."""
    if columns.scaler:
        return _before_scaler(node, columns)
    if not columns.single or node.mode in ("BRANCH_EQ", "BRANCH_NEQ"):
        return node.bound
    with np.errstate(over="ignore"):
        near = np.float32(node.bound)
    if node.mode in ("BRANCH_LEQ", "BRANCH_GT") and float(near) > node.bound:
        near = np.nextafter(near, np.float32(-np.inf))
    if node.mode in ("BRANCH_LT", "BRANCH_GTE") and float(near) < node.bound:
        near = np.nextafter(near, np.float32(np.inf))
    return float(near)


def _before_scaler(node: TreeNode, columns: Columns) -> float:
    """The number in single precision up to which, or from which on, a scaled field is on one side of a threshold.

    A Scaler rounds twice, but never turns the order of two numbers around, so the number is found by halving the
    ordered list of all single-precision numbers.
    """
    if node.mode in ("BRANCH_EQ", "BRANCH_NEQ"):
        raise ExportError(
            "a tree asks whether a scaled field equals a number; PMML is written of other comparisons."
        )
    offset = np.float32(columns.offset[node.feature])
    scale = np.float32(columns.scale[node.feature])
    reaches = node.mode in ("BRANCH_LT", "BRANCH_GTE")  # whether the threshold itself is on the upper side
    low, high = _order(np.float32(-np.inf)), _order(np.float32(np.inf))
    while high - low > 1:
        middle = (low + high) // 2
        with np.errstate(over="ignore"):
            scaled = float((_ordered(middle) - offset) * scale)
        above = scaled >= node.bound if reaches else scaled > node.bound
        low, high = (low, middle) if above else (middle, high)
    return float(_ordered(high if reaches else low))


def _order(number: np.float32) -> int:
    """The place of a number among all of single precision."""
    bits = int(number.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _ordered(place: int) -> np.float32:
    """The number at a place."""
    bits = np.int64(abs(place)).astype(np.int32).view(np.float32)
    return np.float32(bits if place >= 0 else -bits)
