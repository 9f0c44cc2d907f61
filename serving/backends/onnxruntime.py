"""The embedded backend: onnxruntime in this process, through the one session builder of the converter."""

from __future__ import annotations

from collections.abc import Sequence

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity import attest
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.runtime.onnxruntime import Session, open_session
from paritygate.converter.types import Array, Feeds, Signature
from paritygate.serving.backends.base import EmbeddedBackend, ModelSource


class OnnxRuntimeBackend(EmbeddedBackend):
    """A version in an onnxruntime session: what was proven is what is served."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.computes_here = tuple(session.providers) == ("CPUExecutionProvider",)

    @classmethod
    def open(cls, source: ModelSource) -> OnnxRuntimeBackend:
        """Open a session on the given bytes or file."""
        external_data = source.external_data or None
        session = open_session(
            source.model, external_data=external_data, intra_op_threads=source.intra_op_threads
        )
        return cls(session)

    @property
    def signature(self) -> Signature:
        """The graph's own signature."""
        return self.session.signature

    @property
    def runtime(self) -> str:
        """`onnxruntime <version>`."""
        return f"onnxruntime {self.session.runtime_version}"

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
        """Run the session."""
        return self.session.run(feeds, outputs)

    def attest(self, bundle: Bundle, certificate: Certificate) -> Attestation:
        """Run the sealed probes through this very session."""
        return attest(bundle, certificate, self.session)

    def close(self) -> None:
        """Drop the session; onnxruntime frees its memory with the last reference."""
        del self.session
