"""PMML's XML as plain elements that know their line: no DTD, no entities, no other files, bounded in all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar
from xml.parsers import expat

from paritygate.converter.errors import SourceError, UnsupportedOperator

_T = TypeVar("_T")

MAX_FILE_BYTES = 1 << 30
MAX_ELEMENTS = 20_000_000
MAX_DEPTH = 3_000
"""A tree of PMML nests one element a split; scikit-learn's deepest are a few hundred."""
MAX_ATTRIBUTES = 200
MAX_TEXT_CHARS = 1 << 26

VERSIONS = ("3.0", "3.1", "3.2", "4.0", "4.1", "4.2", "4.3", "4.4")
_NAMESPACE = re.compile(r"http://www\.dmg\.org/PMML-(\d+)_(\d+)(?:_\d+)?")


class Element:
    """One element: its name without namespace, attributes, children without extensions, text and line.

    Attributes:
        tag: Local name.
        attributes: As in the file.
        children: In order; `Extension` elements are left out.
        text: The character data directly inside.
        line: Line in the file, from 1.
        parent: The element around it.
    """

    __slots__ = ("attributes", "children", "line", "parent", "tag", "text")

    def __init__(self, tag: str, attributes: dict[str, str], line: int, parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element] = []
        self.text = ""
        self.line = line
        self.parent = parent

    def get(self, name: str, default: str = "") -> str:
        """An attribute, or the default."""
        return self.attributes.get(name, default)

    def need(self, name: str) -> str:
        """An attribute that has to be there."""
        if name not in self.attributes:
            raise malformed(self, f"it lacks the attribute {name!r}")
        return self.attributes[name]

    def number(self, name: str, default: float | None = None) -> float:
        """A number in an attribute."""
        text = self.attributes.get(name)
        if text is None and default is not None:
            return default
        return parse_number(self.need(name), self)

    def find(self, tag: str) -> Element | None:
        """The first child of a name."""
        return next((child for child in self.children if child.tag == tag), None)

    def all(self, *tags: str) -> list[Element]:
        """The children of these names, in order."""
        return [child for child in self.children if child.tag in tags]

    def child(self, tag: str) -> Element:
        """The first child of a name, which has to be there."""
        found = self.find(tag)
        if found is None:
            raise malformed(self, f"it lacks the element {tag}")
        return found

    def walk(self) -> Iterator[Element]:
        """This element and all below, in document order."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    def path(self) -> str:
        """The way from the root, as `PMML/TreeModel/Node/Node`; long ways keep their ends."""
        tags: list[str] = []
        element: Element | None = self
        while element is not None:
            tags.append(element.tag)
            element = element.parent
        tags.reverse()
        return "/".join(tags if len(tags) <= 8 else [*tags[:4], "…", *tags[-3:]])


def refuse(element: Element, what: str, advice: str) -> UnsupportedOperator:
    """The error for something that PMML knows and that is not read here."""
    return UnsupportedOperator(
        f"{element.path()} (line {element.line}): {what} cannot be converted. {advice}",
        operator=element.tag,
        module=element.path(),
    )


def malformed(element: Element, what: str) -> SourceError:
    """The error for what PMML itself does not allow."""
    return SourceError(
        f"{element.path()} (line {element.line}): {what}; the file is not valid PMML. "
        "Write it again with the tool that it came from, or correct that line."
    )


def parse_number(text: str, element: Element) -> float:
    """A number as PMML writes it: `1`, `-2.5E3`, `INF`, `-INF`, `NaN`."""
    try:
        return float(text.strip().replace("INF", "inf"))
    except ValueError as error:
        raise malformed(element, f"{_short(text)!r} is not a number") from error


def parse_array(element: Element) -> list[str]:
    """The tokens of an `Array`: split at blanks, quoted where they hold some."""
    tokens = []
    for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', element.text):
        tokens.append(plain or quoted.replace('\\"', '"'))
    told = element.attributes.get("n")
    if told is not None and told != str(len(tokens)):
        raise malformed(element, f"it says n={told} and holds {len(tokens)} values")
    return tokens


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


@dataclass(frozen=True)
class Document:
    """A whole file.

    Attributes:
        root: The `PMML` element.
        version: `4.4`.
    """

    root: Element
    version: str


def read_document(path: Path) -> Document:
    """Read a PMML file.

    Raises:
        SourceError: If it is no PMML of a known version, is cut off, or carries what no model needs: a document
            type, entities, or sizes beyond all bounds.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise SourceError(f"{path} has {size} bytes; PMML files up to {MAX_FILE_BYTES} bytes are read.")
    reader = _Reader(path)
    root = reader.read()
    return Document(root, _version(root, reader.namespace, path))


