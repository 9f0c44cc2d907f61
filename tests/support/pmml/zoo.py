# ruff: noqa: E501 - a document is read best in one line
"""Documents that use every construct that is read, each small; scorer and graph must agree on all of them."""

from __future__ import annotations

from support.pmml.written import dictionary, node, schema, simple, tree

_XZ = dictionary(x="double", z="double", y="double")
_XCI = dictionary(x="double", c="string red green blue", i="integer", b="boolean", y="double")
_CLASSES = dictionary(x="double", z="double", c="string", y="string low mid high")
_STRATEGIES = ("none", "lastPrediction", "nullPrediction", "defaultChild")


def _leaf(predicate: str, score: object, name: str = "") -> str:
    return node(predicate, score=score, name=name)


def _strategy(strategy: str, last: bool) -> str:
    told = ' noTrueChildStrategy="returnLastPrediction"' if last else ""
    return f'missingValueStrategy="{strategy}"{told}'


def _two_way(strategy: str, last: bool) -> str:
    """The usual binary split, its second level over another field."""
    inner = [
        node(
            simple("x", "lessOrEqual", 0.25),
            _leaf(simple("z", "lessThan", -0.5), 1, "aa"),
            _leaf(simple("z", "greaterOrEqual", -0.5), 2, "ab"),
            score=1.5, name="a", default="ab",
        ),
        _leaf(simple("x", "greaterThan", 0.25), 3, "b"),
    ]  # fmt: skip
    body = node("<True/>", *inner, score=9, name="r", default="b")
    return tree(body, _XZ, ["x", "z"], options=_strategy(strategy, last))


def _many_way(strategy: str, last: bool) -> str:
    """Children that overlap, leave gaps, and ask different fields; the default is not the next one."""
    inner = [
        _leaf(simple("x", "lessThan", -1), 1, "a"),
        _leaf(simple("z", "equal", 0), 2, "b"),
        _leaf(simple("c", "notEqual", "red"), 3, "c"),
        _leaf(simple("x", "greaterThan", 1), 4, "d"),
    ]
    fields = dictionary(x="double", z="double", c="string", y="double")
    return tree(
        node("<True/>", *inner, score=9, default="b"),
        fields,
        ["x", "z", "c"],
        options=_strategy(strategy, last),
    )


def _one_field(strategy: str, last: bool) -> str:
    """Several values of one text, the default in the middle, a gap at the end."""
    inner = [
        _leaf(simple("c", "equal", value), k, value) for k, value in enumerate(("red", "green", "blue"), 1)
    ]
    return tree(
        node("<True/>", *inner, score=9, default="green"), dictionary(c="string", y="double"), ["c"],
        options=_strategy(strategy, last),
    )  # fmt: skip


def _sets(strategy: str, last: bool) -> str:
    array = '<Array n="2" type="string">red "dark \\"blue"</Array>'
    inside = f'<SimpleSetPredicate field="c" booleanOperator="isIn">{array}</SimpleSetPredicate>'
    outside = f'<SimpleSetPredicate field="c" booleanOperator="isNotIn">{array}</SimpleSetPredicate>'
    body = node("<True/>", _leaf(inside, 1, "a"), _leaf(outside, 2, "b"), score=9, default="a")
    return tree(body, dictionary(c="string", y="double"), ["c"], options=_strategy(strategy, last))


def _compound(sign: str, strategy: str = "none") -> str:
    parts = simple("x", "lessThan", 0) + simple("z", "greaterThan", 0) + simple("c", "equal", "red")
    joined = f'<CompoundPredicate booleanOperator="{sign}">{parts}</CompoundPredicate>'
    body = node("<True/>", _leaf(joined, 1, "a"), _leaf(simple("x", "isMissing"), 2, "b"),
                _leaf(simple("z", "isNotMissing"), 3, "c"), score=9, default="c")  # fmt: skip
    fields = dictionary(x="double", z="double", c="string", y="double")
    return tree(body, fields, ["x", "z", "c"], options=_strategy(strategy, True))


