"""The documentation of what is live: a page that needs no other server and no script, and OpenAPI examples.

Everything is made when it is asked for, from the rules by which requests are checked. Names of models come from
folders and names of tensors from ONNX files, so whatever is put into a page is escaped and whatever is put into a
command is quoted.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from paritygate.converter.types import DType
from paritygate.serving.dataplane import DataPlane
from paritygate.serving.models import Model, Version
from paritygate.serving.types import DATATYPES, IndexEntry
from paritygate.serving.validation import ModelRules, TensorRule

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # It shows what is live at this moment, under the name by which this client reached it.
    "cache-control": "no-store",
}
"""What is sent with every page."""

INFER_PATH = "/v2/models/{model}/infer"
VERSION_INFER_PATH = "/v2/models/{model}/versions/{version}/infer"

_MAX_LISTED_ELEMENTS = 512
_MAX_MODELS_IN_FULL = 64
_STRING_LENGTH_BYTES = 4

# curl takes another protocol than HTTP for names that begin like these, where the address says none.
_HOST = re.compile(
    r"(?!(?:ftp|dict|ldap|imap|smtp|pop3)\.)"
    r"(?:[a-z0-9_][a-z0-9_.-]{0,252}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?",
    re.IGNORECASE | re.ASCII,
)


# --- what is live ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LiveVersion:
    """One live version.

    Attributes:
        number: Its number.
        proof: `proven` or `unproven`.
        fault: Why it does not answer now; empty while it does.
    """

    number: int
    proof: str
    fault: str


@dataclass(frozen=True)
class Form:
    """What some versions of a model take and give, all of them the same.

    Attributes:
        rules: By which requests are checked.
        versions: The live versions that have it, ascending.
        path: Where a request of this form goes, quoted for a URL.
        names_version: Whether that path names a version.
    """

    rules: ModelRules
    versions: tuple[LiveVersion, ...]
    path: str
    names_version: bool


@dataclass(frozen=True)
class ModelFacts:
    """One model.

    Attributes:
        name: Its name.
        forms: One for each signature that its live versions have.
        missing: What the index has of it and is not live.
    """

    name: str
    forms: tuple[Form, ...]
    missing: tuple[IndexEntry, ...]


def collect(dataplane: DataPlane, name: str | None = None) -> list[ModelFacts]:
    """What is known now of one model or of all, by name; to be called on the event loop.

    Args:
        dataplane: What serves them.
        name: The one model that is asked for; None asks for all.

    Raises:
        NotFound: If there is no model of that name.
        Unavailable: If one is asked for while the gateway is still starting.
    """
    models = dataplane.models.all() if name is None else [dataplane.models.get(name)]
    entries: dict[str, list[IndexEntry]] = {}
    for entry in dataplane.models.index():
        if entry.state != "READY":
            entries.setdefault(entry.name, []).append(entry)
    return [_facts(dataplane, model, entries.get(model.name, ())) for model in models]


def _facts(dataplane: DataPlane, model: Model, entries: Iterable[IndexEntry]) -> ModelFacts:
    alike: dict[object, list[Version]] = {}
    for _, version in sorted(model.live.items()):
        alike.setdefault(_signature(version.rules), []).append(version)
    # Any of several signatures may be the one of the version that a request without a version gets.
    unnamed = len(alike) == 1 and dataplane.model_ready(model.name)
    forms = tuple(_form(model.name, versions, unnamed=unnamed) for versions in alike.values())
    live = {str(number) for number in model.live}
    return ModelFacts(model.name, forms, tuple(entry for entry in entries if entry.version not in live))


def _signature(rules: ModelRules) -> object:
    """What must be equal in versions that are shown as one."""
    sides = [
        tuple((rule.name, rule.datatype, rule.shape, rule.optional) for rule in side.values())
        for side in (rules.inputs, rules.outputs)
    ]
    return (*sides, rules.max_batch_size)


def _form(name: str, versions: Sequence[Version], *, unnamed: bool) -> Form:
    live = tuple(LiveVersion(v.number, v.provenance.proof, v.execution.fault) for v in versions)
    place = f"/v2/models/{_quoted(name)}"
    if not unnamed:
        answering = [version.number for version in live if not version.fault]
        place += f"/versions/{max(answering or [version.number for version in live])}"
    return Form(versions[0].rules, live, f"{place}/infer", not unnamed)


def _quoted(name: str) -> str:
    """A name as one part of a path; a folder's name need not be UTF-8."""
    return quote(name, safe="", errors="surrogateescape")


