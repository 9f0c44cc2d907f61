"""The real schemas of custom resources, made strict, for whole documents.

An API server drops fields that a schema does not name; plain jsonschema lets them pass. Made strict, a typo is an
error: `additionalProperties: false` wherever there are properties. The rules that the schemas carry as CEL
(`x-kubernetes-validations`) are run as well where cel-python is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import yaml

from support.shared import shared_dir

_FILES = {
    ("networking.istio.io", kind): "istio/crd-all.gen.yaml"
    for kind in ("VirtualService", "DestinationRule", "Gateway")
} | {
    ("kubeflow.org", "PyTorchJob"): "kubeflow-training-operator/kubeflow.org_pytorchjobs.yaml",
    ("kubeflow.org", "TFJob"): "kubeflow-training-operator/kubeflow.org_tfjobs.yaml",
}


def validate(document: Mapping[str, Any]) -> list[str]:
    """What the strict schema of the document's kind and version says against it, one line a fault."""
    schema = _strict(load_schema(document["apiVersion"], document["kind"]))
    schema["properties"].update(
        apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"}
    )
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator.iter_errors(document)]


def broken_rules(document: Mapping[str, Any]) -> list[str]:
    """The messages of the CEL rules that the document breaks; ImportError where cel-python is not installed."""
    schema = load_schema(document["apiVersion"], document["kind"])
    return list(_broken(schema, document, "$"))


@functools.cache
def load_schema(api_version: str, kind: str) -> dict[str, Any]:
    """The schema of one kind at one version, as its project ships it; skips where shared/crds is not there."""
    group, _, version = api_version.partition("/")
    folder = shared_dir("crds")
    for definition in _definitions(str(folder / _FILES[group, kind])):
        spec = definition["spec"]
        if spec["group"] == group and spec["names"]["kind"] == kind:
            for candidate in spec["versions"]:
                if candidate["name"] == version:
                    schema: dict[str, Any] = candidate["schema"]["openAPIV3Schema"]
                    return schema
    raise LookupError(f"no schema for {api_version} {kind}")


@functools.cache
def _definitions(path: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.load_all(file, Loader=loader) if document]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("nullable") and "type" in found:
        found["type"] = [found["type"], "null"]
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def _broken(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield from _evaluate(rule, value, path)
    if isinstance(value, Mapping):
        for key, part in schema.get("properties", {}).items():
            if key in value:
                yield from _broken(part, value[key], f"{path}.{key}")
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            for key, item in value.items():
                yield from _broken(extra, item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, f"{path}[{index}]")


def _evaluate(rule: Mapping[str, str], value: Any, path: str) -> Iterator[str]:
    import celpy

    program = _program(rule["rule"])
    try:
        holds = program.evaluate({"self": celpy.json_to_cel(value)})
    except celpy.CELEvalError as error:
        yield f"{rule.get('message', rule['rule'])} ({error.args[0]}) @ {path}"
        return
    if not holds:
        yield f"{rule.get('message', rule['rule'])} @ {path}"


@functools.cache
def _program(text: str) -> Any:
    import celpy

    environment = celpy.Environment()
    return environment.program(environment.compile(text))