def _distribution(*counts: float, probabilities: bool = False) -> str:
    total = sum(counts)
    return "".join(
        f'<ScoreDistribution value="{name}" recordCount="{count}"'
        + (f' probability="{count / total!r}"' if probabilities else "")
        + "/>"
        for name, count in zip(("low", "mid", "high"), counts, strict=True)
    )


def _classifier(bound: float, *, score: bool = True, probabilities: bool = False) -> str:
    def leaf(predicate: str, name: str, *counts: float) -> str:
        told = f' score="{name}"' if score else ""
        return f"<Node{told}>{predicate}{_distribution(*counts, probabilities=probabilities)}</Node>"

    inner = leaf(simple("x", "lessThan", bound), "low", 5, 2, 1) + leaf(
        simple("x", "greaterOrEqual", bound), "high", 1, 2, 4
    )
    return (
        f'<TreeModel functionName="classification">{schema("x", "z", "c")}'
        f'<Node score="mid"><True/>{_distribution(2, 3, 2)}{inner}</Node></TreeModel>'
    )


def _labels_only(bound: float, field: str = "x") -> str:
    inner = _leaf(simple(field, "lessThan", bound), "low") + _leaf(
        simple(field, "greaterOrEqual", bound), "high"
    )
    return (
        f'<TreeModel functionName="classification">{schema("x", "z", "c")}'
        f"{node('<True/>', inner, score='mid')}</TreeModel>"
    )


def _ensemble(
    method: str, models: list[str], fields: str, function: str, *, predicates: dict[int, str] | None = None,
    options: str = "", active: tuple[str, ...] = ("x", "z", "c"), more: str = "",
) -> str:  # fmt: skip
    segments = "".join(
        f'<Segment id="{k}" weight="{1 + 0.5 * k}">{(predicates or {}).get(k, "<True/>")}{model}</Segment>'
        for k, model in enumerate(models)
    )
    return (
        f'{fields}<MiningModel functionName="{function}">{schema(*active)}{more}'
        f'<Segmentation multipleModelMethod="{method}" {options}>{segments}</Segmentation></MiningModel>'
    )


def _number_tree(bound: float, low: float, high: float, *, field: str = "x", missing: str = "none") -> str:
    inner = _leaf(simple(field, "lessThan", bound), low) + _leaf(simple(field, "greaterOrEqual", bound), high)
    return (
        f'<TreeModel functionName="regression" missingValueStrategy="{missing}">{schema("x", "z")}'
        f"{node('<True/>', inner, score=0.125)}</TreeModel>"
    )


def _linear(coefficient: float, normalization: str = "none") -> str:
    return (
        f'<RegressionModel functionName="regression" normalizationMethod="{normalization}">{schema("x", "z")}'
        f'<RegressionTable intercept="0.25"><NumericPredictor name="x" coefficient="{coefficient}"/>'
        f'<NumericPredictor name="z" coefficient="-0.5" exponent="2"/></RegressionTable></RegressionModel>'
    )


def _derived(name: str, kind: str, expression: str) -> str:
    optype = "categorical" if kind in ("string", "boolean") else "continuous"
    return f'<DerivedField name="{name}" optype="{optype}" dataType="{kind}">{expression}</DerivedField>'


def _over(expression: str, kind: str = "double", fields: str = _XCI, predictor: str = "") -> str:
    """A regression that gives a derived field as it is."""
    told = predictor or '<NumericPredictor name="d" coefficient="1"/>'
    return (
        f'{fields}<RegressionModel functionName="regression">{schema("x", "c", "i", "b")}'
        f"<LocalTransformations>{_derived('d', kind, expression)}</LocalTransformations>"
        f'<RegressionTable intercept="0">{told}</RegressionTable></RegressionModel>'
    )


def _apply(function: str, *arguments: str, **attributes: str) -> str:
    told = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<Apply function="{function}"{told}>{"".join(arguments)}</Apply>'


_X, _C, _I, _B = (f'<FieldRef field="{name}"/>' for name in "xcib")


