"""Example inputs and open dimensions, as they are written on the command line."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paritygate.converter.checkpoints.archives import open_zip
from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.config import parse_input_spec
from paritygate.converter.types import Array, DType, TensorSpec

_DYNAMIC = re.compile(r"(?P<input>[^:=]+):(?P<axis>[0-9]+)=(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_RANGE = re.compile(r"(?P<input>[^=]+)=(?P<low>-?[0-9]+):(?P<high>-?[0-9]+)")
_NOTHING_OPEN = "none"
_EXAMPLE = "x:float32[2,3] or x:float32[batch,3]"
_SEED = 1


class BadArgument(ValueError):
    """What was written on the command line cannot be read; the text says how it is written."""


def load_samples(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; pickled objects in it are refused.

    Raises:
        BadArgument: If the file is not there, is not an .npz, or holds objects or nothing.
    """
    if not path.is_file():
        raise BadArgument(f"--samples {path}: there is no such file. Give an .npz made by numpy.savez.")
    form = look_at(path)  # a checkpoint of PyTorch is a zip as well
    if form not in (None, Form.SAMPLES):
        raise _no_samples(path, form.words)
    try:
        with open_zip(path) as archive:
            names = archive.namelist()
        if form is None:
            raise _no_samples(path, "an archive with other things in it" if names else "an empty archive")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: _sample(path, name, arrays) for name in arrays.files}
    except BadArgument:
        raise
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError, MemoryError) as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise BadArgument(
            f"--samples {path}: not an .npz of plain arrays ({said}). Make it with numpy.savez(path, x=array)."
        ) from error


def _no_samples(path: Path, words: str) -> BadArgument:
    return BadArgument(
        f"--samples {path} is {words}; expected an .npz with one example array for each input. Make it with "
        f"numpy.savez(path, x=array)."
    )


def _sample(path: Path, name: str, arrays: Mapping[str, Array]) -> Array:
    try:
        return arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise BadArgument(
            f"--samples {path}: the array {name!r} holds Python objects (dtype object), and they could run code, "
            f"so it was not read; expected numbers or texts. Save it as such: numpy.savez(path, "
            f"{name}=array.astype(str)) for texts, .astype('float32') or the like for numbers."
        ) from error


def parse_inputs(given: Sequence[str]) -> dict[str, Array] | tuple[str, ...] | None:
    """Seeded example inputs for texts such as `x:float32[2,3]`; None when nothing is given.

    Texts are not made up: where there are some, and a size is named, the declarations themselves are given, and
    the exporter takes texts that the model knows.

    A name among the sizes, as in `x:float32[batch,3]`, stands for a size to trace with: 2 for the first name on
    an axis 0. `parse_dynamic` reads the same texts for what it opens.

    Raises:
        BadArgument: If a text is not of that form, names an unknown dtype, or repeats an input.
    """
    if not given:
        return None
    from paritygate.converter.exporters.binding import synthetic_sizes

    specs = _specs(given)
    named = any(isinstance(dim, str) for spec in specs for dim in spec.shape)
    if named and any(spec.dtype is DType.STRING for spec in specs):
        return tuple(given)
    sizes = synthetic_sizes(specs)
    rng = np.random.default_rng(_SEED)
    return {spec.name: _example(spec, sizes, rng) for spec in specs}


def _specs(given: Sequence[str]) -> list[TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for text in given:
        if "[" not in text:
            raise BadArgument(f"--input {text!r} cannot be read; write name:dtype[sizes], e.g. {_EXAMPLE}.")
        try:
            spec = parse_input_spec(text)
        except ValueError as error:
            raise BadArgument(f"--{error}") from None
        if spec.name in specs:
            raise BadArgument(f"--input gives {spec.name!r} twice; give every input once.")
        specs[spec.name] = spec
    return list(specs.values())


def _example(spec: TensorSpec, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)
    if spec.dtype is DType.STRING:
        return np.full(shape, "a", dtype=object)
    if spec.dtype.is_floating:
        return np.asarray(rng.standard_normal(shape)).astype(spec.dtype.numpy)
    return np.asarray(rng.integers(0, 2, shape)).astype(spec.dtype.numpy)


def parse_dynamic(given: Sequence[str], inputs: Sequence[str] = ()) -> dict[str, dict[int, str]] | None:
    """Open dimensions by input and axis; None when nothing is said, and nothing at all for the lone text `none`.

    Args:
        given: Texts such as `x:0=batch`, or `none` alone, which fixes every size.
        inputs: Texts of `--input`, whose names open dimensions too, as in `x:float32[batch,3]`.

    Raises:
        BadArgument: If a text is not of its form, or an axis is given two names.
    """
    found: dict[str, dict[int, str]] = {}
    if list(given) == [_NOTHING_OPEN]:
        return found
    for spec in _specs(inputs):
        named = {axis: dim for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        if named:
            found[spec.name] = named
    for text in given:
        match = _DYNAMIC.fullmatch(text.strip())
        if match is None:
            raise BadArgument(
                f"--dynamic {text!r} cannot be read; write input:axis=name, e.g. x:0=batch, "
                "or none alone to fix every size."
            )
        axes = found.setdefault(match["input"], {})
        known = axes.setdefault(int(match["axis"]), match["name"])
        if known != match["name"]:
            raise BadArgument(
                f"--dynamic {text!r}: that axis is called {known!r} already; give it one name, once."
            )
    return found or None


def parse_ranges(given: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Lowest and highest value of integer inputs, both included, by input.

    Args:
        given: Texts such as `ids=0:30521`.

    Raises:
        BadArgument: If a text is not of that form, gives nothing between its ends, or repeats an input.
    """
    found: dict[str, tuple[int, int]] = {}
    for text in given:
        match = _RANGE.fullmatch(text.strip())
        if match is None or int(match["low"]) > int(match["high"]):
            raise BadArgument(
                f"--integer-range {text!r} cannot be read; write input=lowest:highest, e.g. ids=0:30521."
            )
        if match["input"] in found:
            raise BadArgument(f"--integer-range gives {match['input']!r} twice; give every input once.")
        found[match["input"]] = int(match["low"]), int(match["high"])
    return found
