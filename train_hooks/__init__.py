"""What happens after fit, and where fit runs.

In a training script, on every rank, once:

    from paritygate.train_hooks import after_training

    after_training(model, example_inputs, name="digits", repository="model_repo")

Only rank 0 exports; the others return at once. `begin()`, called early, finds out before hours of training
whether there is a core environment to validate and publish in. Jobs are started by
`paritygate.train_hooks.launch.launcher`.
This module imports no framework and nothing that a training environment lacks.
"""

from __future__ import annotations

from paritygate.train_hooks.errors import (
    CoreUnavailable,
    ExportFailed,
    HookError,
    JobFailed,
    JobFileError,
    LaunchError,
    ModelRefused,
    PublishFailed,
    RankUnclear,
    TrainHooksError,
)
from paritygate.train_hooks.pipeline import after_training, begin, check_core_environment
from paritygate.train_hooks.types import CoreEnvironment, HookResult

__all__ = [
    "CoreEnvironment",
    "CoreUnavailable",
    "ExportFailed",
    "HookError",
    "HookResult",
    "JobFailed",
    "JobFileError",
    "LaunchError",
    "ModelRefused",
    "PublishFailed",
    "RankUnclear",
    "TrainHooksError",
    "after_training",
    "begin",
    "check_core_environment",
]
