"""Traces: when sampled requests were where, and what they held, in a file that Triton's own tools read.

Source: triton-inference-server/server, docs/user_guide/trace.md and docs/protocol/extension_trace.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from paritygate.converter.types import Array, DType
from paritygate.serving.errors import InvalidArgument, Unsupported
from paritygate.serving.types import DATATYPE_NAMES, InferTensor

log = logging.getLogger("paritygate.serving")

LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
_MAX_WAITING = 10_000
_MAX_FILE_BYTES = 256 << 20
_MAX_SHOWN_ELEMENTS = 4096

Value: TypeAlias = "str | int | Sequence[str | int] | None"
"""A setting as a client gives it; None takes it back."""


@dataclass(frozen=True)
class TraceSettings:
    """What is traced.

    Attributes:
        levels: `OFF`, or what of `TIMESTAMPS` and `TENSORS` is written.
        rate: One in so many requests is traced.
        count: How many more are; -1 sets no limit.
        log_frequency: After so many traces the file is closed and the next one begun; 0 keeps one file.
    """

    levels: tuple[str, ...] = ("OFF",)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


_WHOLE = {"trace_rate": ("rate", 1), "trace_count": ("count", -1), "log_frequency": ("log_frequency", 0)}


class Tracer:
    """The settings of all models, and the traces that wait to be written.

    Args:
        path: The file; None where the operator named none, and nothing can then be traced.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._global = TraceSettings()
        self._changed: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, int] = {}
        self._waiting: list[dict[str, Any]] = []
        self._next_id = 1
        self._written = 0
        self._full = False
        self.on = False
        """Whether any request is traced; the data plane looks at nothing else."""

    @property
    def enabled(self) -> bool:
        """Whether anything can be traced."""
        return self._path is not None

    def settings(self, model: str = "") -> dict[str, Any]:
        """What holds for a model, or for all that have nothing of their own, as clients are shown it."""
        found = self._of(model)
        return {
            "trace_level": list(found.levels),
            "trace_rate": str(found.rate),
            "trace_count": str(found.count),
            "log_frequency": str(found.log_frequency),
            "trace_file": str(self._path or ""),
            "trace_mode": "triton",
        }

    def update(self, changes: Mapping[str, Value], model: str = "") -> None:
        """Change settings of a model, or of all that have nothing of their own.

        Raises:
            Unsupported: If nothing can be traced, or the setting cannot be changed.
            InvalidArgument: If there is no such setting, or the value is none for it.
        """
        if self._path is None:
            raise Unsupported(
                "nothing is traced here; the operator may name a file with `paritygate serve --trace-file`."
            )
        read = {name: _read(name, value) for name, value in changes.items()}
        for field, value in read.values():
            self._set(model, field, value)
        self._seen.pop(model, None)
        everywhere = [self._global, *(self._of(name) for name in self._changed)]
        self.on = any(settings.levels != ("OFF",) and settings.count for settings in everywhere)

    def _set(self, model: str, field: str, value: Any) -> None:
        if not model:
            default = getattr(TraceSettings(), field)
            self._global = replace(self._global, **{field: default if value is None else value})
        elif value is None:
            self._changed.get(model, {}).pop(field, None)
        else:
            self._changed.setdefault(model, {})[field] = value

    def _of(self, model: str) -> TraceSettings:
        return replace(self._global, **self._changed.get(model, {}))

    def note(
        self,
        model: str,
        version: int,
        request_id: str,
        timestamps: Sequence[tuple[str, int]],
        inputs: Mapping[str, Array],
        outputs: Sequence[InferTensor],
    ) -> None:
        """Take note of an answered request if it is one that is to be traced."""
        settings = self._of(model)
        if settings.levels == ("OFF",) or settings.count == 0:
            return
        seen = self._seen.get(model, 0)
        self._seen[model] = seen + 1
        if seen % settings.rate or len(self._waiting) >= _MAX_WAITING:
            return
        self._count_down(model, settings)
        trace: dict[str, Any] = {"id": self._next_id, "model_name": model, "model_version": version}
        self._next_id += 1
        if request_id:
            trace["request_id"] = request_id
        if "TIMESTAMPS" in settings.levels:
            trace["timestamps"] = [{"name": name, "ns": ns} for name, ns in timestamps]
        self._waiting.append(trace)
        if "TENSORS" in settings.levels:
            tensors = [("TENSOR_QUEUE_INPUT", name, array) for name, array in inputs.items()]
            tensors += [("TENSOR_BACKEND_OUTPUT", tensor.name, tensor.array) for tensor in outputs]
            self._waiting += [
                {"id": trace["id"], "activity": activity, "tensor": _shown(name, array)}
                for activity, name, array in tensors
            ]

    def _count_down(self, model: str, settings: TraceSettings) -> None:
        if settings.count < 0:
            return
        owner = model if "count" in self._changed.get(model, {}) else ""
        self._set(owner, "count", settings.count - 1)

    async def flush(self) -> None:
        """Write what waits; called again and again, and once at the end."""
        if self._path is None or not self._waiting or self._full:
            self._waiting.clear()
            return
        waiting, self._waiting = self._waiting, []
        try:
            await asyncio.to_thread(self._write, waiting)
        except OSError as error:
            log.warning("traces cannot be written to %s: %s", self._path, error.strerror)

    def _write(self, traces: list[dict[str, Any]]) -> None:
        frequency = self._global.log_frequency
        for trace in traces:
            new = "activity" not in trace
            self._written += new
            index = (self._written - 1) // frequency if frequency else None
            assert self._path is not None  # nothing waits where there is no file
            path = self._path if index is None else self._path.with_name(f"{self._path.name}.{index}")
            if not _append(path, trace):
                self._full = True
                log.warning("%s has %d bytes; nothing more is traced into it.", path, _MAX_FILE_BYTES)
                return


