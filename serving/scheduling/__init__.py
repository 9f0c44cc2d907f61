"""Scheduling: requests of one version that wait in a queue and run together, as its config asks.

Source: triton-inference-server/core, src/dynamic_batch_scheduler.cc and src/scheduler_utils.cc.
"""

from __future__ import annotations

from paritygate.serving.scheduling.batching import BatchingExecution
from paritygate.serving.scheduling.policy import BatchingPolicy, batching_policy

__all__ = ["BatchingExecution", "BatchingPolicy", "batching_policy"]
