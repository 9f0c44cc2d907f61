"""Writes converter/environments/requirements/<environment>.txt: every package, locked by version and hash.

    python requirements/compile_environments.py             all environments, keeping the versions that are pinned
    python requirements/compile_environments.py paddle      one of them
    python requirements/compile_environments.py --upgrade   the newest versions that the roots allow

pip resolves the roots for this machine; the index that it uses says which wheels of those versions there are for
the other machines that we support, and their hashes are locked too. What is missing there is told, and stands at
the top of the file. The roots are what a person chose, with the reason where there is one; all else follows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pip._internal.commands.install import InstallCommand
from pip._internal.models.candidate import InstallationCandidate
from pip._internal.models.target_python import TargetPython
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import Version

OUTPUT = Path(__file__).parents[1] / "converter" / "environments" / "requirements"


@dataclass(frozen=True)
class Roots:
    """What a person asks of one environment.

    Attributes:
        resolved: Requirements that pip resolves together.
        alone: Exact requirements that are taken without what they declare, since something else provides it.
        remark: A sentence for the top of the file.
        other_build: An exact requirement (`name===version`) of the build that the public index has, where it needs
            more than the one that was resolved here; what it draws in besides goes to `supplements/`.
    """

    resolved: tuple[str, ...]
    alone: tuple[str, ...] = ()
    remark: str = ""
    other_build: str = ""


# numpy, onnx, ml_dtypes and protobuf are what the exporter half of paritygate imports, so each table names them.
ENVIRONMENTS: dict[str, Roots] = {
    "tensorflow": Roots(
        resolved=(
            "tensorflow-cpu==2.21.0",
            "keras==3.15.1",
            "tf2onnx==1.17.0",
            "h5py==3.14.0",
            "onnx==1.23.2",
            "numpy==2.4.6",
            "ml-dtypes==0.5.4",
            "protobuf==6.33.6",
        ),
        alone=("tf-keras==2.21.0",),
        remark="tf-keras declares 'tensorflow', which tensorflow-cpu provides under another name.",
    ),
    "trees": Roots(
        resolved=(
            "scikit-learn==1.9.1",
            "skl2onnx==1.20.0",
            "onnxmltools==1.16.0",
            "packaging",  # onnxmltools imports it and does not say so
            "xgboost-cpu==3.2.0",
            "lightgbm==4.7.0",
            "joblib",
            "pandas",
            "onnx==1.23.2",
            "numpy==2.4.6",
            "ml-dtypes==0.5.4",
            "protobuf==6.33.6",
        )
    ),
    "pytorch": Roots(
        resolved=(
            "torch==2.13.0",  # the CPU build where the index has it
            "onnxscript==0.7.2",
            "safetensors",
            "transformers==5.24.0",
            "onnx==1.23.2",
            "numpy==2.4.6",
            "ml-dtypes==0.5.4",
            "protobuf==6.33.6",
        ),
        other_build="torch===2.13.0",
    ),
    "jax": Roots(
        resolved=(
            "jax==0.10.2",
            "jaxlib==0.10.2",
            "flax==0.12.8",
            "jax2onnx==0.17.1",
            "orbax-checkpoint==0.11.36",
            "onnx==1.23.2",
            "numpy==2.4.6",
            "ml-dtypes==0.5.4",
            "protobuf==6.33.6",
        )
    ),
    "paddle": Roots(
        resolved=(
            "paddlepaddle==3.3.1",
            "paddle2onnx==2.1.0",
            "onnx==1.17.0",  # paddle2onnx ends there
            "onnxoptimizer==0.3.13",
            "setuptools==80.9.0",  # paddle imports it and does not say so
            "packaging",  # and so does paddle2onnx
            "ml-dtypes==0.5.4",
            "numpy==2.4.6",
            "protobuf==7.36.2",
        )
    ),
    "mindspore": Roots(
        resolved=(
            "mindspore==2.10.0",
            "safetensors",
            "onnx==1.23.2",
            "ml-dtypes==0.5.4",
            "numpy==1.26.4",  # mindspore is built against numpy 1: with numpy 2 its eager mode dies on a reshape
            "protobuf==7.36.2",  # mindspore declares 7.34.1 or newer
        )
    ),
}

PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = ("x86_64", "aarch64")
_OLDEST_GLIBC, _NEWEST_GLIBC = 5, 44
_LEGACY_PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", "linux")


@dataclass(frozen=True)
class Target:
    """A machine for which wheels are locked, whatever its C library."""

    python: tuple[int, int]
    machine: str

    def __str__(self) -> str:
        return f"CPython {self.python[0]}.{self.python[1]} on {self.machine}"

    @property
    def for_pip(self) -> TargetPython:
        """This target in pip's terms."""
        newest_first = range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)
        platforms = [f"manylinux_2_{minor}" for minor in newest_first] + list(_LEGACY_PLATFORMS)
        return TargetPython(
            platforms=[f"{platform}_{self.machine}" for platform in platforms],
            py_version_info=self.python,
            implementation="cp",
        )

    @property
    def markers(self) -> dict[str, str]:
        """What environment markers see there."""
        release = f"{self.python[0]}.{self.python[1]}"
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{release}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{release}.0",
            "python_version": release,
            "sys_platform": "linux",
            "extra": "",
        }


