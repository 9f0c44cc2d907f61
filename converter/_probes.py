"""Probes: sealed questions with the source framework's own answers, as files in the ONNX test-data layout.

    probes/test_data_set_<i>/input_<k>.pb, output_<k>.pb [, output_<k>.float64.pb]

`k` counts inputs and outputs in the order of the signature; the float64 form exists for float outputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter._atomic import Written, write_file
from paritygate.converter._tensors import decode_tensor, encode_tensor, tensor_nbytes
from paritygate.converter.errors import BundleCorrupt, BundleError
from paritygate.converter.types import Array, Signature, TensorSpec


@dataclass(frozen=True)
class Probe:
    """One sealed question and the source framework's own answer.

    Attributes:
        index: Place among the bundle's probes, from 0; `write_bundle` numbers them itself.
        case: `base`, `sweep:batch=7`, `extreme:zeros`, `joint:batch=3,time=7` or `sample:0`.
        dims: The size of each dynamic dimension in this case.
        inputs: By input name.
        outputs: By output name, as the SOURCE framework computed them, never as a runtime of the ONNX file did.
        float64: The float outputs computed in float64, or None where the source cannot.
    """

    index: int
    case: str
    dims: Mapping[str, int]
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    float64: dict[str, Array] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that all values of this probe take."""
        parts = (self.inputs, self.outputs, self.float64 or {})
        return sum(tensor_nbytes(array) for part in parts for array in part.values())


@dataclass(frozen=True)
class OmittedCase:
    """A probe that was planned and is not there.

    Attributes:
        case: Its name.
        reason: One sentence.
    """

    case: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """This entry as plain JSON values."""
        return {"case": self.case, "reason": self.reason}