def _append(path: Path, trace: dict[str, Any]) -> bool:
    """Put an entry at the end of the list in a file, which is whole JSON after it; False if the file is full."""
    text = json.dumps(trace).encode()
    with path.open("ab+") as file:
        size = file.seek(0, 2)
        if size > _MAX_FILE_BYTES:
            return False
        if size:
            file.truncate(size - 1)  # the bracket that ends the list
        file.write((b",\n" if size else b"[") + text + b"]")
    return True


def _shown(name: str, array: Array) -> dict[str, str]:
    """A tensor as Triton writes it: all as text; of a large one the first elements."""
    flat = array.ravel()[:_MAX_SHOWN_ELEMENTS].tolist()
    return {
        "name": name,
        "data": ",".join(map(str, flat)),
        "shape": ",".join(map(str, array.shape)),
        "dtype": DATATYPE_NAMES[DType.from_numpy(array.dtype)],
    }


def _read(name: str, value: Value) -> tuple[str, Any]:
    """The field of a setting, and the value that a client gave for it."""
    if name == "trace_level":
        return "levels", None if value is None else _levels(value)
    if name in _WHOLE:
        field, least = _WHOLE[name]
        return field, None if value is None else _whole(name, value, least)
    if name in ("trace_file", "trace_mode"):
        raise Unsupported(f"'{name}' is set when the gateway is started and cannot be changed.")
    known = ", ".join(("trace_level", *_WHOLE))
    raise InvalidArgument(f"there is no trace setting '{name[:60]}'; there are {known}.")


def _levels(value: Value) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not given or any(level not in LEVELS for level in given):
        raise InvalidArgument(f"trace_level is {value!r}; expected a list of {', '.join(LEVELS)}.")
    levels = tuple(dict.fromkeys(str(level) for level in given))
    if "OFF" in levels and len(levels) > 1:
        raise InvalidArgument(f"trace_level is {value!r}; OFF stands alone.")
    return levels


def _whole(name: str, value: Value, least: int) -> int:
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    text = str(one) if isinstance(one, (str, int)) and not isinstance(one, bool) else ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or int(text) < least:
        raise InvalidArgument(f"{name} is {value!r}; expected a whole number, {least} or more.")
    return int(text)
