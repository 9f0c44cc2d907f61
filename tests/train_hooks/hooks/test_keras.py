"""Keras models in their own environment: what the hook takes, copies and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import JobState
from support.jobs import job_of

pytestmark = pytest.mark.real

SCRIPT = """
import numpy as np
import tensorflow as tf
import keras
import tf_keras
from paritygate.train_hooks import ModelRefused
from paritygate.train_hooks.hooks import find_hook

def net(package):
    layers = package.layers
    return package.Sequential([package.Input((4,)), layers.Dense(3), layers.BatchNormalization()])

for package in (keras, tf_keras):
    model = net(package)
    hook = find_hook(model)
    print(package.__name__, hook.framework, hook.unwrap(model) is model)

class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(2.0)

    def __call__(self, x):
        return x * self.weight

module = Module()
print("module", find_hook(module).framework, find_hook(module).unwrap(module) is module)
function = tf.function(lambda x: x * 2)
print("function", find_hook(function).framework, find_hook(function).unwrap(function) is function)

strategy = tf.distribute.MirroredStrategy(["CPU:0"])
with strategy.scope():
    mirrored, mirrored_module = net(tf_keras), Module()
mirrored.layers[1].moving_mean.assign([1.0, 2.0, 3.0])
copy = find_hook(mirrored).unwrap(mirrored)
print("copied", copy is not mirrored, type(copy).__name__)
x = np.ones((2, 4), np.float32)
print("equal", np.array_equal(copy(x, training=False).numpy(), mirrored(x, training=False).numpy()))
print("plain", not any(isinstance(v, tf.distribute.DistributedValues) for v in copy.variables))
try:
    find_hook(mirrored_module).unwrap(mirrored_module)
except ModelRefused as error:
    print("refused", error)
"""


def test_models_of_both_packages_and_modules_are_taken_and_mirrored_ones_copied(tmp_path: Path) -> None:
    job = job_of(tmp_path, SCRIPT, nodes=1, environment="tensorflow", timeout_s=300)
    lines: list[str] = []
    result = launcher.run(launcher.plan(job), on_line=lines.append)
    assert result.state is JobState.SUCCEEDED, (result.message, lines)
    said = [line.removeprefix("[rank 0] ") for line in lines]
    assert {
        "keras keras True",
        "tf_keras keras True",
        "module tensorflow True",
        "function tensorflow True",
        "copied True Sequential",
        "equal True",
        "plain True",
    } <= set(said)
    (refused,) = [line for line in said if line.startswith("refused")]
    assert "Module was built under a distribution strategy, and a look at its variables may wait" in refused
