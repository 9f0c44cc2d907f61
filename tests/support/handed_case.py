"""Runs inside a framework environment: builds one handed conversion case and describes it for the core's test.

handed_case.py CASE_FILE OUT      writes OUT/described.npz (samples and the framework's own answers) and
                                  OUT/handed.py, whose `build` gives the model and its first sample
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

_BUILD = """
import importlib.util, sys

def build():
    spec = importlib.util.spec_from_file_location("handed_model", {path!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules["handed_model"] = module
    spec.loader.exec_module(module)
    model, samples, _, _ = module.build()
    return model, samples[0]
"""


def main(path: Path, out: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    model, samples, words, _ = module.build()
    described: dict[str, Any] = {
        "num_samples": np.array(len(samples)),
        "input_names": np.array([entry["name"] for entry in words["inputs"]]),
        "output_names": np.array([entry["name"] for entry in words["outputs"]]),
        "open": np.array(
            [
                (entry["name"], str(axis), dim)
                for entry in words["inputs"]
                for axis, dim in enumerate(entry["shape"])
                if isinstance(dim, str)
            ]
        ).reshape(-1, 3),
    }
    for index, sample in enumerate(samples):
        described |= {f"{index}/in/{name}": array for name, array in sample.items()}
        described |= {f"{index}/out/{name}": array for name, array in module.reference(model, sample).items()}
    np.savez(out / "described.npz", **described)
    (out / "handed.py").write_text(_BUILD.format(path=str(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
