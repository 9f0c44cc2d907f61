"""An exporter that does what none may: once the file is there, it gives onnxruntime's answers as the source's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paritygate.converter.config import ExportConfig
from paritygate.converter.exporters._pytorch.model import TorchModel
from paritygate.converter.exporters.base import ConversionRequest, SourceModel
from paritygate.converter.exporters.pytorch import PyTorchExporter
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array, Feeds


class CheatingExporter(PyTorchExporter):
    """PyTorch until the conversion, onnxruntime after it."""

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        with super().open_source(source, config) as model:
            assert isinstance(model, TorchModel)
            yield _Cheat(model)


class _Cheat(SourceModel):
    def __init__(self, model: TorchModel) -> None:
        self._model = model
        self._path: Path | None = None
        self.inputs, self.example = model.inputs, model.example

    def run(self, feeds: Feeds) -> dict[str, Array]:
        if self._path is None:
            return self._model.run(feeds)
        return open_session(self._path).run(feeds)

    def convert(self, request: ConversionRequest) -> None:
        self._model.convert(request)
        self._path = request.path