def _constant(value: object, kind: str = "double") -> str:
    return f'<Constant dataType="{kind}">{value}</Constant>'


_FUNCTIONS: dict[str, str] = {
    "plus": _apply("+", _X, _I),
    "minus": _apply("-", _X, _constant(2)),
    "negated": _apply("-", _X),
    "times": _apply("*", _X, _X),
    "over": _apply("/", _constant(1), _X, defaultValue="-7"),
    "modulo": _apply("modulo", _X, _constant(0.75)),
    "min": _apply("min", _X, _I, _constant(0.25)),
    "max": _apply("max", _X, _I, _constant(0.25)),
    "sum": _apply("sum", _X, _I, _constant(0.25)),
    "average": _apply("avg", _X, _I),
    "product": _apply("product", _X, _I, _constant(-1.5)),
    "ln": _apply("ln", _X),
    "log10": _apply("log10", _apply("abs", _X)),
    "ln1p": _apply("ln1p", _apply("*", _X, _constant(1e-9))),
    "expm1": _apply("expm1", _apply("*", _X, _constant(1e-9))),
    "expm1_wide": _apply("expm1", _X),
    "exp": _apply("exp", _X),
    "sqrt": _apply("sqrt", _X, mapMissingTo="4"),
    "pow": _apply("pow", _X, _constant(3)),
    "threshold": _apply("threshold", _X, _constant(0.5)),
    "floor": _apply("floor", _X),
    "ceil": _apply("ceil", _X),
    "round": _apply("round", _apply("*", _X, _constant(2))),
    "rint": _apply("rint", _apply("*", _X, _constant(2))),
    "sin": _apply("sin", _X),
    "cos": _apply("cos", _X),
    "tan": _apply("tan", _X),
    "tanh": _apply("tanh", _X),
    "atan": _apply("atan", _apply("*", _X, _constant(1e3))),
    "if": _apply("if", _apply("lessThan", _X, _constant(0)), _constant(-1), _X),
    "if_without_else": _apply("if", _apply("greaterOrEqual", _X, _constant(0)), _I, mapMissingTo="8"),
    "if_missing": _apply("if", _apply("isMissing", _X), _constant(-1), _apply("*", _X, _constant(2))),
    "text": _apply("if", _apply("equal", _C, "<Constant>red</Constant>"), _constant(1), _constant(2)),
    "texts": _apply("if", _apply("isIn", _C, "<Constant>red</Constant>", "<Constant>blue</Constant>"),
                    _constant(1), _constant(2)),
    "not_in": _apply("if", _apply("isNotIn", _I, "<Constant>1</Constant>", "<Constant>3</Constant>"),
                     _constant(1), _constant(2)),
    "logic": _apply("if", _apply("and", _apply("not", _apply("notEqual", _I, "<Constant>1</Constant>")),
                                 _apply("or", _apply("lessOrEqual", _X, _constant(1)),
                                        _apply("isNotMissing", _C))), _constant(1), _constant(2)),
    "boolean": _apply("if", _B, _constant(1), _constant(2)),
}  # fmt: skip

_LINE = "".join(f'<LinearNorm orig="{a}" norm="{b}"/>' for a, b in ((-1, 0), (0.5, 1), (2, -3)))
_BINS = (
    '<DiscretizeBin binValue="{0}"><Interval closure="openClosed" rightMargin="-0.5"/></DiscretizeBin>'
    '<DiscretizeBin binValue="{1}"><Interval closure="openOpen" leftMargin="-0.5" rightMargin="1"/></DiscretizeBin>'
)
_TABLE = "<InlineTable><row><k>red</k><v>1.5</v></row><row><k>green</k><v>2.5</v></row></InlineTable>"
_TABLE_OF_TWO = "<InlineTable><row><k>red</k><n>1</n><v>1.5</v></row><row><k>green</k><n>2</n><v>2.5</v></row></InlineTable>"

