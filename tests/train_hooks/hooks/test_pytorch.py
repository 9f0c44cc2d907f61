"""What distributed training puts around a torch module is taken off; what one rank does not hold is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from paritygate.train_hooks.errors import ModelRefused  # noqa: E402
from paritygate.train_hooks.hooks import find_hook  # noqa: E402
from paritygate.train_hooks.hooks.pytorch import PyTorchHook  # noqa: E402
from paritygate.train_hooks.types import Rank  # noqa: E402


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A gloo group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_module_is_found_to_be_of_torch() -> None:
    assert find_hook(torch.nn.Linear(2, 2)).framework == "pytorch"


def test_another_object_is_refused_by_name() -> None:
    with pytest.raises(
        ModelRefused, match=r"no hook for a model of builtins\.dict; expected .*keras, .*pytorch"
    ):
        find_hook({})


def test_a_plain_module_is_handed_back_itself() -> None:
    model = torch.nn.Linear(2, 2)
    assert PyTorchHook().unwrap(model) is model


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_script_is_handed_back_itself() -> None:
    script = torch.jit.script(torch.nn.Linear(2, 2))
    assert find_hook(script).framework == "pytorch"
    assert PyTorchHook().unwrap(script) is script


def compiled(model: Any) -> Any:
    """What torch.compile gives; its default backend would take ten seconds to import."""
    return torch.compile(model, backend="eager")


def test_wrappers_come_off_however_they_are_stacked(process_group: None) -> None:
    model = torch.nn.Linear(2, 2)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for wrapped in (parallel, compiled(model), compiled(parallel), torch.nn.DataParallel(model)):
        assert PyTorchHook().unwrap(wrapped) is model


def test_a_users_own_attribute_called_module_stays() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(2, 2)

    model = Own()
    assert PyTorchHook().unwrap(model) is model


def test_a_sharded_model_is_refused_with_what_to_do(process_group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ModelRefused, match=r"parameter weight is a DTensor.*get_model_state_dict"):
        PyTorchHook().unwrap(model)


def test_the_process_group_says_the_rank_before_the_environment(
    process_group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert PyTorchHook().rank() == Rank(0, 1)


def test_without_any_word_it_is_rank_0_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert PyTorchHook().rank() == Rank(0, 1)
