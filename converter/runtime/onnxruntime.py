"""The one place that builds an onnxruntime session: what parity proves is what serving serves.

onnxruntime falls back to the CPU without an error when a provider cannot start, lists providers that do not work,
and two of its wheels overwrite each other's files. All three are refused here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from paritygate.converter.errors import ModelInvalid, ModelRunError, RuntimeUnavailable
from paritygate.converter.graph.inspect import external_locations, graph_signature, parse_model
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec

CPU = "CPUExecutionProvider"

WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
    "onnxruntime-training",
)
"""Distributions that all install the import package `onnxruntime`, so that at most one may be there."""


def check_installation() -> str:
    """The version of the one onnxruntime that is installed.

    Raises:
        RuntimeUnavailable: If none is installed, or several wheels that overwrite each other.
    """
    found = [name for name in WHEELS if _installed(name)]
    if not found:
        raise RuntimeUnavailable(
            "onnxruntime is not installed. Take one extra: pip install 'paritygate[cpu]' or 'paritygate[gpu]'."
        )
    if len(found) > 1:
        raise RuntimeUnavailable(
            f"{' and '.join(found)} are both installed and overwrite each other's files. Keep one: "
            f"pip uninstall -y {' '.join(found)}, then install 'paritygate[cpu]' or 'paritygate[gpu]'."
        )
    return metadata.version(found[0])


@dataclass(frozen=True)
class Session:
    """A model that is loaded and can be run from many threads at once.

    Attributes:
        signature: Inputs and outputs, read from the graph.
        providers: The execution providers that really run it, in order of preference.
        runtime_version: onnxruntime's version.
        optimized: Whether graph optimisations are on.
    """

    signature: Signature
    providers: tuple[str, ...]
    runtime_version: str
    optimized: bool
    _session: Any = field(repr=False)
    _pinned: Any = field(repr=False, default=None)
    """External data that the session may still point into: kept alive as long as the session is."""

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Compute outputs.

        Args:
            feeds: One array for every input, of the signature's dtype; bfloat16 as ml_dtypes has it, strings as
                object arrays of `str`.
            outputs: Which outputs, or None for all.

        Raises:
            ModelRunError: If an input is missing, unknown, or of another dtype or rank, an output is unknown, or
                the runtime fails.
        """
        self._check_feeds(feeds)
        names = self._wanted(outputs)
        try:
            if self._has_bfloat16:
                return self._run_values(feeds, [self._outputs[name] for name in names])
            results = self._session.run(names, {name: _plain(array) for name, array in feeds.items()})
        except Exception as error:  # onnxruntime raises a dozen unrelated native classes
            raise ModelRunError(
                f"onnxruntime could not run the model: {_one_line(error)}",
                # By name: the class lives in a private module of onnxruntime.
                inputs_refused=type(error).__name__ == "InvalidArgument",
            ) from error
        return dict(zip(names, results, strict=True))

    def inferred_signature(self) -> Signature:
        """The signature as the runtime sees it: sizes that it infers stand where the graph leaves them open.

        This is what Triton's onnxruntime backend compares a config with, so a config is checked against it.
        """

        def infer(spec: TensorSpec, shape: Sequence[Any]) -> TensorSpec:
            sizes = (new if isinstance(new, int) else old for old, new in zip(spec.shape, shape, strict=True))
            return TensorSpec(spec.name, spec.dtype, tuple(sizes))

        found = {
            node.name: node.shape for node in (*self._session.get_inputs(), *self._session.get_outputs())
        }
        inputs = tuple(infer(spec, found[spec.name]) for spec in self.signature.inputs)
        return Signature(inputs, tuple(infer(spec, found[spec.name]) for spec in self.signature.outputs))

    def _run_values(self, feeds: Feeds, wanted: Sequence[TensorSpec]) -> dict[str, Array]:
        """The path for bfloat16, which onnxruntime's Python API takes and gives as raw 16-bit values only."""
        ort = _onnxruntime()
        plain = {
            name: _plain(array) for name, array in feeds.items()
        }  # must outlive the run: values are not copied
        values = {}
        for name, array in plain.items():
            if array.dtype == ml_dtypes.bfloat16:
                bits = array.view(np.uint16)
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, DType.BFLOAT16.onnx)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        results = self._session.run_with_ort_values([spec.name for spec in wanted], values)
        return {spec.name: _to_numpy(value, spec.dtype) for spec, value in zip(wanted, results, strict=True)}

    # A server runs the same session thousands of times a second, so what its signature says is looked up once.

    @cached_property
    def _has_bfloat16(self) -> bool:
        specs = (*self.signature.inputs, *self.signature.outputs)
        return any(spec.dtype is DType.BFLOAT16 for spec in specs)

    @cached_property
    def _inputs(self) -> dict[str, tuple[np.dtype[Any], int, TensorSpec]]:
        return {spec.name: (spec.dtype.numpy, len(spec.shape), spec) for spec in self.signature.inputs}

    @cached_property
    def _outputs(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.signature.outputs}

    def _wanted(self, outputs: Sequence[str] | None) -> list[str]:
        known = self._outputs
        if outputs is None:
            return list(known)
        for name in outputs:
            if name not in known:
                raise ModelRunError(f"the model has no output {name!r}; its outputs are {', '.join(known)}.")
        return list(outputs)

    def _check_feeds(self, feeds: Feeds) -> None:
        known = self._inputs
        for name in feeds:
            if name not in known:
                raise ModelRunError(
                    f"the model has no input {name!r}; its inputs are {', '.join(known) or 'none'}."
                )
        for name, (dtype, rank, spec) in known.items():
            array = feeds.get(name)
            if array is None:
                raise ModelRunError(f"input {name!r} is missing; the model takes {spec}.")
            if array.dtype != dtype or array.ndim != rank:
                raise ModelRunError(
                    f"input {name!r} is {array.dtype}{list(array.shape)}; the model takes {spec}."
                )


