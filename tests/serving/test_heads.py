"""JSON heads that are kept: later requests that begin alike are read as the first one was, errors included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades import v2_json


@pytest.fixture(autouse=True)
def kept() -> Iterator[Any]:
    v2_json._KEPT.clear()
    yield v2_json._KEPT
    v2_json._KEPT.clear()


def body_of(*arrays: np.ndarray[Any, Any], **more: Any) -> tuple[bytes, int]:
    inputs = [
        {
            "name": f"x{k}",
            "datatype": "FP32",
            "shape": list(a.shape),
            "parameters": {"binary_data_size": a.nbytes},
        }
        for k, a in enumerate(arrays)
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(a.tobytes() for a in arrays), len(head)


def test_tensors_of_requests_that_begin_alike_are_their_own(kept: Any) -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    for seed in range(3):
        given = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        body, length = body_of(given, given[:1], outputs=outputs, parameters={"priority": 2})
        wire = v2_json.decode_request(body, length, f"model{seed}", "")
        np.testing.assert_array_equal(wire.request.inputs[0].array, given)
        np.testing.assert_array_equal(wire.request.inputs[1].array, given[:1])
        assert wire.request.model_name == f"model{seed}"
        assert wire.request.parameters == {"priority": 2}
        assert [(o.name, o.binary) for o in wire.request.outputs] == [("y", True)]
        wire.request.outputs.clear()  # what one request does to its own is nothing to the next
        dict.clear(wire.request.parameters)  # type: ignore[arg-type]
    assert len(kept) == 1


def test_a_body_that_does_not_fit_a_known_head_is_refused_as_ever() -> None:
    body, length = body_of(np.zeros((2, 3), np.float32))
    said = []
    for _ in range(2):  # before it is known, and after
        for wrong in (body[:-4], body + b"1234"):
            with pytest.raises(InvalidArgument) as caught:
                v2_json.decode_request(wrong, length, "m", "")
            said.append(str(caught.value))
        v2_json.decode_request(body, length, "m", "")
    assert said[:2] == said[2:]


def test_ids_and_json_tensors_are_not_kept(kept: Any) -> None:
    array = np.zeros(2, np.float32)
    for name in ("a", "b"):
        body, length = body_of(array, id=name)
        assert v2_json.decode_request(body, length, "m", "").request.id == name
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    v2_json.decode_request(head, len(head), "m", "")
    assert not kept


def test_what_is_kept_is_bounded(kept: Any) -> None:
    for k in range(v2_json._MAX_KEPT + 50):
        body, length = body_of(np.zeros(1, np.float32), parameters={"k": k})
        v2_json.decode_request(body, length, "m", "")
    assert len(kept) == v2_json._MAX_KEPT
    body, length = body_of(np.zeros(1, np.float32), parameters={"long": "x" * v2_json._MAX_KEPT_BYTES})
    v2_json.decode_request(body, length, "m", "")
    assert all(len(text) <= v2_json._MAX_KEPT_BYTES for text in kept)
