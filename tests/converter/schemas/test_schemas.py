"""The published schemas are valid, and our small checker says of every document what jsonschema says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritygate.converter.schemas import SCHEMAS, check, faults, load_schema

MANIFEST: dict[str, Any] = {
    "schema": "paritygate.bundle/v1",
    "name": "m",
    "signature": {"inputs": [], "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 2]}]},
    "opsets": {"ai.onnx": 18},
    "ir_version": 9,
    "framework": {"name": "numpy", "version": ""},
    "exporter": {"name": "hand", "version": "1"},
    "weights": {"selection": "raw", "source_sha256": None},
    "trace_dims": {},
    "demoted": [{"dim": "n", "size": 2, "reason": ""}],
    "probes": {
        "seed": 1,
        "budget_bytes": 10,
        "cases": [{"index": 0, "case": "base", "dims": {"n": 1}, "float64": True}],
        "omitted": [{"case": "c", "reason": "r"}],
    },
    "samples": None,
    "notes": ["x"],
    "files": {"model.onnx": {"sha256": "0" * 64, "size_bytes": 3}},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_json_schema(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].endswith(f"{name}.json")


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no schema 'bundle\.v2'; known are bundle\.v1"):
        load_schema("bundle.v2")


def test_a_right_document_has_no_fault() -> None:
    assert faults(MANIFEST, "bundle.v1") == []


def test_all_faults_are_found_each_with_its_path() -> None:
    wrong = MANIFEST | {"ir_version": "9", "notes": [1], "weights": {"selection": "raw"}}
    assert sorted(faults(wrong, "bundle.v1")) == [
        'expected integer, got "9" @ $.ir_version',
        "expected string, got 1 @ $.notes[0]",
        "key 'source_sha256' is missing @ $.weights",
    ]


def test_the_sentence_counts_further_faults() -> None:
    with pytest.raises(ValueError, match=r"and 1 more"):
        check(MANIFEST | {"ir_version": "9", "notes": 1}, "bundle.v1")


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path, *(p for key, child in children for p in paths(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


# jsonschema takes 1.0 for an integer, as JSON Schema does; a size written so is refused here.
fractions = st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | fractions | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(paths(MANIFEST)), values)
def test_the_checker_agrees_with_jsonschema(path: tuple[Any, ...], value: Any) -> None:
    document = replaced(MANIFEST, path, value)
    valid = jsonschema.Draft202012Validator(load_schema("bundle.v1")).is_valid(document)
    assert (faults(document, "bundle.v1") == []) == valid