def open_session(
    model: bytes | Path,
    *,
    external_data: Mapping[str, bytes] | None = None,
    providers: Sequence[str] = (CPU,),
    optimize: bool = True,
    intra_op_threads: int = 0,
    log_level: int = 3,
) -> Session:
    """Load a model.

    Args:
        model: The bytes of an ONNX file, or its path; only a path may find its external data on disk.
        external_data: The bytes of each external data file, by the name that the model uses.
        providers: Execution providers in order of preference. Each must really come up.
        optimize: Graph optimisations all on, or all off.
        intra_op_threads: 0 takes onnxruntime's default, one thread a core.
        log_level: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        RuntimeUnavailable: If onnxruntime or one of the providers is not there.
        ModelInvalid: If the model cannot be loaded, or needs external data that was not given.
    """
    version = check_installation()
    ort = _onnxruntime()
    _check_available(providers, ort.get_available_providers())
    data = _read(model) if isinstance(model, Path) else model
    proto = parse_model(data)
    signature = graph_signature(proto)
    locations = external_locations(proto)
    options = _options(ort, optimize, intra_op_threads, log_level)
    if external_data is not None or not isinstance(model, Path):
        pinned = _attach(options, locations, external_data or {})
        source: bytes | str = data
    else:
        pinned = None
        source = str(model) if locations else data
    del proto
    try:
        session = ort.InferenceSession(source, options, providers=list(providers))
    except Exception as error:  # as in Session.run
        raise ModelInvalid(f"onnxruntime {version} cannot load the model: {_one_line(error)}") from error
    _check_active(providers, session.get_providers())
    return Session(signature, tuple(session.get_providers()), version, optimize, session, pinned)


def _onnxruntime() -> Any:
    return importlib.import_module("onnxruntime")


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}.") from error


def _check_available(requested: Sequence[str], available: Sequence[str]) -> None:
    if not requested:
        raise RuntimeUnavailable(
            f"no execution provider was asked for; available are {', '.join(available)}."
        )
    missing = [name for name in requested if name not in available]
    if missing:
        raise RuntimeUnavailable(
            f"execution provider {missing[0]} is not in this onnxruntime, which has {', '.join(available)}. "
            "Ask for one of these or install the wheel that has it."
        )


def _check_active(requested: Sequence[str], active: Sequence[str]) -> None:
    missing = [name for name in requested if name not in active]
    if missing:
        raise RuntimeUnavailable(
            f"execution provider {missing[0]} did not start; onnxruntime fell back to {', '.join(active)}. "
            "Its libraries are missing or do not fit this machine (see onnxruntime's log)."
        )


def _options(ort: Any, optimize: bool, intra_op_threads: int, log_level: int) -> Any:
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = intra_op_threads
    options.log_severity_level = log_level
    # The arena never gives back what the largest request took: one that asks for 16 GiB of zeros by a shape of
    # sixteen bytes would hold them for good. Runs take as long without it (docs/gateway.md, "Limits").
    options.enable_cpu_mem_arena = False
    return options


def _attach(options: Any, locations: set[str], external_data: Mapping[str, bytes]) -> Any:
    """Hand the weights over from memory; else onnxruntime would look for files in the working directory."""
    missing = sorted(locations - external_data.keys())
    if missing:
        raise ModelInvalid(
            f"the model keeps weights in {missing[0]!r}, which was not given; pass it in external_data or "
            "open the model by its path."
        )
    names = sorted(locations)
    if names:
        buffers = [external_data[name] for name in names]
        options.add_external_initializers_from_files_in_memory(
            names, buffers, [len(data) for data in buffers]
        )
        return buffers
    return None


def _plain(array: Array) -> Array:
    if array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array).reshape(array.shape)


def _to_numpy(value: Any, dtype: DType) -> Array:
    if dtype is not DType.BFLOAT16:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    result = np.empty(shape, dtype=np.uint16)
    if result.size:
        import ctypes

        ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result.view(ml_dtypes.bfloat16)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
