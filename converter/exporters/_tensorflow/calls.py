"""The one form in which every TensorFlow model is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[Sequence[Any]], Any]
"""Takes the input tensors in order and gives whatever structure of tensors the model gives, in inference mode."""
