"""A backend that answers what it was told; for what is above backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.types import Array, Feeds, Signature
from paritygate.serving.backends.base import EmbeddedBackend, ModelSource


class FakeBackend(EmbeddedBackend):
    """Answers fixed outputs, and remembers whether it was closed."""

    def __init__(
        self,
        outputs: Mapping[str, Array],
        *,
        signature: Signature | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.outputs = dict(outputs)
        self.closed = False
        self._signature = signature or Signature((), ())
        self._before = before

    @classmethod
    def open(cls, source: ModelSource) -> FakeBackend:
        """There is nothing to open."""
        raise NotImplementedError

    @property
    def signature(self) -> Signature:
        """What it was told."""
        return self._signature

    @property
    def runtime(self) -> str:
        """A name."""
        return "fake 1"

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
        """The fixed outputs."""
        self._before()
        return self.outputs

    def attest(self, bundle: Bundle, certificate: Certificate) -> Attestation:
        """There is nothing to attest."""
        raise NotImplementedError

    def close(self) -> None:
        """Remember it."""
        self.closed = True
