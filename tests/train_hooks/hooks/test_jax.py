"""JAX models in their own environment: a training script that calls the hook leaves a bundle that passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in

pytestmark = pytest.mark.real

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from paritygate.train_hooks import after_training

class Net(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.norm = nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.head = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(nnx.relu(self.norm(self.dense(x)))))

def loss(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()

random = np.random.default_rng(0)
x = random.standard_normal((32, 6)).astype(np.float32)
net = Net(nnx.Rngs(0))
net.train()
optimizer = nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param)
for _ in range(3):
    optimizer.update(net, nnx.grad(loss)(net, x, x.argmax(1) % 3))

attributes = {id(m): dict(vars(m)) for m in (jnp, jax.lax, jax.nn, jax.random, nnx)}
before = jax.tree_util.tree_map(np.asarray, nnx.to_pure_dict(nnx.state(net, nnx.Not(nnx.RngKey))))
after_training(net, {"x": x[:4]}, name="net", bundle_dir=sys.argv[1])
after = jax.tree_util.tree_map(np.asarray, nnx.to_pure_dict(nnx.state(net, nnx.Not(nnx.RngKey))))
same = jax.tree_util.tree_map(np.array_equal, before, after)
assert all(jax.tree_util.tree_leaves(same)), "the export has changed the network"
assert net.drop.deterministic is False and net.norm.use_running_average is False, "it no longer trains"
for module in (jnp, jax.lax, jax.nn, jax.random, nnx):
    changed = [k for k, v in attributes[id(module)].items() if vars(module).get(k) is not v]
    assert not changed, f"{module.__name__} has changed in {changed}"
    new = vars(module).keys() - attributes[id(module)].keys()
    assert not [k for k in new if f"{module.__name__}.{k}" not in sys.modules], f"{module.__name__} has got {new}"
assert not jax.config.jax_enable_x64
optimizer.update(net, nnx.grad(loss)(net, x, x.argmax(1) % 3))
"""


def test_script_that_calls_the_hook_trains_on_and_its_bundle_passes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run_in(real_environment("jax"), script, tmp_path / "bundle", folder=tmp_path)
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.manifest["framework"]["name"] == "jax"
    assert validate_bundle(bundle).verdict == "pass"
