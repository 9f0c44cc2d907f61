"""The exporter for ONNX files: the file stays as it is, and onnx's own reference evaluator vouches for it.

The framework that trained the model is gone, so the evidence is weaker than that of other exporters: it shows that
a runtime computes what the file says, not that the file says what was trained.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnx

from paritygate.converter._stages import stage
from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.checkpoints.sniffing import is_first_for, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._onnx.naming import Inputs
from paritygate.converter.exporters._onnx.reading import (
    prepare,
    read_model,
    weight_bytes,
    write_converted,
    write_metadata,
)
from paritygate.converter.exporters._onnx.referee import Referee, limits_for
from paritygate.converter.exporters._onnx.scanning import holds_floats, index_ranges, scan
from paritygate.converter.exporters.base import (
    ConversionRequest,
    Exporter,
    SourceModel,
    Versions,
    Weights,
)
from paritygate.converter.types import Array, Feeds

_NO_WORDS = ("none", "unknown", "null")
_LONGEST_PRODUCER = 80


class OnnxFileExporter(Exporter):
    """Seals an ONNX file with the answers of `onnx.reference`."""

    name: ClassVar[str] = "onnx"

    def recognises(self, source: Any) -> bool:
        """Whether a source is an ONNX file or a `ModelProto`."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        return isinstance(source, onnx.ModelProto)

    def versions(self) -> Versions:
        """onnx's reference evaluator answers; nothing is converted."""
        return Versions("onnx.reference", onnx.__version__, "onnx", onnx.__version__)

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """See `Exporter.open_source`; the file is copied with its weights, and only the copy is worked on."""
        if not isinstance(source, str | Path | onnx.ModelProto):
            raise SourceError(f"a {type(source).__name__} is no ONNX model; expected a file or a ModelProto.")
        if isinstance(source, str | Path):
            refuse_foreign(source, self.name)
        with tempfile.TemporaryDirectory(prefix="paritygate-onnx-") as scratch:
            model = _open(source, config, Path(scratch))
            try:
                yield model
            finally:
                model.close()


def _open(source: Any, config: ExportConfig, folder: Path) -> OnnxModel:
    proto, beside = read_model(source)
    notes = [*_origin(proto), *scan(proto, config)]
    inputs = Inputs(proto.graph, config.inputs)
    inputs.write_ranks(proto.graph)
    notes += [*prepare(proto, beside, folder), *inputs.notes]
    sha256 = file_sha256(Path(source)) if isinstance(source, str | Path) else None
    model = OnnxModel(proto, inputs, folder, notes, Weights("as in the file", sha256), trust=config.trust)
    try:
        with stage("probes"):  # the evaluator loads the model, for its answers alone
            model.referee.check()
    except BaseException:
        model.close()
        raise
    return model


def _producer(model: onnx.ModelProto) -> str:
    """Who says to have written a file, in words fit for a line; empty if nobody does.

    tf2onnx writes `1.17.0 None` for a version whose commit it does not know.
    """
    words = f"{model.producer_name} {model.producer_version}".split()
    told = " ".join(word for word in words if word.lower() not in _NO_WORDS)
    text = "".join(letter if letter.isprintable() else "?" for letter in told)
    return text if len(text) <= _LONGEST_PRODUCER else f"{text[: _LONGEST_PRODUCER - 1]}…"


def _origin(model: onnx.ModelProto) -> list[str]:
    producer = _producer(model)
    by = f"; it says that {producer} wrote it" if producer else ""
    return [
        f"The source is an ONNX file{by}. Its answers are those of onnx's reference evaluator: they show what the "
        "file computes, not what was trained."
    ]


class OnnxModel(SourceModel):
    """An ONNX file that is open for export."""

    dims_are_declared = True
    narrows_floats = True  # where the evaluator answers wider than the graph declares

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Inputs,
        folder: Path,
        notes: Sequence[str],
        weights: Weights,
        *,
        trust: bool,
    ) -> None:
        self.inputs = inputs.specs
        self.example = inputs.example
        self.notes = list(notes)
        self.weights = weights
        self.whole_numbers = not holds_floats(model)
        self._ranges = index_ranges(model.graph)
        self._folder = folder
        self.assets = write_metadata(model, folder)
        outputs = tuple(value.name for value in model.graph.output)
        self.referee = Referee(folder, outputs, limits_for(weight_bytes(folder), trust=trust))

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """What onnx's reference evaluator answers."""
        return self.referee.answer(feeds, wide=False)

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """The same evaluator on a copy of the graph in which every float is a double."""
        return self.referee.answer(feeds, wide=True)

    def convert(self, request: ConversionRequest) -> None:
        """Write the file's own graph."""
        write_converted(self._folder, request.path, request.external_data_threshold_bytes)

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """The rows of the tables that integer inputs index."""
        return self._ranges

    def close(self) -> None:
        """End the evaluator's process."""
        self.referee.close()
