"""Canonical JSON out, strict JSON in: one value has one text, and hostile text gives one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""Largest JSON document that is read. A certificate of a model with hundreds of outputs stays far below it."""


def canonical(value: Any) -> bytes:
    """The one UTF-8 form of a JSON value: sorted keys, two-space indent, a newline at the end, no NaN.

    Raises:
        ValueError: If the value holds a NaN or an infinity, which JSON cannot say.
    """
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def parse(data: bytes, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The value of a JSON document that others wrote.

    Raises:
        ValueError: With one sentence, if the document is too large, no UTF-8, no JSON, nested too deeply, or says
            a key twice, NaN or an infinity.
    """
    if len(data) > max_bytes:
        raise ValueError(f"the document is larger than {max_bytes} bytes")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} is given twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
