from __future__ import annotations

import time
from decimal import Decimal

import pytest

from paritygate.mesh.errors import RolloutInvalid
from paritygate.mesh.yaml_text import MAX_BYTES, dump_documents, load_document, load_documents


def read(text: str) -> object:
    return load_document(text, source="file")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("33.33", Decimal("33.33")),
        ("1e2", Decimal("1e2")),
        ("'12'", "12"),
        ("yes", "yes"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        ("true", True),
        ("~", None),
        ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ('{"json": [1.5, null]}', {"json": [Decimal("1.5"), None]}),
        ("9" * 65, "9" * 65),
    ],
    ids=lambda v: str(v)[:20],
)
def test_values_are_read_as_they_are_written(text: str, value: object) -> None:
    assert read(text) == value
    assert type(read(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", r"anchors \(&\) and aliases .* @ line 1"),
        ("b: *x", "anchors"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is given twice @ line 3"),
        ("1: a\n'1': b", "the key '1' is given twice"),
        ("!!python/object/apply:os.system ['true']", "tag .* is not read"),
        ("a: !!str 1", "tag .* is not read"),
        ("!mine {a: 1}", "tag '!mine'"),
        ("<<: {a: 1}", "merge keys"),
        ("? [a]\n: b", "a key is a list or a mapping"),
        ("? {a: b}\n: b", "a key is a list or a mapping"),
        ("[" * 3000, "nested deeper than 32"),
        ("a: [1, 2", "is not YAML"),
        ("a: b: c", "is not YAML"),
        ("a: \x07", "is not YAML"),
        ("- 1\n---\n- 2", "holds 2 documents"),
        ("", "holds no documents"),
        ("%YAML 9.9\n---\na", "is not YAML"),
    ],
    ids=lambda v: v[:18],
)
def test_dangers_and_faults_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(RolloutInvalid, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_an_alias_bomb_is_refused_at_once() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    start = time.monotonic()
    with pytest.raises(RolloutInvalid, match="anchors"):
        read(bomb)
    assert time.monotonic() - start < 1


def test_a_large_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(RolloutInvalid, match="larger than 256 KiB"):
        read("a: " + "x" * MAX_BYTES)


def test_a_text_of_the_largest_size_is_read_in_seconds() -> None:
    lines = "".join(f"k{i}: 1\n" for i in range(20_000))
    start = time.monotonic()
    assert len(load_documents(lines, source="file")[0]) == 20_000  # type: ignore[arg-type]
    assert time.monotonic() - start < 20


def test_what_is_dumped_is_read_again_in_the_same_order() -> None:
    documents = [{"z": 1, "a": ["yes", "1", "ü", {"n": None}]}, {"b": 2}]
    assert load_documents(dump_documents(documents), source="file") == documents
    assert list(load_documents(dump_documents(documents), source="file")[0]) == ["z", "a"]  # type: ignore[arg-type]
