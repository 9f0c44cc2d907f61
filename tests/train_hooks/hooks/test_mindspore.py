"""MindSpore cells in their own environment: what the hook unwraps and refuses, and a script that calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import JobState
from support.environments import real_environment, run_in
from support.jobs import job_of

pytestmark = pytest.mark.real

WRAPPERS = """
import os
import mindspore as ms
from mindspore import nn
from paritygate.train_hooks import ModelRefused
from paritygate.train_hooks.errors import RankUnclear
from paritygate.train_hooks.hooks import find_hook
from paritygate.train_hooks.types import Rank

def refused(call):
    try:
        call()
    except (ModelRefused, RankUnclear) as error:
        return str(error)
    raise SystemExit("nothing was refused")

net = nn.SequentialCell([nn.Dense(4, 3), nn.ReLU()])
hook = find_hook(net)
assert hook.framework == "mindspore" and hook.unwrap(net) is net

loss = nn.WithLossCell(net, nn.MSELoss())
optimiser = nn.SGD(net.trainable_params())
assert hook.unwrap(loss) is net
assert hook.unwrap(nn.TrainOneStepCell(loss, optimiser)) is net
assert hook.unwrap(nn.TrainOneStepWithLossScaleCell(loss, optimiser, ms.Tensor(2.0))) is net
assert hook.unwrap(nn.WithEvalCell(net, nn.MSELoss())) is net
assert find_hook(ms.Model(net, nn.MSELoss(), optimiser)).unwrap(ms.Model(net, nn.MSELoss(), optimiser)) is net
assert hook.unwrap(ms.Model(net)) is net

class Own(nn.Cell):
    '''The user's own cell, which calls its part as a wrapper does.'''
    def __init__(self):
        super().__init__()
        self.network = net
    def construct(self, x):
        return self.network(x) * 2

own = Own()
assert hook.unwrap(own) is own

net[0].weight.sliced = True
said = refused(lambda: hook.unwrap(ms.Model(net)))
assert "parameter 0.weight is sliced over the ranks" in said, said
net[0].weight.sliced = False

assert hook.rank() == Rank(0, 1), hook.rank()
os.environ.update(MS_NODE_ID="1", MS_WORKER_NUM="2")
assert hook.rank() == Rank(1, 2), hook.rank()
os.environ.update(MS_NODE_ID="2")
assert "MS_NODE_ID='2' and MS_WORKER_NUM='2' do not name a rank" in refused(hook.rank)
"""

TRAINING = """
import numpy as np
import mindspore as ms
from mindspore import nn
from paritygate.train_hooks import after_training

ms.set_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
net = nn.SequentialCell([nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1)])
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), learning_rate=0.05))
step.set_train()
for _ in range(20):
    step(ms.Tensor(x), ms.Tensor(x[:, :1]))
before = [parameter.asnumpy().copy() for parameter in step.get_parameters()]
mode = ms.get_context("mode")
result = after_training(step, x[:2], name="fitted", bundle_dir="bundle", repository="repository")
assert step.training and net.training and net[0].training, "the cell came back in evaluation mode"
assert ms.get_context("mode") == mode, "the export left MindSpore in another mode"
assert all(np.array_equal(a, p.asnumpy()) for a, p in zip(before, step.get_parameters())), "weights have changed"
step(ms.Tensor(x), ms.Tensor(x[:, :1]))
print(result.framework, result.verdict, result.version)
"""


def test_cells_of_training_are_taken_off_and_slices_refused(tmp_path: Path) -> None:
    script = tmp_path / "wrappers.py"
    script.write_text(WRAPPERS)
    run_in(real_environment("mindspore"), script, folder=tmp_path)


def test_script_that_calls_the_hook_publishes_what_it_trained(tmp_path: Path) -> None:
    job = job_of(tmp_path, TRAINING, nodes=1, environment="mindspore", timeout_s=280)
    lines: list[str] = []
    result = launcher.run(launcher.plan(job), on_line=lines.append)
    assert result.state is JobState.SUCCEEDED, (result.message, lines)
    assert "[rank 0] mindspore pass 1" in lines, lines
    assert (tmp_path / "repository" / "fitted" / "1" / "model.onnx").is_file()