# --- sample requests ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A request that a model answers.

    Attributes:
        document: Its JSON.
        zero_bytes: Number of zero bytes that follow the JSON: the values of inputs that are too long to be listed.
    """

    document: Mapping[str, Any]
    zero_bytes: int = 0

    @property
    def text(self) -> str:
        """The JSON as text, all of it printable ASCII, so that a terminal takes it as it is."""
        return json.dumps(self.document).replace("\x7f", "\\u007f")

    @property
    def size_bytes(self) -> int:
        """Length of the body."""
        return len(self.text) + self.zero_bytes

    def headers(self) -> dict[str, str]:
        """The headers that go with the body."""
        if not self.zero_bytes:
            return {"content-type": "application/json"}
        length = str(len(self.text))
        return {"content-type": "application/octet-stream", "Inference-Header-Content-Length": length}

    def body(self) -> bytes:
        """The body."""
        return self.text.encode() + bytes(self.zero_bytes)


def sample_request(rules: ModelRules) -> Sample:
    """A small request that fits: sizes that vary are 1, numbers are 0, texts are "a".

    Inputs that may be left out are left out, for what a 0 means to them is not known. Inputs of so many elements
    that nobody would read them are sent as bytes, where texts are empty.

    Args:
        rules: What the version takes.
    """
    inputs, listed, zero_bytes = [], 0, 0
    for rule in rules.inputs.values():
        if rule.optional:
            continue
        shape = [1 if isinstance(dim, str) or dim < 0 else dim for dim in rule.shape]
        count = math.prod(shape)
        entry: dict[str, Any] = {"name": rule.name, "datatype": rule.datatype, "shape": shape}
        if listed + count <= _MAX_LISTED_ELEMENTS:
            listed += count
            entry["data"] = [_value(DATATYPES[rule.datatype])] * count
        else:
            size_bytes = count * _element_bytes(DATATYPES[rule.datatype])
            zero_bytes += size_bytes
            entry["parameters"] = {"binary_data_size": size_bytes}
        inputs.append(entry)
    return Sample({"inputs": inputs}, zero_bytes)


def _value(dtype: DType) -> Any:
    if dtype is DType.STRING:
        return "a"
    if dtype is DType.BOOL:
        return False
    return 0.0 if dtype.is_floating else 0


def _element_bytes(dtype: DType) -> int:
    """Bytes of one element that is all zeros; of a text that is its length alone."""
    return _STRING_LENGTH_BYTES if dtype is DType.STRING else int(dtype.numpy.itemsize)


def curl_line(authority: str, path: str, sample: Sample) -> str:
    """The sample as a line for a POSIX shell.

    Args:
        authority: Host and port, as `authority_of` gives them.
        path: The path, quoted for a URL.
        sample: What is to be sent.
    """
    headers = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in sample.headers().items())
    call = f"curl -sS {shlex.quote(authority + path)} {headers}"
    text = shlex.quote(sample.text)
    if not sample.zero_bytes:
        return f"{call} --data-raw {text}"
    tensors = f"head -c {sample.zero_bytes} /dev/zero"
    return f"{{ printf %s {text}; {tensors}; }} | {call} --data-binary @-"


def authority_of(host: str | None, bound: tuple[str, int]) -> str:
    """Host and port for a command line: what the client itself used if that is a plain name or address.

    Args:
        host: The request's Host header, which may be anything.
        bound: The address that the request came to.
    """
    if host is not None and _HOST.fullmatch(host):
        return host
    address, port = bound
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# --- the page ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """Everything that a page is made of.

    Attributes:
        title: What answers here.
        version: Its version.
        authority: Host and port for command lines.
        max_body_bytes: Largest request.
        note: One sentence about the state of the gateway; empty if there is nothing to say.
        models: The models that it shows.
        one_model: Whether it is the page of a model and not of all.
        calls: The OpenAPI document of all calls.
    """

    title: str
    version: str
    authority: str
    max_body_bytes: int
    note: str
    models: Sequence[ModelFacts]
    one_model: bool
    calls: Mapping[str, Any]


def render(page: Page) -> str:
    """The page as HTML.

    Args:
        page: What it is made of.
    """
    up = "../" if page.one_model else ""
    title = _shown(page.title)
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{_STYLE}</head>',
        f"<body><h1>{title} {_shown(page.version)}</h1>",
        f'<p>The v2 inference protocol. <a href="{up}openapi.json">The OpenAPI document</a> describes every call'
        + (', <a href="../docs">this page</a> every model.</p>' if page.one_model else ".</p>"),
    ]
    if page.note:
        parts.append(f'<p class="note">{_shown(page.note)}</p>')
    parts += _models(page)
    if not page.one_model:
        parts.append(_calls(page.calls))
    return "\n".join([*parts, "</body></html>\n"])


_STYLE = """<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 }
th, td { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere }
pre { background: #f4f4f4; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; user-select: all }
.note { border-left: .3rem solid #b30000; padding-left: .6rem }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616 } pre { background: #262626 } a { color: #8ab4f8 } }
</style>"""


def _models(page: Page) -> list[str]:
    if page.one_model:
        return [_model(page, model, 0) for model in page.models]
    in_full = len(page.models) <= _MAX_MODELS_IN_FULL
    items = "".join(
        f'<li><a href="docs/{_quoted(model.name)}">{_shown(model.name)}</a>: {_summary(model)}</li>'
        for model in page.models
    )
    parts = [f"<h2>Models</h2><ul>{items}</ul>"] if items else []
    if not items and not page.note:
        parts.append("<h2>Models</h2><p>No model is here yet.</p>")
    if in_full:
        parts += [_model(page, model, number) for number, model in enumerate(page.models)]
    return parts


def _summary(model: ModelFacts) -> str:
    numbers = sorted(version.number for form in model.forms for version in form.versions)
    if not numbers:
        return "no live version"
    return f"live version{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _model(page: Page, model: ModelFacts, number: int) -> str:
    parts = [f'<section id="model-{number}"><h2>{_shown(model.name)}</h2>']
    parts += [_rendered_form(page, form) for form in model.forms]
    if not model.forms:
        parts.append("<p>No version is live.</p>")
    if model.missing:
        rows = [(e.version or "-", e.state or "UNAVAILABLE", e.reason) for e in model.missing]
        parts.append("<p>Not live:</p>" + _table(("version", "state", "reason"), rows))
    return "\n".join([*parts, "</section>"])


def _rendered_form(page: Page, form: Form) -> str:
    batch = str(form.rules.max_batch_size)
    versions = [(str(v.number), v.proof, batch, v.fault or "answers") for v in form.versions]
    tensors = [_row("input", rule) for rule in form.rules.inputs.values()]
    tensors += [_row("output", rule) for rule in form.rules.outputs.values()]
    return "\n".join(
        [
            _table(("version", "proof", "max_batch_size", "state"), versions),
            _table(("", "name", "datatype", "shape"), tensors),
            _rendered_sample(page, form),
        ]
    )


def _row(kind: str, rule: TensorRule) -> tuple[str, ...]:
    dims = ", ".join(f"-1 ({dim})" if isinstance(dim, str) else str(dim) for dim in rule.shape)
    return (f"{kind}, optional" if rule.optional else kind, rule.name, rule.datatype, f"[{dims}]")


def _rendered_sample(page: Page, form: Form) -> str:
    sample = sample_request(form.rules)
    if sample.size_bytes > page.max_body_bytes:
        return (
            f"<p>The smallest request has {sample.size_bytes} bytes, more than the {page.max_body_bytes} that "
            "this gateway takes (<code>--max-body-bytes</code>).</p>"
        )
    zeros = ""
    if sample.zero_bytes:
        zeros = (
            f", then {sample.zero_bytes} zero bytes, with the header "
            f"<code>Inference-Header-Content-Length: {len(sample.text)}</code>"
        )
    line = curl_line(page.authority, form.path, sample)
    return (
        f"<p>A request, <code>POST {_shown(form.path)}</code>{zeros}:</p><pre>{_shown(sample.text)}</pre>"
        f'<p>The same for a shell:</p><pre class="curl">{_shown(line)}</pre>'
    )


def _calls(document: Mapping[str, Any]) -> str:
    rows = [
        (method.upper(), path, operation.get("description", ""))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return "<h2>Calls</h2>" + _table(("method", "path", "what it does"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{_shown(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_shown(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _shown(text: str) -> str:
    """Text for a page: nothing in it is markup; what is invisible or turns the line around is spelled out."""
    visible = (
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
    return escape("".join(visible))


# --- OpenAPI -----------------------------------------------------------------------------------------------------

_BYTES: Mapping[str, Any] = {"schema": {"type": "string", "format": "binary"}}

INFER_EXTRAS: Mapping[str, Any] = {
    "parameters": [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "schema": {"type": "integer", "minimum": 0},
            "description": "Length of the JSON, where the bytes of tensors follow it in the body.",
        }
    ],
    "requestBody": {"content": {"application/octet-stream": _BYTES}},
    "responses": {
        "200": {
            "content": {"application/octet-stream": _BYTES},
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in (
                    ("x-pg-model-version", "The version that answered."),
                    ("x-pg-rule", "Why it was this one."),
                    ("x-pg-proof", "Whether it is proven."),
                )
            },
        }
    },
}
"""What the OpenAPI entry of inference has beside what FastAPI makes of the models of its bodies."""


def without_validation_errors(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of FastAPI's OpenAPI document without the answers that only FastAPI itself would give.

    Args:
        document: What FastAPI made.
    """
    mended = copy.deepcopy(dict(document))
    for operations in mended["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        mended.get("components", {}).get("schemas", {}).pop(name, None)
    return mended


def add_examples(document: Mapping[str, Any], models: Iterable[ModelFacts]) -> None:
    """Put a sample request of every live signature into an OpenAPI document.

    Args:
        document: The document; it is changed.
        models: What is live.
    """
    for model in models:
        for form in model.forms:
            numbers = [version.number for version in form.versions]
            key = f"{model.name}, version {numbers[-1]}" if form.names_version else model.name
            paths = [VERSION_INFER_PATH] if form.names_version else [INFER_PATH, VERSION_INFER_PATH]
            for path in paths:
                content = document["paths"][path]["post"]["requestBody"]["content"]
                media_type, example = _example(form, numbers)
                content[media_type].setdefault("examples", {})[key] = example


def _example(form: Form, numbers: Sequence[int]) -> tuple[str, dict[str, Any]]:
    sample = sample_request(form.rules)
    summary = f"{form.rules.model}, live in version {', '.join(map(str, numbers))}"
    if not sample.zero_bytes:
        return "application/json", {"summary": summary, "value": sample.document}
    length = f"Inference-Header-Content-Length is {len(sample.text)}"
    text = f"This JSON, then {sample.zero_bytes} zero bytes; {length}."
    return "application/octet-stream", {"summary": summary, "description": text, "value": sample.text}
