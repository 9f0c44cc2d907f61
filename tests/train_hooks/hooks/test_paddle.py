"""PaddlePaddle layers in their own environment: what the hook unwraps and refuses, and a script that calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import JobState
from support.environments import real_environment, run_in
from support.jobs import job_of

pytestmark = pytest.mark.real

WRAPPERS = """
import os, sys
import numpy as np
import paddle
from paritygate.train_hooks import ModelRefused
from paritygate.train_hooks.hooks import find_hook
from paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers import LayerDesc, PipelineLayer

net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.ReLU())
hook = find_hook(net)
assert hook.framework == "paddle" and hook.unwrap(net) is net
assert hook.unwrap(paddle.DataParallel(paddle.DataParallel(net))) is net

traced = paddle.jit.to_static(net)
assert hook.unwrap(traced) is traced

class DataParallel(paddle.nn.Layer):
    '''The user's own class of the same name.'''
    def __init__(self):
        super().__init__()
        self._layers = net

own = DataParallel()
assert hook.unwrap(own) is own

def refused(model):
    try:
        hook.unwrap(model)
    except ModelRefused as error:
        return str(error)
    raise SystemExit(f"{model} was not refused")

net[0].weight.is_distributed = True
assert "0.weight is one part of a tensor-parallel weight" in refused(paddle.DataParallel(net)), refused(net)
"""

TRAINING = """
import numpy as np
import paddle
from paritygate.train_hooks import after_training

paddle.seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
net = paddle.DataParallel(paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1)))
optimiser = paddle.optimizer.Adam(0.05, parameters=net.parameters())
for _ in range(20):
    loss = ((net(paddle.to_tensor(x)) - paddle.to_tensor(x[:, :1])) ** 2).mean()
    loss.backward()
    optimiser.step()
    optimiser.clear_grad()
result = after_training(net, x[:2], name="fitted", bundle_dir="bundle", repository="repository")
assert net.training and net._layers.training, "the layer came back in evaluation mode"
print(result.framework, result.verdict, result.version)
"""


def test_wrappers_of_data_parallelism_are_taken_off_and_parts_refused(tmp_path: Path) -> None:
    script = tmp_path / "wrappers.py"
    script.write_text(WRAPPERS)
    run_in(real_environment("paddle"), script, folder=tmp_path)


def test_script_that_calls_the_hook_publishes_what_it_trained(tmp_path: Path) -> None:
    """Started as any Python is: paddle's variables are not needed for a job of one process."""
    job = job_of(tmp_path, TRAINING, nodes=1, environment="paddle", timeout_s=280)
    lines: list[str] = []
    result = launcher.run(launcher.plan(job), on_line=lines.append)
    assert result.state is JobState.SUCCEEDED, (result.message, lines)
    assert "[rank 0] paddle pass 1" in lines, lines
    assert (tmp_path / "repository" / "fitted" / "1" / "model.onnx").is_file()
