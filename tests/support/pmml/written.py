"""PMML documents from their parts, as short as a test can read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HEADER = '<?xml version="1.0"?>\n<PMML xmlns="http://www.dmg.org/PMML-4_4" version="4.4"><Header/>'


def document(folder: Path, body: str, name: str = "model.pmml") -> Path:
    """Write a document around a DataDictionary and a model; gives its path."""
    path = folder / name
    path.write_text(f"{HEADER}\n{body}\n</PMML>\n", encoding="utf-8")
    return path


def dictionary(**fields: str) -> str:
    """A DataDictionary: `x="double"`, `y="string a b"` (its values), `z="integer [0,5]"` (an interval)."""
    return f"<DataDictionary>{''.join(_field(name, told) for name, told in fields.items())}</DataDictionary>"


def _field(name: str, told: str) -> str:
    kind, *rest = told.split()
    intervals = [entry for entry in rest if entry.startswith("[")]
    values = [entry for entry in rest if not entry.startswith("[")]
    optype = "categorical" if values or kind in ("string", "boolean") else "continuous"
    inner = "".join(f'<Value value="{value}"/>' for value in values)
    for entry in intervals:
        low, high = entry.strip("[]").split(",")
        inner += f'<Interval closure="closedClosed" leftMargin="{low}" rightMargin="{high}"/>'
    return f'<DataField name="{name}" optype="{optype}" dataType="{kind}">{inner}</DataField>'


def schema(*fields: str, target: str = "y") -> str:
    """A MiningSchema: names of active fields, or `name attribute="value"`."""
    entries = [f'<MiningField name="{target}" usageType="target"/>'] if target else []
    for told in fields:
        name, _, attributes = told.partition(" ")
        entries.append(f'<MiningField name="{name}" {attributes}/>')
    return f"<MiningSchema>{''.join(entries)}</MiningSchema>"


def regression() -> str:
    """A linear regression over a number and a text."""
    return (
        dictionary(x="double", c="string red green", y="double")
        + '<RegressionModel functionName="regression">'
        + schema("x", "c")
        + '<RegressionTable intercept="0.5"><NumericPredictor name="x" coefficient="2.25"/>'
        '<CategoricalPredictor name="c" value="red" coefficient="1.5"/></RegressionTable></RegressionModel>'
    )


def tree(
    nodes: str, fields: str, active: Iterable[str], *, function: str = "regression", options: str = ""
) -> str:
    """A TreeModel around its root's inner elements."""
    return f'{fields}<TreeModel functionName="{function}" {options}>{schema(*active)}{nodes}</TreeModel>'


def simple(field: str, operator: str, value: object = None) -> str:
    """A SimplePredicate."""
    told = "" if value is None else f' value="{value}"'
    return f'<SimplePredicate field="{field}" operator="{operator}"{told}/>'


def node(predicate: str, *inner: str, score: object = None, name: str = "", default: str = "") -> str:
    """A Node."""
    told = "".join(
        f' {key}="{value}"'
        for key, value in (("id", name), ("score", score), ("defaultChild", default))
        if value not in (None, "")
    )
    return f"<Node{told}>{predicate}{''.join(inner)}</Node>"