TARGETS = [Target(python, machine) for python in PYTHONS for machine in MACHINES]


@dataclass(frozen=True)
class Resolved:
    """One distribution that pip chose for this machine.

    Attributes:
        name: Its name in the form in which names are compared.
        version: The public version; a local part such as `+cpu` names a build of it.
        requires: What its metadata declares.
    """

    name: str
    version: str
    requires: tuple[str, ...]


def resolve(roots: Roots, pinned: Mapping[str, str]) -> list[Resolved]:
    """What pip would install for the roots into an empty environment of this Python.

    Args:
        roots: What is asked for.
        pinned: Versions to keep; empty takes the newest.

    Raises:
        SystemExit: With pip's own words, if the roots contradict each other or the pins.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "empty", with_pip=False)
        together = _report(folder, roots.resolved, pinned)
        alone = _report(folder, roots.alone, pinned, "--no-deps") if roots.alone else []
    return sorted([*together, *alone], key=lambda each: each.name)


def _report(
    folder: Path, requirements: Sequence[str], pinned: Mapping[str, str], *arguments: str
) -> list[Resolved]:
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()))
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "--python", str(folder / "empty" / "bin" / "python"), "install"]
    command += ["--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:", "--report", str(report)]
    ended = subprocess.run(
        [*command, "--constraint", str(constraints), *arguments, *requirements], check=False, text=True
    )
    if ended.returncode != 0:
        raise SystemExit(f"pip could not resolve {' '.join(requirements)}")
    found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return [
        Resolved(
            canonicalize_name(each["name"]),
            Version(each["version"]).public,
            tuple(each.get("requires_dist") or ()),
        )
        for each in found
    ]


class Index:
    """The index that pip is set up to use, asked for all wheels of a version and not only for the best one."""

    def __init__(self) -> None:
        self._command = InstallCommand("install", "lock the files of a version")
        self._options, _ = self._command.parse_args(["--only-binary=:all:", "--quiet", "--quiet"])
        self._offers: dict[tuple[Target, str], list[InstallationCandidate]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[Index]:
        """Hold the index's connections while it is asked."""
        with self._command.main_context():
            self._session = self._command._build_session(self._options)
            yield self

    def hashes(self, name: str, version: str, target: Target) -> set[str]:
        """sha256 of every wheel of a version, any build of it, that fits a target."""
        return {
            _sha256(offer)
            for offer in self._offered(name, target)
            if Version(str(offer.version)).public == version
        }

    def _offered(self, name: str, target: Target) -> list[InstallationCandidate]:
        key = (target, name)
        if key not in self._offers:
            finder = self._command._build_package_finder(
                options=self._options, session=self._session, target_python=target.for_pip
            )
            self._offers[key] = finder.find_all_candidates(name)
        return self._offers[key]