_DERIVED: dict[str, str] = {
    "line": _over(f'<NormContinuous field="x">{_LINE}</NormContinuous>'),
    "line_missing": _over(f'<NormContinuous field="x" outliers="asMissingValues" mapMissingTo="5">{_LINE}</NormContinuous>'),
    "line_extreme": _over(f'<NormContinuous field="x" outliers="asExtremeValues">{_LINE}</NormContinuous>'),
    "indicator": _over('<NormDiscrete field="c" value="red"/>'),
    "indicator_of_missing": _over('<NormDiscrete field="c" value="red" mapMissingTo="0.5"/>'),
    "indicator_of_number": _over('<NormDiscrete field="i" value="1"/>'),
    "bins": _over(f'<Discretize field="x" defaultValue="7" mapMissingTo="8">{_BINS.format(1, 2)}</Discretize>'),
    "bins_of_texts": _over(
        f'<Discretize field="x">{_BINS.format("red", "green")}</Discretize>', "string",
        predictor='<CategoricalPredictor name="d" value="red" coefficient="3"/>'
                  '<CategoricalPredictor name="d" value="green" coefficient="5"/>'),
    "table": _over(f'<MapValues outputColumn="v" mapMissingTo="9"><FieldColumnPair field="c" column="k"/>{_TABLE}</MapValues>'),
    "table_default": _over(
        f'<MapValues outputColumn="v" defaultValue="-1"><FieldColumnPair field="c" column="k"/>{_TABLE}</MapValues>'),
    "table_of_two": _over(
        '<MapValues outputColumn="v" defaultValue="-1" mapMissingTo="-2"><FieldColumnPair field="c" column="k"/>'
        f'<FieldColumnPair field="i" column="n"/>{_TABLE_OF_TWO}</MapValues>'),
    "reference": _over('<FieldRef field="x" mapMissingTo="3"/>'),
    "single": _over('<FieldRef field="x"/>', "float"),
    "boolean": _over('<FieldRef field="b"/>'),
}  # fmt: skip


def _treated(attributes: str, kind: str = "double", body: str = "") -> str:
    fields = dictionary(x=kind, y="double")
    return (
        f'{fields}<RegressionModel functionName="regression">{schema(f"x {attributes}")}{body}'
        '<RegressionTable intercept="0.5"><NumericPredictor name="x" coefficient="2"/></RegressionTable></RegressionModel>'
    )


def _marked(attributes: str) -> str:
    """A field some of whose values mean missing, and others are invalid."""
    fields = dictionary(x="double", y="double").replace(
        'name="x" optype="continuous" dataType="double">',
        'name="x" optype="continuous" dataType="double"><Value value="0" property="missing"/>'
        '<Value value="1" property="invalid"/>',
    )
    return fields + _treated(attributes).partition("</DataDictionary>")[2]


_TREATMENTS: dict[str, str] = {
    "replaced": _treated('missingValueReplacement="1.5"'),
    "outliers_cut": _treated('outliers="asExtremeValues" lowValue="-0.5" highValue="1"'),
    "outliers_missing": _treated('outliers="asMissingValues" lowValue="-0.5" highValue="1" missingValueReplacement="7"'),
    "invalid_returned": _treated("", "double [-0.5,1]"),
    "invalid_kept": _treated('invalidValueTreatment="asIs"', "double [-0.5,1]"),
    "invalid_missing": _treated('invalidValueTreatment="asMissing" missingValueReplacement="3"', "double [-0.5,1]"),
    "invalid_replaced": _treated('invalidValueTreatment="asValue" invalidValueReplacement="4"', "double [-0.5,1]"),
    "missing_is_invalid": _treated('missingValueTreatment="returnInvalid"'),
    "marked": _marked('missingValueReplacement="6"'),
    "marked_kept": _marked('invalidValueTreatment="asIs"'),
    "single": _treated("", "float"),
    "whole": _treated("", "integer 0 1 2"),
    "target_scaled": _treated("", body='<Targets><Target field="y" min="0" max="3" rescaleFactor="2" '
                                        'rescaleConstant="0.75" castInteger="round"/></Targets>'),
    "target_floor": _treated("", body='<Targets><Target field="y" castInteger="floor"/></Targets>'),
    "target_default": _treated("", body='<Targets><Target field="y"><TargetValue defaultValue="42"/></Target></Targets>'),
}  # fmt: skip


