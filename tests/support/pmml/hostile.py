"""Documents that must be refused with one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.pmml.written import HEADER, dictionary, document, node, regression, schema, simple, tree

Build = Callable[[Path], tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Hostile:
    """A document, the error that it must give, and what its text says."""

    build: Build
    error: str
    match: str


def _raw(text: str, name: str = "model.pmml") -> Build:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path, {}

    return build


def _bytes(data: bytes) -> Build:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        path = folder / "model.pmml"
        path.write_bytes(data)
        return path, {"framework": "pmml"}

    return build


def _body(body: str, **options: Any) -> Build:
    return lambda folder: (document(folder, body), options)


_LAUGHS = "".join(f'<!ENTITY l{k} "{f"&l{k - 1};" * 10}">' for k in range(1, 10))
_BOMB = f'<?xml version="1.0"?><!DOCTYPE PMML [<!ENTITY l0 "ha">{_LAUGHS}]><PMML version="4.4">&l9;</PMML>'
_OUTSIDE = (
    '<?xml version="1.0"?><!DOCTYPE PMML [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    '<PMML version="4.4"><Header copyright="&x;"/></PMML>'
)
_REMOTE = '<?xml version="1.0"?><!DOCTYPE PMML SYSTEM "http://127.0.0.1:1/a.dtd"><PMML version="4.4"/>'
_PARAMETER = '<?xml version="1.0"?><!DOCTYPE PMML [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><PMML/>'
_Y = dictionary(x="double", y="double")
_LEAVES = node(simple("x", "lessThan", 1), score=1) + node(simple("x", "greaterOrEqual", 1), score=2)

HOSTILE: dict[str, Hostile] = {
    "billion_laughs": Hostile(_raw(_BOMB), "SourceError", r"line 1\) declares a document type or entities"),
    "external_entity": Hostile(_raw(_OUTSIDE), "SourceError", "declares a document type or entities"),
    "remote_document_type": Hostile(_raw(_REMOTE), "SourceError", "declares a document type or entities"),
    "parameter_entity": Hostile(_raw(_PARAMETER), "SourceError", "declares a document type or entities"),
    "entities_in_two_bytes": Hostile(
        _bytes(_BOMB.replace('"1.0"', '"1.0" encoding="UTF-16"').encode("utf-16")), "SourceError",
        r"line 1\) declares a document type or entities",
    ),
    "undeclared_entity": Hostile(
        _raw(HEADER.replace("<Header/>", "<Header>&x;</Header>")), "SourceError", "undefined entity"
    ),
    "unknown_encoding": Hostile(
        _raw(HEADER.replace('"1.0"', '"1.0" encoding="x-none"')), "SourceError", "encoding that is not read"
    ),
    "wide_encoding": Hostile(
        _raw(HEADER.replace('"1.0"', '"1.0" encoding="shift_jis"')), "SourceError", "encoding that is not read"
    ),
    "deep": Hostile(_raw(HEADER + "<a>" * 100_000), "SourceError", "more than 3000 elements inside each other"),
    "deep_expression": Hostile(
        _body(
            dictionary(x="double", y="double") + '<RegressionModel functionName="regression">' + schema("x")
            + '<LocalTransformations><DerivedField name="d" optype="continuous" dataType="double">'
            + '<Apply function="abs">' * 2_500 + '<FieldRef field="x"/>' + "</Apply>" * 2_500
            + '</DerivedField></LocalTransformations><RegressionTable intercept="0">'
            '<NumericPredictor name="d" coefficient="1"/></RegressionTable>'
            "</RegressionModel>"
        ),
        "SourceError", "nests its expressions",
    ),
    "many_attributes": Hostile(
        _raw(HEADER + "<a " + " ".join(f'a{k}="1"' for k in range(300)) + "/></PMML>"), "SourceError",
        "more than 200 attributes",
    ),
    "cut_off": Hostile(_raw(HEADER + regression()[:400]), "SourceError", "not whole XML .* may be cut off"),
    "not_XML": Hostile(_raw(HEADER + "\x00\x01"), "SourceError", "not whole XML"),
    "another_root": Hostile(
        _raw("<?xml version='1.0'?><html><PMML/></html>"), "SourceError", "root element 'html'; expected <PMML>"
    ),
    "another_namespace": Hostile(
        _raw('<PMML xmlns="http://example.org/other" version="4.4"/>'), "SourceError", "the namespace"
    ),
    "another_version": Hostile(
        _raw('<PMML xmlns="http://www.dmg.org/PMML-2_1" version="2.1"/>'), "SourceError",
        "PMML 2.1; versions 3.0 to 4.4 are read",
    ),
    "no_model": Hostile(_body(_Y), "SourceError", "holds no model"),
    "two_models": Hostile(
        _body(tree(node("<True/>", score=1), _Y, ["x"]) + tree(node("<True/>", score=1), "", ["x"])),
        "UnsupportedOperator", r"TreeModel \(line 3\): a second model",
    ),
    "clustering": Hostile(
        _body(_Y + '\n<ClusteringModel functionName="clustering"/>'), "UnsupportedOperator",
        r"PMML/ClusteringModel \(line 4\): a ClusteringModel cannot be converted",
    ),
    "weighted_confidence": Hostile(
        _body(tree(node("<True/>", _LEAVES), _Y, ["x"], options='missingValueStrategy="weightedConfidence"')),
        "UnsupportedOperator", "missingValueStrategy 'weightedConfidence'",
    ),
    "unknown_field": Hostile(
        _body(tree(node("<True/>", _LEAVES.replace('"x"', '"xx"')), _Y, ["x"])), "SourceError",
        "nothing declares the field 'xx' .nearest: 'x'.",
    ),
    "unknown_operator": Hostile(
        _body(tree(node("<True/>", node(simple("x", "near", 1), score=1)), _Y, ["x"])), "SourceError",
        "operator 'near' is none",
    ),
    "no_number": Hostile(
        _body(tree(node("<True/>", node(simple("x", "equal", "one"), score=1)), _Y, ["x"])), "SourceError",
        "'one' is not a number",
    ),
    "dates": Hostile(
        _body(tree(node("<True/>", node(simple("x", "equal", "2020-01-01"), score=1)),
                   dictionary(x="date", y="double"), ["x"])),
        "UnsupportedOperator", "dataType 'date'",
    ),
    "no_such_function": Hostile(
        _body(
            _Y + '<RegressionModel functionName="regression">' + schema("x")
            + '<LocalTransformations><DerivedField name="d" optype="continuous" dataType="double">'
            '<Apply function="formatNumber"><FieldRef field="x"/></Apply></DerivedField></LocalTransformations>'
            '<RegressionTable intercept="0"><NumericPredictor name="d" coefficient="1"/></RegressionTable>'
            "</RegressionModel>"
        ),
        "UnsupportedOperator", "the function 'formatNumber'",
    ),
    "a_circle": Hostile(
        _body(
            _Y + '<RegressionModel functionName="regression">' + schema("x")
            + '<LocalTransformations><DerivedField name="d" optype="continuous" dataType="double">'
            '<FieldRef field="e"/></DerivedField><DerivedField name="e" optype="continuous" dataType="double">'
            '<FieldRef field="d"/></DerivedField></LocalTransformations>'
            '<RegressionTable intercept="0"><NumericPredictor name="d" coefficient="1"/></RegressionTable>'
            "</RegressionModel>"
        ),
        "SourceError", "needs itself",
    ),
    "foreign_names": Hostile(
        _body(regression(), inputs="z:float64[batch,1]"), "ExportError",
        "does not fit the model's 2 active fields"
    ),
    "texts_as_numbers": Hostile(
        _body(regression(), inputs=["x:float64[batch,1]", "c:float64[batch,1]"]), "ExportError",
        "input c: float64.* the field 'c' is string; expected string",
    ),
    "in_memory": Hostile(lambda folder: ({"a": 1}, {}), "SourceError", "builtins.dict is no PMML"),
    "missing_file": Hostile(lambda folder: (folder / "model.pmml", {}), "SourceNotFound", "there is no file"),
}  # fmt: skip
