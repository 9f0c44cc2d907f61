"""The published JSON schemas of our documents, and the check that every document read here passes.

The files beside this one are JSON Schema (2020-12), for any tool. The check below knows the keywords that they use
and no others, so that reading a bundle needs no package beyond numpy, onnx and ml_dtypes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

SCHEMAS = ("bundle.v1", "certificate.v1", "attestation.v1")

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}

_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description", "examples", "default"}


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema called `bundle.v1`, `certificate.v1` or `attestation.v1`.

    Raises:
        ValueError: If there is no such schema.
    """
    if name not in SCHEMAS:
        raise ValueError(f"no schema {name!r}; known are {', '.join(SCHEMAS)}")
    schema: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text("utf-8"))
    return schema


def faults(document: Any, name: str) -> list[str]:
    """What is wrong with a document, each fault with its path; an empty list if nothing is."""
    schema = load_schema(name)
    return list(_faults(document, schema, "$", schema))


def check(document: Any, name: str) -> None:
    """Accept a document that follows its schema.

    Raises:
        ValueError: With the first fault and the number of further ones.
    """
    found = faults(document, name)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ValueError(f"{found[0]}{more}")


def _faults(value: Any, schema: Mapping[str, Any], path: str, root: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        schema = _resolve(schema["$ref"], root)
    unknown = set(schema) - _KEYWORDS.keys() - _ANNOTATIONS
    assert not unknown, f"schema keyword {unknown} is not implemented"
    if "type" in schema and not _is_type(value, schema["type"]):
        yield f"expected {_spell(schema['type'])}, got {_describe(value)} @ {path}"
        return
    for keyword, argument in schema.items():
        if keyword in _KEYWORDS:
            yield from _KEYWORDS[keyword](value, argument, path, schema, root)


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    target: Mapping[str, Any] = root["$defs"][reference.removeprefix("#/$defs/")]
    return target


def _is_type(value: Any, kinds: str | list[str]) -> bool:
    return any(_TYPES[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _spell(kinds: str | list[str]) -> str:
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _describe(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


_Rule = Callable[[Any, Any, str, Mapping[str, Any], Mapping[str, Any]], Iterator[str]]


def _nothing(*_: Any) -> Iterator[str]:
    yield from ()


def _const(value: Any, expected: Any, path: str, *_: Any) -> Iterator[str]:
    if value != expected:
        yield f"expected {_describe(expected)}, got {_describe(value)} @ {path}"


def _enum(value: Any, allowed: list[Any], path: str, *_: Any) -> Iterator[str]:
    if value not in allowed:
        yield f"expected one of {', '.join(map(str, allowed))}, got {_describe(value)} @ {path}"


def _pattern(value: Any, pattern: str, path: str, *_: Any) -> Iterator[str]:
    # In JSON Schema `$` is the very end; in Python it also stands before a last newline.
    if isinstance(value, str) and not re.search(re.sub(r"\$\Z", r"\\Z", pattern), value):
        yield f"{_describe(value)} does not have the form {pattern} @ {path}"


def _minimum(value: Any, least: float, path: str, *_: Any) -> Iterator[str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < least:
        yield f"expected at least {least}, got {_describe(value)} @ {path}"


def _min_items(value: Any, least: int, path: str, *_: Any) -> Iterator[str]:
    if isinstance(value, list) and len(value) < least:
        yield f"expected at least {least} entries, got {len(value)} @ {path}"


def _min_length(value: Any, least: int, path: str, *_: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) < least:
        yield f"expected at least {least} characters, got {_describe(value)} @ {path}"


def _required(value: Any, names: list[str], path: str, *_: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"key {name!r} is missing @ {path}" for name in names if name not in value)


def _properties(
    value: Any, known: Mapping[str, Any], path: str, _: Any, root: Mapping[str, Any]
) -> Iterator[str]:
    if isinstance(value, dict):
        for name in known.keys() & value.keys():
            yield from _faults(value[name], known[name], f"{path}.{name}", root)


def _additional(
    value: Any, rule: Any, path: str, schema: Mapping[str, Any], root: Mapping[str, Any]
) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    known = schema.get("properties", {})
    for name in value.keys() - known.keys():
        if rule is False:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield f"unknown key {_describe(name)}{hint} @ {path}"
        else:
            yield from _faults(value[name], rule, f"{path}.{name}", root)


def _property_names(
    value: Any, rule: Mapping[str, Any], path: str, _: Any, root: Mapping[str, Any]
) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value:
            yield from _faults(name, rule, f"{path} (key)", root)


def _items(value: Any, rule: Mapping[str, Any], path: str, _: Any, root: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _faults(entry, rule, f"{path}[{index}]", root)


def _any_of(value: Any, rules: list[Any], path: str, _: Any, root: Mapping[str, Any]) -> Iterator[str]:
    if all(any(_faults(value, rule, path, root)) for rule in rules):
        yield f"{_describe(value)} has none of the allowed forms @ {path}"


_KEYWORDS: dict[str, _Rule] = {
    "type": _nothing,
    "const": _const,
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _minimum,
    "minItems": _min_items,
    "minLength": _min_length,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "items": _items,
    "anyOf": _any_of,
}
