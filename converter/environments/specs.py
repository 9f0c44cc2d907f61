"""Which framework environments exist, which exporters run in them, and where they lie on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.names import meant

REQUIREMENTS_DIR = Path(__file__).parent / "requirements"
DIRECTORY_VARIABLE = "PARITYGATE_ENV_DIR"


@dataclass(frozen=True)
class EnvironmentSpec:
    """One framework environment that the package knows how to build.

    Attributes:
        name: The environment's name, and that of its requirements file.
        exporters: The exporters (keys of `EXPORTERS`) that run in it.
        modules: What its exporters import; also imported once after the installation, so that a wheel that
            cannot start on this machine fails then.
        variables: Environment variables of every process that runs in it.
        always_isolated: Whether the command line exports in it even where the framework can be imported. Its
            pins and ours exclude each other, so a process that holds both is nobody's tested combination.
    """

    name: str
    exporters: tuple[str, ...]
    modules: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    always_isolated: bool = False

    @property
    def requirements(self) -> Path:
        """The pinned requirements file."""
        return REQUIREMENTS_DIR / f"{self.name}.txt"

    @property
    def supplement(self) -> Path:
        """What a build of a pinned package needs that not every build of it does; there may be no such file.

        An index may have torch built for CUDA only, which draws in gigabytes that the CPU build does not need.
        """
        return REQUIREMENTS_DIR / "supplements" / f"{self.name}.txt"

    @property
    def key(self) -> str:
        """`<name>-<12 hex digits>`: other pins, another Python or another platform is another environment."""
        interpreter = f"{sys.implementation.name} {platform.python_version()} {sysconfig.get_platform()}"
        seal = hashlib.sha256(self.requirements.read_bytes() + b"\0" + interpreter.encode())
        if self.supplement.exists():
            seal.update(b"\0" + self.supplement.read_bytes())
        return f"{self.name}-{seal.hexdigest()[:12]}"

    @property
    def directory(self) -> Path:
        """Where this environment lies, or will lie once it is built."""
        return environments_dir() / self.key


SPECS: dict[str, EnvironmentSpec] = {
    "pytorch": EnvironmentSpec(name="pytorch", exporters=("pytorch",), modules=("torch", "onnxscript")),
    "tensorflow": EnvironmentSpec(
        name="tensorflow",
        exporters=("keras", "tensorflow"),
        modules=("tensorflow", "keras", "tf2onnx"),
        variables={"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"},
    ),
    "trees": EnvironmentSpec(
        name="trees",
        exporters=("sklearn", "xgboost", "lightgbm"),
        modules=("sklearn", "skl2onnx", "joblib", "pandas", "xgboost", "lightgbm"),
    ),
    "jax": EnvironmentSpec(
        name="jax",
        exporters=("jax",),
        modules=("jax", "flax", "jax2onnx", "orbax.checkpoint"),
        variables={"JAX_PLATFORMS": "cpu"},
    ),
    "mindspore": EnvironmentSpec(
        name="mindspore",
        exporters=("mindspore",),
        modules=("mindspore",),
        # MindSpore would switch protobuf to its slow form, for messages above 2 GiB; ours are smaller.
        variables={"GLOG_v": "3", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb"},
        always_isolated=True,
    ),
    "paddle": EnvironmentSpec(
        name="paddle", exporters=("paddle",), modules=("paddle", "paddle2onnx"), always_isolated=True
    ),
}
"""The environments by name; a new one is a line here and a file in `requirements/`."""

NEED_NONE = ("onnx", "pmml")
"""Exporters that read their files with what paritygate itself has."""


def environments_dir() -> Path:
    """The folder that holds all environments: `$PARITYGATE_ENV_DIR`, or one in the user's cache."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path.home() / ".cache" / "paritygate" / "environments"


def find_spec(framework: str) -> EnvironmentSpec:
    """The environment of this name, or the one in which the exporter of this name runs.

    Raises:
        EnvironmentFailure: If there is none; the text lists those that exist.
    """
    if framework in SPECS:
        return SPECS[framework]
    for spec in SPECS.values():
        if framework in spec.exporters:
            return spec
    known = ", ".join(f"'{name}'" for name in sorted(SPECS))
    raise EnvironmentFailure(
        f"there is no framework environment '{framework}' (known: {known}). {_advice(framework)}"
    )


def _advice(framework: str) -> str:
    if framework in NEED_NONE:
        return f"{framework.upper()} files are exported without one: `paritygate export FILE`."
    near = meant(framework, [*SPECS, *(name for spec in SPECS.values() for name in spec.exporters)])
    if near is not None:
        return f"Did you mean '{near}'?"
    return "Install the framework beside paritygate to export in this process."
