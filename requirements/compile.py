"""Writes runtime.txt, quickstart.txt and dev.txt from what is installed in this environment.

Run it in an environment in which the new versions were tried: `.venv/bin/python requirements/compile.py`.
Each file pins one layer and everything that layer draws in; a layer does not repeat the one below.
"""

from __future__ import annotations

import importlib.metadata as metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent

LAYERS = {
    "runtime": (
        "setuptools numpy onnx ml_dtypes protobuf pyyaml rich typer xxhash google-re2 onnxruntime fastapi grpcio "
        "httptools orjson prometheus-client tritonclient[grpc] uvicorn uvloop",
        "What `paritygate[cpu,serve]` needs: export, validate, publish, serve, roll out.",
    ),
    "quickstart": (
        "torch onnxscript safetensors scikit-learn tritonclient[http,grpc]",
        "What the quickstart adds: PyTorch to train with, the digits, a stock client.",
    ),
    "dev": (
        "pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis jsonschema httpx skl2onnx joblib ruff mypy "
        "import-linter "
        "types-PyYAML packaging build kubernetes-validate cel-python",
        "What tests and lint add.",
    ),
}


def closure(roots: list[str]) -> dict[str, str]:
    """Every distribution that these requirements draw in, with the installed version."""
    found: dict[str, str] = {}
    queue = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement = queue.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(requirement.name)
        # A local part (+cpu) names a build, which the index in use decides; the pin names the version.
        found[key[0]] = distribution.version.partition("+")[0]
        for text in distribution.requires or []:
            child = Requirement(text)
            extras = requirement.extras or {""}
            if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in {*extras, ""}):
                queue.append(child)
    return found


def main() -> None:
    """Write all layers."""
    below: dict[str, str] = {}
    previous = None
    for name, (roots, meaning) in LAYERS.items():
        pins = closure(roots.split())
        lines = [f"# {meaning}", "# Made by requirements/compile.py; edit the layers there."]
        if previous:
            lines.append(f"-r {previous}.txt")
        lines += [
            f"{package}=={version}" for package, version in sorted(pins.items()) if package not in below
        ]
        (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        below |= pins
        previous = name


if __name__ == "__main__":
    main()