def _tables(method: str, classes: int, *, ordinal: bool = False, priors: bool = False) -> str:
    names = ("low", "mid", "high")[:classes]
    fields = dictionary(x="double", z="double", y=f"string {' '.join(names)}")
    if ordinal:
        fields = fields.replace('name="y" optype="categorical"', 'name="y" optype="ordinal"')
    tables = "".join(
        f'<RegressionTable intercept="{0.3 * k - 0.2137}" targetCategory="{name}">'
        f'<NumericPredictor name="x" coefficient="{0.4 if ordinal else 0.4 * k - 0.5}"/>'
        f'<PredictorTerm coefficient="0.1"><FieldRef field="x"/><FieldRef field="z"/></PredictorTerm></RegressionTable>'
        for k, name in enumerate(names)
    )
    told = "".join(
        f'<TargetValue value="{n}" priorProbability="{0.1 * (k + 1)}"/>' for k, n in enumerate(names)
    )
    targets = f'<Targets><Target field="y">{told}</Target></Targets>' if priors else ""
    return (
        f'{fields}<RegressionModel functionName="classification" normalizationMethod="{method}">{schema("x", "z")}'
        f"{targets}{tables}</RegressionModel>"
    )


_ACTIVATIONS = (
    "threshold", "logistic", "tanh", "identity", "exponential", "reciprocal", "square", "Gauss", "sine", "cosine",
    "Elliott", "arctan", "rectifier", "radialBasis",
)  # fmt: skip


def network(
    activation: str, *, classes: bool = False, skip: bool = False, normalization: str = "none"
) -> str:
    """Two inputs, one hidden layer of two neurons, one or two outputs."""
    fields = dictionary(x="double", c="string", y="string low high" if classes else "double")
    inputs = (
        '<NeuralInputs><NeuralInput id="i0">'
        + _derived("n0", "double", '<NormContinuous field="x"><LinearNorm orig="-2" norm="-1"/>'
                                   '<LinearNorm orig="2" norm="1"/></NormContinuous>')
        + '</NeuralInput><NeuralInput id="i1">' + _derived("n1", "double", '<NormDiscrete field="c" value="red"/>')
        + "</NeuralInput></NeuralInputs>"
    )  # fmt: skip
    hidden = "".join(
        f'<Neuron id="h{k}" bias="{0.1 * k + 0.05}" width="1.5"><Con from="i0" weight="{0.7 - k}"/>'
        f'<Con from="i1" weight="{0.3 + k}"/></Neuron>'
        for k in range(2)
    )
    told = "".join(
        f'<Neuron id="o{k}" bias="-0.1"><Con from="h0" weight="{1 - k}"/><Con from="h1" weight="{0.5 * k - 0.8}"/>'
        + ('<Con from="i0" weight="0.35"/>' if skip else "") + "</Neuron>"
        for k in range(2 if classes else 1)
    )  # fmt: skip
    last = f'activationFunction="identity" normalizationMethod="{normalization}"'
    layers = f'<NeuralLayer activationFunction="{activation}" altitude="1.25">{hidden}</NeuralLayer><NeuralLayer {last}>{told}</NeuralLayer>'
    line = '<LinearNorm orig="10" norm="0"/><LinearNorm orig="20" norm="1"/>'
    scaled = f'<NormContinuous field="y">{line}</NormContinuous>'
    named = [f'<NormDiscrete field="y" value="{name}"/>' for name in ("low", "high")]
    ends = "".join(
        f'<NeuralOutput outputNeuron="o{k}">{_derived(f"e{k}", "double", expression)}</NeuralOutput>'
        for k, expression in enumerate(named if classes else [scaled])
    )
    function = "classification" if classes else "regression"
    return (
        f'{fields}<NeuralNetwork functionName="{function}" activationFunction="logistic">{schema("x", "c")}'
        f"{inputs}{layers}<NeuralOutputs>{ends}</NeuralOutputs></NeuralNetwork>"
    )


