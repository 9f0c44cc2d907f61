"""An export that another process shall do, and its form on disk: `request.json` and `arrays.npz`.

No pickle: the arrays are read with pickling off, and a configuration that holds code is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.types import Array, DType, TensorSpec

_REQUEST_FILE = "request.json"
_ARRAYS_FILE = "arrays.npz"


@dataclass(frozen=True)
class ExportRequest:
    """What a child is asked to export.

    Attributes:
        source: A path or `module:factory`; a model in memory cannot go to another process.
        config: How to export it.
        exporter: Name of the exporter; None lets the child tell it from what a factory gives.
    """

    source: str
    config: ExportConfig
    exporter: str | None

    def write(self, directory: Path) -> None:
        """Write the request into a directory.

        Raises:
            EnvironmentFailure: If the configuration holds something that cannot go to another process.
        """
        if self.config.after_conversion is not None:
            raise EnvironmentFailure(
                "after_conversion is a function of this process and cannot run in a framework environment. "
                "Export in process to use it."
            )
        arrays = _Arrays({})
        fields = {
            field.name: arrays.encode(getattr(self.config, field.name))
            for field in dataclasses.fields(self.config)
            if field.name != "after_conversion"
        }
        document = {"source": self.source, "exporter": self.exporter, "config": fields}
        np.savez(directory / _ARRAYS_FILE, **arrays.stored)  # type: ignore[arg-type]
        (directory / _REQUEST_FILE).write_text(json.dumps(document), "utf-8")

    @classmethod
    def read(cls, directory: Path) -> ExportRequest:
        """Read the request that `write` wrote."""
        document = json.loads((directory / _REQUEST_FILE).read_text("utf-8"))
        with np.load(directory / _ARRAYS_FILE, allow_pickle=False) as stored:
            arrays = _Arrays(dict(stored))
        fields = {name: arrays.decode(value) for name, value in document["config"].items()}
        return cls(document["source"], ExportConfig(**fields), document["exporter"])


@dataclass(frozen=True)
class _Arrays:
    """Turns values into JSON and back; arrays are set aside in `stored`."""

    stored: dict[str, Array]

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, TensorSpec):
            return {"kind": "spec", "value": value.to_json()}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "items": [self.encode(item) for item in value]}
        if isinstance(value, Mapping):
            return {"kind": "map", "items": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, np.ndarray | np.generic):
            return self._set_aside(np.asarray(value))
        raise EnvironmentFailure(
            f"a {type(value).__name__} cannot be handed to a framework environment; "
            "give example inputs as numpy arrays, or as texts such as 'x:float32[batch,3]'."
        )

    def _set_aside(self, array: Array) -> dict[str, Any]:
        key = f"array_{len(self.stored)}"
        dtype = DType.from_numpy(array.dtype)
        if dtype is DType.STRING:
            self.stored[key] = array.astype(np.str_)
        elif dtype is DType.BFLOAT16:
            self.stored[key] = array.view(np.uint16)
        else:
            self.stored[key] = array
        return {"kind": "array", "key": key, "dtype": dtype.value}

    def decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        match value["kind"]:
            case "spec":
                return TensorSpec.from_json(value["value"])
            case "list":
                return [self.decode(item) for item in value["items"]]
            case "tuple":
                return tuple(self.decode(item) for item in value["items"])
            case "map":
                return {self.decode(key): self.decode(item) for key, item in value["items"]}
        array = self.stored[value["key"]]
        dtype = DType(value["dtype"])
        return array.view(dtype.numpy) if dtype is DType.BFLOAT16 else array.astype(dtype.numpy, copy=False)
