"""How old a framework may be: what each exporter is tested with, and the way out for images that are older."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Age:
    """The oldest release of a framework that is tested.

    Attributes:
        distributions: Names under which the framework is installed; the first that is there counts.
        oldest: That release. pyproject.toml's extra asks for the same.
        save: How a model is saved where the framework is older.
        give: What the command line is then given.
    """

    distributions: tuple[str, ...]
    oldest: str
    save: str
    give: str


_TENSORFLOW = ("tensorflow-cpu", "tensorflow", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos")

AGES: Mapping[str, Age] = MappingProxyType(
    {
        "pytorch": Age(
            ("torch",), "2.9",
            "torch.save(model.state_dict(), 'weights.pt')", "weights.pt --factory MODULE:FUNCTION",
        ),
        "keras": Age(_TENSORFLOW, "2.21", "model.save('model.h5')", "model.h5"),
        "tensorflow": Age(_TENSORFLOW, "2.21", "tf.saved_model.save(model, 'model')", "model"),
        "jax": Age(("jax",), "0.10", "an Orbax checkpoint", "FOLDER --factory MODULE:FUNCTION"),
        "sklearn": Age(("scikit-learn",), "1.6", "joblib.dump(model, 'model.joblib')", "model.joblib --trust"),
        "xgboost": Age(("xgboost",), "3.0", "model.save_model('model.json')", "model.json"),
        "lightgbm": Age(("lightgbm",), "4.5", "booster.save_model('model.txt')", "model.txt"),
        "paddle": Age(
            ("paddlepaddle", "paddlepaddle-gpu"), "3.3",
            "paddle.save(model.state_dict(), 'weights.pdparams')", "weights.pdparams --factory MODULE:FUNCTION",
        ),
        "mindspore": Age(
            ("mindspore", "mindspore-gpu"), "2.10",
            "mindspore.save_checkpoint(net, 'net.ckpt')", "net.ckpt --factory MODULE:FUNCTION",
        ),
    }
)  # fmt: skip
"""By exporter. Those that are not here read files themselves."""


def too_old(exporter: str) -> str | None:
    """What is too old here and what to do instead, as one sentence; None if nothing is.

    An untested release is not refused: its export may work, and parity decides. The sentence is for when it does
    not.
    """
    age = AGES.get(exporter)
    found = None if age is None else _installed(age)
    if age is None or found is None or _release(found[1]) >= _release(age.oldest):
        return None
    return (
        f"{found[0]} {found[1]} is older than {age.oldest}, the oldest that is tested: save the model here "
        f"({age.save}) and run `paritygate export {age.give}` where paritygate may build an environment"
    )


def _installed(age: Age) -> tuple[str, str] | None:
    for name in age.distributions:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _release(version: str) -> tuple[int, ...]:
    """The numbers before any mark of a pre-release or build."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()