def _output(*fields: str) -> str:
    return f"<Output>{''.join(fields)}</Output>"


def _gives(
    name: str,
    feature: str = "predictedValue",
    *,
    final: bool = True,
    kind: str = "double",
    inner: str = "",
    **told: str,
) -> str:
    more = "".join(f' {key}="{value}"' for key, value in told.items())
    return (
        f'<OutputField name="{name}" optype="continuous" dataType="{kind}" feature="{feature}" '
        f'isFinalResult="{str(final).lower()}"{more}>{inner}</OutputField>'
    )


def boosting(kind: str = "double") -> str:
    """As boosting tools write it: a sum of trees, then a link on what it gives."""
    total = _ensemble(
        "sum", [_number_tree(0.1, -1.25, 0.5), _number_tree(-0.4, 0.3, -0.2, field="z")], "", "regression",
        active=("x", "z"), more=_output(_gives("raw", final=False, kind=kind))
        + '<Targets><Target field="y" rescaleConstant="0.1"/></Targets>',
    ).replace('<MiningField name="y" usageType="target"/>', "")  # fmt: skip
    link = (
        '<RegressionModel functionName="classification" normalizationMethod="logit"><MiningSchema>'
        '<MiningField name="y" usageType="target"/><MiningField name="raw"/></MiningSchema>'
        '<RegressionTable intercept="0" targetCategory="high"><NumericPredictor name="raw" coefficient="1"/></RegressionTable>'
        '<RegressionTable intercept="0" targetCategory="low"/></RegressionModel>'
    )
    fields = dictionary(x="double", z="double", y="string low high")
    return _ensemble("modelChain", [total, link], fields, "classification", active=("x", "z"))


def _outputs() -> str:
    told = _output(
        _gives("label", kind="string"), _gives("p_low", "probability", value="low"), _gives("p_own", "probability"),
        _gives("p_single", "probability", value="high", kind="float"),
        _gives("odds", "transformedValue", inner=_apply("/", '<FieldRef field="p_low"/>', _constant(2))),
        _gives("word", "transformedValue", kind="string",
               inner=f'<Discretize field="p_low" defaultValue="some">{_BINS.format("none", "few")}</Discretize>'),
    )  # fmt: skip
    model = _classifier(0.2)
    return _CLASSES + model.replace("</MiningSchema>", f"</MiningSchema>{told}")


_PAIR = [
    _number_tree(0.1, -1.25, 0.5),
    _number_tree(-0.4, 0.3, -0.2, field="z", missing="nullPrediction"),
    _linear(0.75),
]
_VOTERS = [_labels_only(0.3), _labels_only(-0.3, "z"), _labels_only(0.9)]
_SHARERS = [_classifier(0.2), _classifier(-0.7, probabilities=True), _classifier(1.1, score=False)]
_SOME = {0: simple("x", "lessThan", 0.5), 2: simple("c", "equal", "red")}

