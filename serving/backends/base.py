"""The interfaces of backends: what computes a loaded version, in this process or elsewhere."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.report import Attestation, Certificate
from paritygate.converter.types import Array, Feeds, Signature
from paritygate.serving.errors import InferenceFailed, InvalidArgument, PayloadTooLarge
from paritygate.serving.execution import DirectExecution, Execution, Placing
from paritygate.serving.scheduling import BatchingExecution, batching_policy

_NO_MEMORY = ("std::bad_alloc", "Failed to allocate memory", "bad allocation")
"""What onnxruntime says where memory cannot be had."""


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
    """What computes one loaded version of one model, wherever that is."""

    @property
    @abc.abstractmethod
    def runtime(self) -> str:
        """Name and version of what computes, for the log."""

    @abc.abstractmethod
    def execution(self, placing: Placing) -> Execution:
        """How requests of the version are answered from now on; called once, on the event loop."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything the version holds; called once, when no run is under way."""


class EmbeddedBackend(Backend):
    """One version in this process.

    `infer` is called from several threads at once. Implementers fill `open`, `signature`, `runtime`, `run`,
    `attest` and `close`; the checks around a run are written here once.

    Attributes:
        computes_here: Whether a run is all CPU time of the calling thread. Only then may a short one be made on
            the event loop; one that waits for a device or a network may not.
    """

    computes_here: bool = False

    @classmethod
    @abc.abstractmethod
    def open(cls, source: ModelSource) -> EmbeddedBackend:
        """Load a version.

        Raises:
            ConverterError: If the model cannot be opened as it is.
        """

    @property
    @abc.abstractmethod
    def signature(self) -> Signature:
        """The graph's own signature, as the runtime reports it."""

    @abc.abstractmethod
    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, Array]:
        """Compute `outputs` from `feeds`; whatever it raises becomes `InferenceFailed`."""

    @abc.abstractmethod
    def attest(self, bundle: Bundle, certificate: Certificate) -> Attestation:
        """Run the sealed probes through what will answer, and compare with the certificate's tolerances."""

    def execution(self, placing: Placing) -> Execution:
        """From a queue, together where the config asks for it and it pays; else each by itself."""
        lane = placing.runner.lane(placing.inline_below_us if self.computes_here else 0)
        policy = batching_policy(placing.config)
        if policy is None:
            return DirectExecution(self, lane)
        return BatchingExecution(self, lane, placing.runner, policy, placing.name)

    def infer(self, feeds: Feeds, outputs: Sequence[str]) -> list[Array]:
        """The wanted outputs, in the order they were asked for.

        Args:
            feeds: Checked tensors by input name.
            outputs: Names of outputs that the model has.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs, such as an index out of range.
            PayloadTooLarge: If it cannot have the memory that these inputs make it ask for.
            InferenceFailed: If the runtime fails, or leaves an output out.
        """
        try:
            results = self.run(feeds, outputs)
        except ModelRunError as error:
            if error.inputs_refused:
                raise InvalidArgument(f"the model refuses these inputs: {_first_line(error)}") from error
            if any(sign in str(error) for sign in _NO_MEMORY):
                raise PayloadTooLarge(
                    "the model takes more memory for these inputs than the gateway may use; send smaller ones."
                ) from error
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
