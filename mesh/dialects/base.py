"""What every dialect can do: say a rollout in a mesh's own documents, and read it back.

`render` checks what every dialect owes: the documents have no fault by the dialect's own rules, and reading them
gives the same rollout. A dialect that would lose something refuses instead, with the path of the field.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from paritygate.mesh.routing import Facts
from paritygate.mesh.types import Rollout

Document: TypeAlias = dict[str, Any]
"""One Kubernetes object as plain values."""

Interpreter: TypeAlias = Callable[[Facts, int], int]
"""The version that a request is sent to, given the bucket that the gateway stamped on it.

The bucket is also the draw of a mesh that draws for each request.
"""

TargetT = TypeVar("TargetT")


class Dialect(abc.ABC, Generic[TargetT]):
    """One way to say a rollout."""

    name: str
    """The name in the registry and on the command line."""

    def render(self, rollout: Rollout, target: TargetT | None = None) -> list[Document]:
        """Say the rollout in this dialect.

        Args:
            rollout: What to say.
            target: Names and places in the cluster, or None for the defaults.

        Raises:
            CannotExpress: If the dialect cannot say a field of the rollout or of the target.
        """
        documents = self._render(rollout, target or self.default_target(rollout))
        faults = self.faults(documents)
        assert not faults, f"{self.name} rendered documents that break its own rules: {faults}"
        assert self.read_back(documents) == rollout, f"{self.name} does not read back what it rendered"
        return documents

    @abc.abstractmethod
    def default_target(self, rollout: Rollout) -> TargetT:
        """The target that is taken when none is given."""

    @abc.abstractmethod
    def _render(self, rollout: Rollout, target: TargetT) -> list[Document]:
        """Build the documents, or refuse."""

    @abc.abstractmethod
    def read_back(self, documents: Sequence[Mapping[str, Any]]) -> Rollout:
        """The rollout that documents say.

        Raises:
            CannotRead: If they hold a field that a rollout cannot say; names its path.
        """

    @abc.abstractmethod
    def faults(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is wrong with documents that this dialect rendered; empty for good ones."""

    @abc.abstractmethod
    def interpreter(self, documents: Sequence[Mapping[str, Any]]) -> Interpreter:
        """What a mesh does that follows `documents`, as `render` gave them."""
