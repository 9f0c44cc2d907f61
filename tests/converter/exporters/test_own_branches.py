"""Python code that decides by a size, in the frameworks that tell nothing of it: lost branches show."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in

_TENSORFLOW = """
import keras
import tensorflow as tf


class Layer(keras.layers.Layer):
    def __init__(self, decide):
        super().__init__()
        self.decide = decide

    def call(self, x):
        return x * 2 if self.decide(x.shape[0]) else x + 1


def sequential(decide):
    model = keras.Sequential([keras.layers.Input((3,)), Layer(decide)])
    model.build((None, 3))
    return model


@tf.function
def branch(x):
    return x * 2 if x.shape[0] == 37 else x + 1


class Module(tf.Module):
    special = {41: 2.0}

    @tf.function
    def scale(self, x):
        return x * self.special.get(x.shape[0], 1.0)

    def __call__(self, x):
        return self.scale(x) + 1


@tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
def open_by_its_own_word(x):
    return x * 2 if x.shape[0] == 37 else x + 1


class Counts(tf.Module):
    def __call__(self, x):
        return tf.cast(len(x), x.dtype) * x


class Walks(tf.Module):
    def __call__(self, x):
        return tf.stack([x[k] * k for k in range(x.shape[0])])


class Unrewritten(tf.Module):
    def __call__(self, x):
        rows = [x[k] for k in range(x.shape[0])]  # in the way as well, and fixing the size would mend it
        return tf.constant(rows[0].numpy() * 2)


example = np.ones((4, 3), np.float32)
export("at-37", sequential(lambda size: size == 37))
export("above-100", sequential(lambda size: (size or 0) > 100))
export("function", branch, inputs=example)
export("module", Module(), inputs=example)
export("counts", Counts(), inputs=example)
export("walks", Walks(), inputs=example)
try:
    export("unrewritten", Unrewritten(), inputs=example)
except ExportError as error:
    (Path(sys.argv[1]).parent / "said").write_text(str(error))
export("signature", open_by_its_own_word)
"""

_JAX = """
SPECIAL = {41: 2.0}


def function(x):
    return x * SPECIAL.get(x.shape[0], 1.0)


export("table", function, framework="jax", inputs=np.ones((4, 3), np.float32))
"""

_MINDSPORE = """
import mindspore as ms


class Cell(ms.nn.Cell):
    def construct(self, x):
        if x.shape[0] == 37:
            return x * 2
        return x + 1


export("at-37", Cell(), inputs=np.ones((4, 3), np.float32))
"""

_PADDLE = """
import paddle


class Layer(paddle.nn.Layer):
    def forward(self, x):
        if x.shape[0] == 37:
            return x * 2
        return x + 1


export("at-37", Layer(), inputs=np.ones((4, 3), np.float32))
"""

_HEAD = """
import sys
from pathlib import Path

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model


def export(name, model, **given):
    export_model(model, Path(sys.argv[1]) / name, name="net", **given)


"""


def _exported(environment: str, script: str, folder: Path) -> dict[str, Bundle]:
    file = folder / "script.py"
    file.write_text(_HEAD + script)
    run_in(real_environment(environment), file, folder / "bundles", folder=folder)
    return {path.name: read_bundle(path) for path in (folder / "bundles").iterdir()}


def _wrong_at(bundle: Bundle) -> set[str]:
    return {figure.case for figure in validate_bundle(bundle).figures if figure.verdict == "fail"}


@pytest.mark.real
def test_a_branch_that_tensorflow_lost_fails_at_its_size(tmp_path: Path) -> None:
    bundles = _exported("tensorflow", _TENSORFLOW, tmp_path)
    assert _wrong_at(bundles["at-37"]) == {"sweep:batch=37"}
    assert _wrong_at(bundles["above-100"]) == {"sweep:batch=101"}
    assert _wrong_at(bundles["function"]) == {"sweep:batch=37"}
    assert _wrong_at(bundles["module"]) == {"sweep:batch=41"}
    assert validate_bundle(bundles["counts"]).proven_ranges["batch"] == (1, 2, 3, 4, 7, 17)
    (demoted,) = bundles["walks"].demoted
    assert "'NoneType' object cannot be interpreted as an integer" in demoted.reason
    refused = "TensorFlow cannot trace it into a graph: 'SymbolicTensor' object has no attribute 'numpy'"
    assert (tmp_path / "said").read_text() == refused
    assert _wrong_at(bundles["signature"]) == set()  # TensorFlow itself decides for an open size, once


@pytest.mark.real
def test_a_table_by_size_that_jax_read_once_fails_at_its_size(tmp_path: Path) -> None:
    assert _wrong_at(_exported("jax", _JAX, tmp_path)["table"]) == {"sweep:batch=41"}


@pytest.mark.real
@pytest.mark.parametrize(("environment", "script"), [("mindspore", _MINDSPORE), ("paddle", _PADDLE)])
def test_a_branch_that_is_converted_is_proven_at_its_size(
    environment: str, script: str, tmp_path: Path
) -> None:
    (bundle,) = _exported(environment, script, tmp_path).values()
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass"
    assert 37 in certificate.proven_ranges["batch"]
