"""What an export is asked to do: one frozen dataclass, checked once, the same for every framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paritygate.converter.types import DType, Feeds, TensorSpec

DEFAULT_OPSET = 18
"""The newest opset that every exporter can write: tf2onnx ends at 18, torch and skl2onnx write it too."""

OLDEST_OPSET, NEWEST_OPSET = 13, 23

EXTERNAL_DATA_THRESHOLD_BYTES = 3 * 2**29
"""Weights above 1.5 GiB go to a side file: a protobuf message cannot pass 2 GiB, and the graph needs room."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_SPEC = re.compile(r"(?P<name>[^:\[\]]+):(?P<dtype>\w+)(?:\[(?P<shape>[^\[\]]*)\])?")


@dataclass(frozen=True)
class ExportConfig:
    """How one source becomes one bundle.

    Raises:
        ValueError: If a field cannot be meant; the text names the field, what it got and what it expects.
    """

    name: str
    """The model's name in the manifest: letters, digits, `_`, `-` and `.`, at most 200 characters."""

    inputs: Any = None
    """Example inputs: an array, a tuple (positional) or a dict (by name) of arrays, or `TensorSpec`s and texts
    such as `"x:float32[batch,3,32,32]"` where there is no example. None: the source itself knows its inputs."""

    dynamic: Mapping[str, Mapping[int, str]] | None = None
    """Open dimensions, input name -> axis -> name of the size. Equal names are equal sizes. None: axis 0 is
    `batch` in every input, if all inputs that have an axis agree on its size. `{}`: every size is fixed."""

    input_names: tuple[str, ...] | None = None
    """Names of the inputs in their order; None keeps the source's own."""

    output_names: tuple[str, ...] | None = None
    """Names of the outputs in their order; None keeps the source's own."""

    opset: int = DEFAULT_OPSET
    """Version of the default ONNX operator set that is written."""

    trust: bool = False
    """Whether files that can run code when they are opened may be opened (pickles, `.pt2`, `.joblib`)."""

    factory: str | None = None
    """`module:function` that builds the network into which a weights file is loaded."""

    weights: str | None = None
    """The entry of a training checkpoint that holds the weights, such as `ema_state_dict`; dots go deeper. None
    takes the raw ones, alone or under one of the usual names, and the manifest says which."""

    signature: str | None = None
    """Which signature of a SavedModel. None takes `serving_default` or `serve`, or the only one that there is."""

    keep_saved_model: bool = False
    """Whether the SavedModel that is exported travels with the bundle, for TensorFlow Serving."""

    samples: tuple[Feeds, ...] = ()
    """The user's own inputs. Their digest and figures are recorded; the arrays stay out of the bundle."""

    include_samples: bool = False
    """Whether the samples become probes, which seals their arrays into the bundle for anyone to read."""

    integer_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest value, both included, that an integer input may take. An input that is not named
    takes what its example shows, or the rows of the embedding it indexes, where the exporter can tell."""

    seed: int = 1
    """Seed of the probes; the same seed and signature give the same probes anywhere."""

    float64: bool = True
    """Whether the source is also asked for double-precision answers, the floor that parity measures noise by."""

    external_data_threshold_bytes: int = EXTERNAL_DATA_THRESHOLD_BYTES
    """Weights larger than this in sum are written beside the model as `model.onnx.data`; 0 forces it."""

    after_conversion: Callable[[Path], None] | None = None
    """Fault injection: called with the finished ONNX file before any answer of the source is recorded. What it
    changes is sealed with valid digests, so only the numbers can tell; used to show that parity refuses it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r} cannot be a model name; expected letters, digits, '_', '-' or '.', "
                f"not beginning with '-' or '.', at most 200 characters."
            )
        if isinstance(self.opset, bool) or not isinstance(self.opset, int):
            raise ValueError(f"opset must be a whole number, got {self.opset!r}.")  # noqa: TRY004 - one kind
        if not OLDEST_OPSET <= self.opset <= NEWEST_OPSET:
            raise ValueError(
                f"opset {self.opset} cannot be written; expected {OLDEST_OPSET} to {NEWEST_OPSET}. "
                f"Leave it out for {DEFAULT_OPSET}."
            )
        _check_names("input_names", self.input_names)
        _check_names("output_names", self.output_names)
        fault = shared_name_fault(self.input_names, self.output_names)
        if fault is not None:
            raise ValueError(fault)
        _check_dynamic(self.dynamic)
        _check_ranges(self.integer_ranges)


def _check_names(field_name: str, names: Any) -> None:
    if names is None:
        return
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{field_name} must be a list of non-empty names, got {names!r}.")
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(f"{field_name} gives {twice[0]!r} more than once; every name must be its own.")


def shared_name_fault(inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> str | None:
    """Why names cannot be: an output under the name of an input, which no graph or request could tell apart."""
    both = [name for name in outputs or () if name in (inputs or ())]
    if not both:
        return None
    return (
        f"output_names gives {both[0]!r}, which is the name of an input; expected names that no input has. "
        f"Give that output another name."
    )


def _check_dynamic(dynamic: Any) -> None:
    for name, axes in (dynamic or {}).items():
        if not isinstance(axes, Mapping) or not all(_names_a_size(*pair) for pair in axes.items()):
            raise ValueError(
                f"dynamic[{name!r}] is {axes!r}; expected axis -> name of the size, such as {{0: 'batch'}}."
            )


def _names_a_size(axis: Any, dim: Any) -> bool:
    return isinstance(axis, int) and isinstance(dim, str) and dim.isidentifier()


def _check_ranges(ranges: Any) -> None:
    for name, bounds in ranges.items():
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            raise ValueError(
                f"integer_ranges[{name!r}] is {bounds!r}; expected (smallest, largest), both included."
            )


def parse_input_spec(text: str) -> TensorSpec:
    """Read one input as the command line writes it.

    Args:
        text: `name:dtype[dims]`, such as `x:float32[batch,3,32,32]`; a word among the dims is an open size.
            Without brackets the input is a scalar.

    Raises:
        ValueError: If the text is not of that form or names an unknown dtype.
    """
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"input {text!r} cannot be read; expected name:dtype[dims], as in x:float32[batch,3]."
        )
    known = {dtype.value: dtype for dtype in DType}
    if match["dtype"] not in known:
        raise ValueError(f"input {text!r} names dtype {match['dtype']!r}; expected one of {sorted(known)}.")
    dims = [dim.strip() for dim in (match["shape"] or "").split(",") if dim.strip()]
    return TensorSpec(
        match["name"].strip(), known[match["dtype"]], tuple(_parse_dim(text, dim) for dim in dims)
    )


def _parse_dim(text: str, dim: str) -> int | str:
    if dim.isdecimal() and int(dim) > 0:
        return int(dim)
    if dim.isidentifier():
        return dim
    raise ValueError(f"input {text!r} has the size {dim!r}; expected a positive number or a name.")
