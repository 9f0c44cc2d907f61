"""The interface of a backend: one loaded version that turns feeds into outputs."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.types import Array, Feeds, Signature
from paritygate.serving.errors import InferenceFailed, InvalidArgument


@dataclass(frozen=True)
class ModelSource:
    """What a backend opens.

    Attributes:
        model: The verified bytes of a bundle's model, or the path of a file that nobody has verified.
        external_data: The verified bytes of the files beside the model, by the name the model calls them.
        intra_op_threads: Threads inside one run; 0 leaves it to the runtime.
    """

    model: bytes | Path
    external_data: Mapping[str, bytes] = field(default_factory=dict)
    intra_op_threads: int = 1


class Backend(abc.ABC):
    """One loaded version of one model.

    `infer` is called from several threads at once. Implementers fill `open`, `signature`, `runtime`, `run`,
    `attest` and `close`; the checks around a run are written here once.

    Attributes:
        computes_here: Whether a run is all CPU time of the calling thread. Only then may a short one be made on
            the event loop; one that waits for a device or a network may not.
    """

    computes_here: bool = False

    @classmethod
    @abc.abstractmethod
    def open(cls, source: ModelSource) -> Backend:
        """Load a version.

        Raises:
            ConverterError: If the model cannot be opened as it is.
        """

    @property
    @abc.abstractmethod
    def signature(self) -> Signature:
        """The graph's own signature, as the runtime reports it."""

    @property
    @abc.abstractmethod
    def runtime(self) -> str:
        """Name and version of what computes, for the log."""

    @abc.abstractmethod
    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
        """Compute `outputs` from `feeds`; whatever it raises becomes `InferenceFailed`."""

    @abc.abstractmethod
    def attest(self, bundle: Bundle, certificate: Certificate) -> Attestation:
        """Run the sealed probes through what will answer, and compare with the certificate's tolerances."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything the version holds; called once, when no run is under way."""

    def infer(self, feeds: Feeds, outputs: Sequence[str]) -> list[Array]:
        """The wanted outputs, in the order they were asked for.

        Args:
            feeds: Checked tensors by input name.
            outputs: Names of outputs that the model has.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs, such as an index out of range.
            InferenceFailed: If the runtime fails, or leaves an output out.
        """
        try:
            results = self.run(feeds, outputs)
        except ModelRunError as error:
            if error.inputs_refused:
                raise InvalidArgument(f"the model refuses these inputs: {_first_line(error)}") from error
            raise InferenceFailed(f"the model failed while it computed: {_first_line(error)}") from error
        except Exception as error:
            raise InferenceFailed(f"the model failed while it computed: {_first_line(error)}") from error
        try:
            return [results[name] for name in outputs]
        except KeyError as error:
            raise InferenceFailed(f"the model gave no output '{error.args[0]}'.") from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
