"""The interface of a hook: whose model is it, which rank is this, what is inside the wrapping."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from paritygate.train_hooks.types import Rank


class Hook(abc.ABC):
    """What is special about one framework at the end of training."""

    framework: ClassVar[str]
    """Name of the exporter that converts its models."""

    @abc.abstractmethod
    def owns(self, model: Any) -> bool:
        """Whether the model is of this framework; imports nothing, since the script has imported it."""

    @abc.abstractmethod
    def rank(self) -> Rank:
        """Which of the job's processes this is; the only one of one where nothing says otherwise.

        Raises:
            RankUnclear: If what says so cannot be read.
        """

    @abc.abstractmethod
    def unwrap(self, model: Any) -> Any:
        """The user's own model inside what distributed training put around it, reached without the other ranks.

        Raises:
            ModelRefused: If this rank does not hold the whole model.
        """
