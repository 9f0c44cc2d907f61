"""Example inputs and open dimensions, as they are written on the command line."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paritygate.converter.types import Array, DType

_INPUT = re.compile(r"(?P<name>[^:\[\]]+):(?P<dtype>[a-z0-9]+)\[(?P<shape>[0-9, ]*)\]")
_DYNAMIC = re.compile(r"(?P<input>[^:=]+):(?P<axis>[0-9]+)=(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_SEED = 1


class BadArgument(ValueError):
    """What was written on the command line cannot be read; the text says how it is written."""


def load_samples(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; pickled objects in it are refused.

    Raises:
        BadArgument: If the file is not there, is not an .npz, or holds objects.
    """
    if not path.is_file():
        raise BadArgument(f"--samples {path}: there is no such file. Give an .npz made by numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError) as error:
        raise BadArgument(
            f"--samples {path}: not an .npz of plain arrays ({error}). Make it with numpy.savez(path, x=array)."
        ) from error


def parse_inputs(given: Sequence[str]) -> dict[str, Array] | None:
    """Seeded example inputs for texts such as `x:float32[2,3]`; None when nothing is given.

    Raises:
        BadArgument: If a text is not of that form or names an unknown dtype.
    """
    if not given:
        return None
    rng = np.random.default_rng(_SEED)
    return dict(_parse_input(text, rng) for text in given)


def _parse_input(text: str, rng: np.random.Generator) -> tuple[str, Array]:
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise BadArgument(f"--input {text!r} cannot be read; write name:dtype[sizes], e.g. x:float32[2,3].")
    try:
        dtype = DType(match["dtype"])
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise BadArgument(f"--input {text!r}: unknown dtype {match['dtype']!r}; known: {known}.") from None
    shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
    if dtype is DType.STRING:
        return match["name"], np.full(shape, "a", dtype=object)
    if dtype.is_floating:
        return match["name"], rng.standard_normal(shape).astype(dtype.numpy)
    return match["name"], rng.integers(0, 2, shape).astype(dtype.numpy)


def parse_dynamic(given: Sequence[str]) -> dict[str, dict[int, str]] | None:
    """Open dimensions by input and axis, from texts such as `x:0=batch`; None when nothing is given.

    Raises:
        BadArgument: If a text is not of that form.
    """
    if not given:
        return None
    found: dict[str, dict[int, str]] = {}
    for text in given:
        match = _DYNAMIC.fullmatch(text.strip())
        if match is None:
            raise BadArgument(f"--dynamic {text!r} cannot be read; write input:axis=name, e.g. x:0=batch.")
        found.setdefault(match["input"], {})[int(match["axis"])] = match["name"]
    return found