def _sha256(offer: InstallationCandidate) -> str:
    link = offer.link
    if link.hash_name == "sha256" and link.hash:
        return str(link.hash)
    if link.is_file:
        return hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()
    raise SystemExit(f"the index gives no sha256 for {link.filename}; it cannot be locked")


def lock(name: str, roots: Roots, index: Index, *, upgrade: bool) -> None:
    """Write one requirements file, and print what it does not cover."""
    path = OUTPUT / f"{name}.txt"
    supplement = OUTPUT / "supplements" / f"{name}.txt"
    pinned = {} if upgrade else {**read_versions(supplement), **read_versions(path)}
    chosen = resolve(roots, pinned)
    _write(path, f"Every package of the '{name}' framework environment", roots, chosen, index)
    if roots.other_build:
        known = {each.name: each.version for each in chosen}
        drawn = resolve(Roots((roots.other_build,)), {**pinned, **known})
        more = [each for each in drawn if each.name not in known]
        title = f"What the '{name}' framework environment needs besides, if its index has no other build"
        _write(supplement, title, Roots((roots.other_build,)), more, index)


def _write(path: Path, title: str, roots: Roots, chosen: Sequence[Resolved], index: Index) -> None:
    lines, gaps = [], []
    for each in chosen:
        by_target = {target: index.hashes(each.name, each.version, target) for target in TARGETS}
        every = sorted(set().union(*by_target.values()))
        lines.append(
            " \\\n".join([f"{each.name}=={each.version}", *(f"    --hash=sha256:{h}" for h in every)])
        )
        gaps += [(target, f"no wheel of {each.name}") for target, found in by_target.items() if not found]
    gaps += _undeclared(chosen, roots)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*_head(title, roots, gaps), *lines]) + "\n", "utf-8")
    print(f"{path.relative_to(OUTPUT)}: {len(chosen)} packages")
    for target, gap in gaps:
        print(f"  not for {target}: {gap}")


def _undeclared(chosen: Sequence[Resolved], roots: Roots) -> list[tuple[Target, str]]:
    """What the chosen packages need on another target and nobody brings along."""
    there = {each.name for each in chosen}
    alone = {canonicalize_name(Requirement(text).name) for text in roots.alone}
    missing = []
    for target in TARGETS:
        for each in chosen:
            for requirement in map(Requirement, () if each.name in alone else each.requires):
                wanted = requirement.marker is None or requirement.marker.evaluate(target.markers)
                if wanted and canonicalize_name(requirement.name) not in there:
                    missing.append((target, f"{each.name} needs {requirement.name}"))
    return missing


def _head(title: str, roots: Roots, gaps: Sequence[tuple[Target, str]]) -> list[str]:
    head = [
        f"# {title}; nothing else is installed there.",
        "# Made by requirements/compile_environments.py: edit the roots there. A changed byte makes it anew.",
        f"# From: {' '.join([*roots.resolved, *roots.alone])}",
    ]
    if roots.remark:
        head.append(f"# {roots.remark}")
    for target in TARGETS:
        lacks = sorted({gap for at, gap in gaps if at == target})
        if lacks:
            head.append(f"# Not for {target}: {', '.join(lacks)}.")
    return head


def read_versions(path: Path) -> dict[str, str]:
    """The versions that a requirements file pins, with or without hashes; none if there is no such file."""
    if not path.exists():
        return {}
    lines = (line.split("#")[0].split(" ")[0] for line in path.read_text("utf-8").splitlines())
    pins = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(package): version for package, version in pins}


def main() -> None:
    """Lock the environments that were named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=f"of {sorted(ENVIRONMENTS)}")
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions that the roots allow"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.environments) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"unknown environment {sorted(unknown)}; expected some of {sorted(ENVIRONMENTS)}")
    with Index().open() as index:
        for name in arguments.environments or ENVIRONMENTS:
            lock(name, ENVIRONMENTS[name], index, upgrade=arguments.upgrade)


if __name__ == "__main__":
    main()
