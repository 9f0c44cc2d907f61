"""Every error survives the way to the parent; everything else that a child may say is a fault."""

from __future__ import annotations

import json
import sys
import tempfile

import pytest

from paritygate.converter import errors
from paritygate.converter.environments.protocol import Conversation, Event, encode, encode_error
from paritygate.converter.errors import BundleCorrupt, ConverterError, EnvironmentFailure, UnsupportedOperator
from paritygate.converter.processes import run_supervised

_ALL_ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ConverterError)
]


def _silent(_event: Event) -> None:
    return None


@pytest.mark.parametrize("kind", _ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_its_own_class(kind: type[ConverterError]) -> None:
    error = kind.__new__(kind)
    error.args = ("one line",)
    conversation = Conversation(_silent)
    conversation.hear(encode_error(error))
    assert type(conversation.error) is kind
    assert str(conversation.error) == "one line"


def test_the_facts_of_an_error_arrive() -> None:
    for sent in (
        UnsupportedOperator("no form", operator="Erfinv", module="model/odd"),
        BundleCorrupt("other bytes", file="model.onnx"),
        EnvironmentFailure("crashed", detail="last\nlines"),
    ):
        conversation = Conversation(_silent)
        conversation.hear(encode_error(sent))
        assert conversation.error is not None
        assert vars(conversation.error) == vars(sent)


@pytest.mark.parametrize(
    "text", ["x" * 2**21, "\N{GRINNING FACE}" * 2**20, "\x00" * 2**20], ids=["x", "wide", "nul"]
)
def test_an_error_with_long_facts_arrives_as_itself(text: str) -> None:
    """The parent cuts lines of more than 1 MiB, so what is sent is heard through the same kind of pipe."""
    sent = UnsupportedOperator(text, operator=f"begins {text}", module=f"{text} ends")
    vars(sent).update({"n" * 10**6: 1, "digits": 10**5000, **{f"fact_{index}": text for index in range(40)}})
    command = "import os, sys; os.write(int(os.environ['PARITYGATE_CHANNEL_FD']), sys.stdin.buffer.read())"
    conversation = Conversation(_silent)
    with tempfile.TemporaryFile() as message:
        message.write(encode_error(sent))
        message.seek(0)
        run_supervised(
            [sys.executable, "-I", "-c", command],
            timeout_s=30,
            stdin=message.fileno(),
            on_channel=conversation.hear,
        )
    assert conversation.fault == ""
    assert type(conversation.error) is UnsupportedOperator
    assert conversation.error.operator.startswith("begins ")
    assert conversation.error.module is not None
    assert conversation.error.module.endswith(" ends")


def test_a_value_error_and_unknown_subclasses_arrive_as_the_nearest_known_class() -> None:
    class Private(UnsupportedOperator):
        pass

    for sent, expected in (
        (ValueError("bad argument"), ValueError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), ValueError),
        (Private("x", operator="Op"), UnsupportedOperator),
    ):
        conversation = Conversation(_silent)
        conversation.hear(encode_error(sent))
        assert type(conversation.error) is expected


def test_events_are_handed_on_in_order() -> None:
    events: list[Event] = []
    conversation = Conversation(events.append)
    conversation.hear(encode("progress", message="a"))
    conversation.hear(encode("warning", message="b"))
    conversation.hear(encode("result", bundle="bundle", digest="sha256:0"))
    assert events == [Event("progress", "a"), Event("warning", "b")]
    assert conversation.result is not None
    assert conversation.result["digest"] == "sha256:0"
    assert conversation.fault == ""


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"{}",
        b'{"protocol": 2, "kind": "progress", "message": "x"}',
        b'{"protocol": 1, "kind": "run", "message": "x"}',
        b'{"protocol": 1, "kind": "progress"}',
        b'{"protocol": 1, "kind": "error", "error": "SystemExit", "message": "x", "facts": {}}',
        b'{"protocol": 1, "kind": "error", "error": "EnvironmentFailure", "message": "x", "facts": 3}',
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:60]),
)
def test_anything_else_is_a_fault_and_ends_the_listening(line: bytes) -> None:
    conversation = Conversation(_silent)
    conversation.hear(line)
    assert conversation.fault
    conversation.hear(encode("result", bundle="bundle", digest="d"))
    assert conversation.result is None


def test_a_message_after_the_last_one_is_a_fault() -> None:
    conversation = Conversation(_silent)
    conversation.hear(encode("result", bundle="bundle", digest="d"))
    conversation.hear(encode("result", bundle="other", digest="e"))
    assert "after the last one" in conversation.fault
    assert conversation.result is not None
    assert conversation.result["bundle"] == "bundle"


def test_an_error_of_the_listener_is_not_taken_for_a_fault_of_the_child() -> None:
    def listener(_event: Event) -> None:
        raise ValueError("mine")

    conversation = Conversation(listener)
    with pytest.raises(ValueError, match="mine"):
        conversation.hear(encode("progress", message="a"))
    assert conversation.fault == ""


def test_messages_are_one_line_each_whatever_they_hold() -> None:
    line = encode("progress", message="two\nlines \u2028 and \x00")
    assert line.count(b"\n") == 1
    assert json.loads(line)["message"] == "two\nlines \u2028 and \x00"
