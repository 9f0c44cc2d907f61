"""Runs in the tensorflow environment: SavedModels for the tests of the one that travels with a bundle.

served_saved_model.py save OUT              writes OUT/net, and OUT/changed with one weight changed
served_saved_model.py ask NET NAME IN OUT   calls signature NAME for the arrays of IN, called `<case>/<input>`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.tensorflow_files import save_with_two_signatures
from support.tensorflow_nets import matrix


def save(out: Path) -> None:
    """The same network twice; the second has one weight that training might have moved."""
    net, _ = matrix()
    save_with_two_signatures(net, out / "net")
    weight = net.weights[0]
    moved = weight.numpy()
    moved[0, 0] += 0.1
    weight.assign(moved)
    save_with_two_signatures(net, out / "changed")


def ask(saved_model: Path, signature: str, asked: Path, out: Path) -> None:
    """Load it as TensorFlow Serving does, without anything of ours, and call one signature."""
    import tensorflow as tf

    serve = tf.saved_model.load(str(saved_model), tags=["serve"]).signatures[signature]
    cases: dict[str, dict[str, Any]] = {}
    with np.load(asked, allow_pickle=False) as given:
        for key in given:
            case, name = key.split("/")
            cases.setdefault(case, {})[name] = tf.constant(given[key])
    answers = {case: serve(**feeds) for case, feeds in cases.items()}
    np.savez(
        out, **{f"{case}/{name}": t.numpy() for case, said in answers.items() for name, t in said.items()}
    )


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(Path(sys.argv[2]))
    else:
        ask(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]))
