"""What a config says about queues and batches, read once when a version is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paritygate.serving.errors import InvalidArgument
from paritygate.serving.publish.triton_config import ModelConfig
from paritygate.serving.types import Parameter

_CPU_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_MODEL")


@dataclass(frozen=True)
class QueuePolicy:
    """How long and how many requests of one priority wait.

    Attributes:
        delays: Whether a request that waited too long runs after all others instead of being refused.
        timeout_us: Microseconds that a request may wait; 0 sets no limit.
        override: Whether a request may ask for a shorter wait of its own.
        max_size: Requests that may wait; 0 sets no limit.
    """

    delays: bool = False
    timeout_us: int = 0
    override: bool = False
    max_size: int = 0

    def timeout_of(self, asked_us: int) -> int:
        """Microseconds that a request may wait, which asked for `asked_us` (0: it did not ask).

        As for Triton, a request's own wait counts only where the policy has one, and only to make it shorter.
        """
        shortens = self.override and 0 < asked_us < self.timeout_us
        return asked_us if shortens else self.timeout_us


@dataclass(frozen=True)
class BatchingPolicy:
    """How the requests of one version wait and run.

    Attributes:
        max_batch_size: Largest batch that is put together; 1 puts none together.
        preferred: Batch sizes that need not wait for more, ascending.
        delay_us: Microseconds that the oldest request waits for others at most.
        keeps_order: Whether answers are given in the order in which the runs began.
        levels: Number of priorities, 1 the highest.
        default_level: That of a request without one.
        policy: That of every level without its own.
        level_policies: By level.
        instances: Runs at one moment; 0 leaves it to the number of threads.
    """

    max_batch_size: int = 1
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    keeps_order: bool = False
    levels: int = 1
    default_level: int = 1
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    instances: int = 0

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of a level."""
        return self.level_policies.get(level, self.policy)

    def level_of(self, parameters: Mapping[str, Parameter]) -> int:
        """The level that a request asks for; one beyond the known ones is the default, as 0 is.

        Raises:
            InvalidArgument: If it is no whole number from 0.
        """
        level = _whole(parameters, "priority")
        return level if 1 <= level <= self.levels else self.default_level

    def timeout_us_of(self, level: int, parameters: Mapping[str, Parameter]) -> int:
        """Microseconds that a request may wait; 0 sets no limit.

        Raises:
            InvalidArgument: If its `timeout` is no whole number from 0.
        """
        return self.policy_of(level).timeout_of(_whole(parameters, "timeout"))


def _whole(parameters: Mapping[str, Parameter], name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"parameter '{name}' is {value!r}; expected a whole number, 0 or more.")
    return value


def batching_policy(config: ModelConfig) -> BatchingPolicy | None:
    """What a config asks for; None where it asks for nothing but runs, each as soon as a thread is free."""
    message = config.message
    instances = sum(
        group.count or 1
        for group in message.instance_group
        if message.instance_group and _kind(group) in _CPU_KINDS
    )
    if message.WhichOneof("scheduling_choice") != "dynamic_batching":
        return BatchingPolicy(instances=instances) if instances else None
    batching = message.dynamic_batching
    largest = config.max_batch_size
    levels = max(1, batching.priority_levels)
    return BatchingPolicy(
        max_batch_size=max(1, largest),
        preferred=tuple(sorted({size for size in batching.preferred_batch_size if 0 < size <= largest})),
        delay_us=batching.max_queue_delay_microseconds,
        keeps_order=batching.preserve_ordering,
        levels=levels,
        default_level=batching.default_priority_level or levels,
        policy=_queue_policy(batching.default_queue_policy),
        level_policies={
            level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
        instances=instances,
    )


def _kind(group: object) -> str:
    descriptor = group.DESCRIPTOR.enum_types_by_name["Kind"]  # type: ignore[attr-defined]
    return str(descriptor.values_by_number[group.kind].name)  # type: ignore[attr-defined]


def _queue_policy(message: object) -> QueuePolicy:
    return QueuePolicy(
        delays=message.timeout_action == 1,  # type: ignore[attr-defined]
        timeout_us=message.default_timeout_microseconds,  # type: ignore[attr-defined]
        override=message.allow_timeout_override,  # type: ignore[attr-defined]
        max_size=message.max_queue_size,  # type: ignore[attr-defined]
    )