ZOO: dict[str, str] = {
    **{f"tree_{name}_{s}_{'last' if last else 'null'}": make(s, last)
       for name, make in (("two", _two_way), ("many", _many_way), ("texts", _one_field), ("sets", _sets))
       for s in _STRATEGIES for last in (False, True)},
    **{f"tree_{sign}": _compound(sign) for sign in ("and", "or", "xor", "surrogate")},
    **{f"tree_{sign}_{s}": _compound(sign, s) for sign in ("and", "surrogate") for s in _STRATEGIES[1:]},
    "tree_root_test": tree(node(simple("x", "greaterThan", 0), _leaf(simple("z", "lessThan", 0), 1), score=2), _XZ, ["x", "z"]),
    "tree_stump": tree(node("<True/>", score=4.5), _XZ, ["x", "z"]),
    "tree_else": tree(node("<True/>", _leaf(simple("x", "lessThan", 0), 1), _leaf("<True/>", 2), _leaf("<False/>", 3)),
                      _XZ, ["x", "z"]),
    "tree_classes": _CLASSES + _classifier(0.2),
    "tree_classes_by_count": _CLASSES + _classifier(0.2, score=False),
    "tree_labels": _CLASSES + _labels_only(0.3),
    "tree_numbers_as_classes": _CLASSES.replace("string low mid high", "")
        .replace('name="y" optype="categorical" dataType="string"', 'name="y" optype="categorical" dataType="integer"')
        .replace('value="low"', 'value="1"').replace('value="mid"', 'value="5"').replace('value="high"', 'value="7"')
        + _labels_only(0.3).replace('"low"', '"1"').replace('"mid"', '"5"').replace('"high"', '"7"'),
    **{f"function_{name}": _over(expression) for name, expression in _FUNCTIONS.items()},
    **{f"derived_{name}": body for name, body in _DERIVED.items()},
    **{f"field_{name}": body for name, body in _TREATMENTS.items()},
    **{f"regression_{m}": _XZ + _linear(0.75, m)
       for m in ("none", "softmax", "logit", "probit", "cloglog", "loglog", "cauchit", "exp")},
    **{f"classes2_{m}": _tables(m, 2) for m in ("none", "softmax", "simplemax", "logit", "probit", "cloglog", "loglog", "cauchit")},
    **{f"classes3_{m}": _tables(m, 3) for m in ("none", "softmax", "simplemax")},
    **{f"ordinal_{m}": _tables(m, 3, ordinal=True) for m in ("none", "logit", "probit", "cloglog", "loglog", "cauchit")},
    "classes_priors": _tables("softmax", 3, priors=True),
    **{f"network_{a}": network(a) for a in _ACTIVATIONS},
    **{f"network_classes_{n}": network("tanh", classes=True, normalization=n) for n in ("softmax", "simplemax", "none")},
    "network_skip": network("logistic", skip=True),
    **{f"ensemble_{m}": _ensemble(m, _PAIR, _CLASSES.replace("string low mid high", "double"), "regression")
       for m in ("sum", "weightedSum", "average", "weightedAverage", "median", "selectFirst")},
    **{f"ensemble_some_{m}": _ensemble(m, _PAIR, _CLASSES.replace("string low mid high", "double"), "regression", predicates=_SOME)
       for m in ("sum", "weightedAverage", "selectFirst")},
    **{f"ensemble_skip_{m}": _ensemble(m, _PAIR, _CLASSES.replace("string low mid high", "double"), "regression",
                                       options='missingPredictionTreatment="skipSegment" missingThreshold="0.6"')
       for m in ("sum", "average", "weightedAverage")},
    **{f"votes_{m}": _ensemble(m, _VOTERS, _CLASSES, "classification") for m in ("majorityVote", "weightedMajorityVote")},
    "votes_some": _ensemble("majorityVote", _VOTERS, _CLASSES, "classification", predicates=_SOME),
    "votes_of_others": _ensemble("weightedMajorityVote", _VOTERS, _CLASSES, "classification", options='missingThreshold="0.4"'),
    "votes_or_nothing": _ensemble("majorityVote", _VOTERS, _CLASSES, "classification",
                                  options='missingPredictionTreatment="returnMissing"'),
    "votes_skip": _ensemble("majorityVote", _VOTERS, _CLASSES, "classification",
                            options='missingPredictionTreatment="skipSegment"'),
    **{f"shares_{m}": _ensemble(m, _SHARERS, _CLASSES, "classification") for m in ("average", "weightedAverage", "max", "selectFirst")},
    "shares_some": _ensemble("average", _SHARERS, _CLASSES, "classification", predicates=_SOME),
    "boosting": boosting(),
    "boosting_single": boosting("float"),
    "outputs": _outputs(),
}  # fmt: skip
"""Name -> DataDictionary and model."""