def write_probes(
    probes: Iterable[Probe], signature: Signature, root: Path, budget_bytes: int
) -> tuple[list[dict[str, Any]], list[OmittedCase], dict[str, Written]]:
    """Write probes below `root` until the budget is spent.

    Returns:
        The manifest's case entries, the cases that did not fit, and what each written file holds.

    Raises:
        BundleError: If a probe does not fit the signature.
    """
    cases: list[dict[str, Any]] = []
    omitted: list[OmittedCase] = []
    files: dict[str, Written] = {}
    spent = 0
    for probe in probes:
        _check_probe(probe, signature)
        if spent + probe.nbytes > budget_bytes:
            omitted.append(OmittedCase(probe.case, _over_budget(probe.nbytes, spent, budget_bytes)))
            continue
        spent += probe.nbytes
        for name, array in _files_of(probe, signature, len(cases)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            files[name] = write_file(root / name, encode_tensor(array, _tensor_name(name)))
        cases.append(_entry(probe, len(cases)))
    return cases, omitted, files


def read_probe(entry: Mapping[str, Any], signature: Signature, read: Callable[[str], bytes]) -> Probe:
    """The probe of one manifest entry.

    Args:
        entry: From the manifest's `probes.cases`.
        signature: The bundle's signature.
        read: Gives the verified bytes of a file.

    Raises:
        BundleCorrupt: If a file holds no tensor, or one that the signature does not allow.
    """

    def load(kind: str, specs: Sequence[TensorSpec], suffix: str = "") -> dict[str, Array]:
        found = {}
        for k, spec in enumerate(specs):
            if suffix and not spec.dtype.is_floating:
                continue
            name = _file_name(entry["index"], kind, k, suffix)
            try:
                array = decode_tensor(read(name))
            except ValueError as error:
                raise BundleCorrupt(f"{name}: {error}. Export the model again.", file=name) from error
            dtype = np.dtype(np.float64) if suffix else spec.dtype.numpy
            if array.dtype != dtype or array.ndim != len(spec.shape):
                raise BundleCorrupt(
                    f"{name} is {array.dtype}{list(array.shape)}, the signature says {spec}.", file=name
                )
            if kind == "input" and not _has_dims(array, spec, entry["dims"]):
                raise BundleCorrupt(
                    f"{name} is {list(array.shape)}, which is not {spec} at {entry['dims']}. Export it again.",
                    file=name,
                )
            found[spec.name] = array
        return found

    return Probe(
        index=entry["index"],
        case=entry["case"],
        dims=dict(entry["dims"]),
        inputs=load("input", signature.inputs),
        outputs=load("output", signature.outputs),
        float64=load("output", signature.outputs, ".float64") if entry["float64"] else None,
    )


def _entry(probe: Probe, index: int) -> dict[str, Any]:
    dims = {name: int(size) for name, size in probe.dims.items()}
    return {"index": index, "case": probe.case, "dims": dims, "float64": probe.float64 is not None}


def _file_name(index: int, kind: str, k: int, suffix: str = "") -> str:
    return f"probes/test_data_set_{index}/{kind}_{k}{suffix}.pb"


def _tensor_name(file: str) -> str:
    return Path(file).name.removesuffix(".pb")


def _files_of(probe: Probe, signature: Signature, index: int) -> Iterator[tuple[str, Array]]:
    for k, spec in enumerate(signature.inputs):
        yield _file_name(index, "input", k), probe.inputs[spec.name]
    for k, spec in enumerate(signature.outputs):
        yield _file_name(index, "output", k), probe.outputs[spec.name]
        if probe.float64 is not None and spec.dtype.is_floating:
            yield _file_name(index, "output", k, ".float64"), probe.float64[spec.name]


def _over_budget(size: int, spent: int, budget: int) -> str:
    return f"its {size} bytes and the {spent} already sealed would pass the budget of {budget} bytes"


def _check_probe(probe: Probe, signature: Signature) -> None:
    _check_side(probe.case, "input", signature.inputs, probe.inputs, probe.dims)
    _check_side(probe.case, "output", signature.outputs, probe.outputs, probe.dims)
    if probe.float64 is not None:
        for spec in signature.outputs:
            if spec.dtype.is_floating:
                _check_float64(probe, spec)


def _check_side(
    case: str, kind: str, specs: Sequence[TensorSpec], arrays: Mapping[str, Array], dims: Mapping[str, int]
) -> None:
    expected = {spec.name for spec in specs}
    if set(arrays) != expected:
        raise BundleError(
            f"probe {case!r} has {kind}s {sorted(arrays)}, the signature asks for {sorted(expected)}."
        )
    for spec in specs:
        array = arrays[spec.name]
        if array.dtype != spec.dtype.numpy or array.ndim != len(spec.shape):
            raise BundleError(
                f"probe {case!r}: {kind} {spec.name!r} is {array.dtype} with {array.ndim} dims, "
                f"the signature says {spec}."
            )
        # Outputs may have another shape than promised: that is for parity to judge, which then fixes the dim.
        if kind == "input" and not _has_dims(array, spec, dims):
            raise BundleError(
                f"probe {case!r}: input {spec.name!r} is {list(array.shape)}, which is not {spec} at {dict(dims)}."
            )


def _has_dims(array: Array, spec: TensorSpec, dims: Mapping[str, int]) -> bool:
    """Whether a probe's input has the sizes that its case claims; else a sweep would prove what it did not try."""
    expected = tuple(dims.get(dim, -1) if isinstance(dim, str) else dim for dim in spec.shape)
    return bool(array.shape == expected)


def _check_float64(probe: Probe, spec: TensorSpec) -> None:
    wide = (probe.float64 or {}).get(spec.name)
    shape = probe.outputs[spec.name].shape
    if wide is None or wide.dtype != np.float64 or wide.shape != shape:
        found = "missing" if wide is None else f"{wide.dtype}{list(wide.shape)}"
        raise BundleError(
            f"probe {probe.case!r}: the float64 form of output {spec.name!r} is {found}, "
            f"expected float64{list(shape)}."
        )