def _version(root: Element, namespace: str, path: Path) -> str:
    if root.tag != "PMML":
        raise SourceError(
            f"{path} is XML with the root element {_short(root.tag)!r}; expected <PMML>. "
            "Give the file that a PMML writer made."
        )
    match = _NAMESPACE.fullmatch(namespace)
    if namespace and match is None:
        raise SourceError(
            f"{path} puts its elements into the namespace {_short(namespace)!r}; expected "
            "http://www.dmg.org/PMML-4_4 or that of another version."
        )
    told = re.match(r"\d+\.\d+", root.get("version"))
    version = told[0] if told else f"{match[1]}.{match[2]}" if match else ""
    if version not in VERSIONS:
        raise SourceError(
            f"{path} is PMML {_short(root.get('version')) or 'of no version'}; versions 3.0 to 4.4 are read. "
            "Write it again as PMML 4.4."
        )
    return version


class _Reader:
    """Builds the elements from expat's events; expat never opens another file, and entities are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.namespace = ""
        self._root: Element | None = None
        self._current: Element | None = None
        self._depth = self._skipped = self._count = self._chars = 0
        self._texts: list[list[str]] = []
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.EntityDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data

    def read(self) -> Element:
        try:
            with self.path.open("rb") as file:
                self._parser.ParseFile(file)
        except expat.ExpatError as error:
            raise SourceError(
                f"{self.path} is not whole XML (line {error.lineno}: {expat.ErrorString(error.code)}); "
                "it may be cut off. Write or copy it again."
            ) from error
        except (
            LookupError,
            ValueError,
        ) as error:  # from Python's codecs, which expat asks for rare encodings
            raise SourceError(
                f"{self.path} is in an encoding that is not read ({_short(str(error))}); write it again in UTF-8."
            ) from error
        assert self._root is not None, "expat refuses a document without an element"
        return self._root

    def _doctype(self, *_: object) -> None:
        raise SourceError(
            f"{self.path} (line {self._parser.CurrentLineNumber}) declares a document type or entities, which "
            "could name other files or expand without end; it was not read. Remove the DOCTYPE: PMML needs none."
        )

    def _limit(self, what: str, limit: int) -> NoReturn:
        raise SourceError(
            f"{self.path} (line {self._parser.CurrentLineNumber}) has more than {limit} {what}; "
            "no such file is read. Give a smaller model."
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH:
            self._limit("elements inside each other", MAX_DEPTH)
        if self._count > MAX_ELEMENTS:
            self._limit("elements", MAX_ELEMENTS)
        if len(attributes) > MAX_ATTRIBUTES:
            self._limit("attributes on one element", MAX_ATTRIBUTES)
        namespace, _, tag = name.rpartition(" ")
        if self._skipped or tag == "Extension":
            self._skipped += 1
            return
        element = Element(tag, attributes, self._parser.CurrentLineNumber, self._current)
        if self._current is None:
            self._root, self.namespace = element, namespace
        else:
            self._current.children.append(element)
        self._current = element
        self._texts.append([])

    def _end(self, _: str) -> None:
        self._depth -= 1
        if self._skipped:
            self._skipped -= 1
            return
        assert self._current is not None, "expat pairs starts and ends"
        text = self._texts.pop()
        if text:
            self._current.text = "".join(text).strip()
        self._current = self._current.parent

    def _data(self, text: str) -> None:
        if self._skipped or not self._texts or text.isspace():
            return
        self._chars += len(text)
        if self._chars > MAX_TEXT_CHARS:
            self._limit("characters of text", MAX_TEXT_CHARS)
        self._texts[-1].append(text)


MODELS = ("TreeModel", "MiningModel", "RegressionModel", "NeuralNetwork")


def main_model(document: Document) -> Element:
    """The one model of a document.

    Raises:
        UnsupportedOperator: If it is of a kind that is not read.
        SourceError: If there is none, or more than one.
    """
    others = ("Header", "MiningBuildTask", "DataDictionary", "TransformationDictionary")
    models = [child for child in document.root.children if child.tag not in others]
    scorable = [model for model in models if model.get("isScorable", "true") == "true"]
    if not scorable:
        raise malformed(document.root, "it holds no model that can be scored")
    if len(scorable) > 1:
        raise refuse(scorable[1], f"a second model beside {scorable[0].tag}", "Keep one model in a file.")
    if scorable[0].tag not in MODELS:
        raise refuse(
            scorable[0], f"a {scorable[0].tag}", f"{', '.join(MODELS[:-1])} and {MODELS[-1]} are read."
        )
    return scorable[0]


def only(elements: Sequence[_T], element: Element, what: str) -> _T:
    """The one element of a list."""
    if len(elements) != 1:
        raise malformed(element, f"it holds {len(elements)} {what} where one is expected")
    return elements[0]
