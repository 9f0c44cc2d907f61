"""The seam that every exporter fills: open a source, answer inputs with it, convert it. The rest is written once.

How an export runs (`Exporter.export`, which no exporter overrides):

1. `open_source(source, config)` opens the model as a `SourceModel` and closes it again, whatever happens.
   The user's own object must come back untouched, also when the export fails.
2. Inputs get the user's names and dimensions (`binding.py`); an example is made where there is none, and
   an open dimension of size 1 is traced with a larger one, since a 1 is easily baked into a graph.
3. The source itself is run at other sizes; a dimension that it cannot vary is demoted: fixed, recorded, and noted.
   One that the user named and that only varies together with another axis is refused (`settling.py`).
4. `SourceModel.convert(request)` writes ONNX. It raises `DimCannotVary` for a dimension that the framework's
   exporter fixes; the dimension is demoted and `convert` is called again.
5. The graph gets the declared names and dims, loses traces of this machine, and is checked (`graph/finish.py`).
6. `config.after_conversion` may break the file on purpose.
7. Probes: the source is run on every planned case (`parity/feeds.py`). **Only the source framework answers
   here**: the base never opens the converted file in a runtime, and `SourceModel.run` never learns its path.
8. Everything is sealed by `write_bundle`.

A new exporter is two small classes in one file and one line in `EXPORTERS`:

    class MyExporter(Exporter):
        name = "my"
        def recognises(self, source): ...               # cheap: imports no framework, runs nothing
        def versions(self): return Versions("my", "1.2", "my2onnx", "0.3")
        @contextmanager
        def open_source(self, source, config): yield MyModel(...)

    class MyModel(SourceModel):
        inputs = (SourceInput("x", DType.FLOAT32, (None, 28, 28)),)   # natural names, order of the call
        dims_are_declared = True                                      # None above is the framework's own word
        def run(self, feeds): return {"y": ...}                       # natural names, in order, inference mode
        def convert(self, request): ...                               # writes request.path

Names in a `SourceModel` are always the framework's own; the base renames to the user's and back.
"""

from __future__ import annotations

import abc
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import onnx

from paritygate.converter._stages import stage
from paritygate.converter.bundle import MODEL_FILE, Bundle, BundleDraft, write_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import BundleError, ExportError
from paritygate.converter.exporters.binding import Binding, bind_inputs, under_new_names
from paritygate.converter.exporters.named_source import NamedSource, check_repeatable, check_unchanged
from paritygate.converter.exporters.output_sizes import output_specs
from paritygate.converter.exporters.probing import Capture, ask_each_size, capture, holds_nan, sample_figures
from paritygate.converter.exporters.settling import check_asked, demote, settle_dims
from paritygate.converter.exporters.unforeseen import told
from paritygate.converter.graph.constants import deciding_constants
from paritygate.converter.graph.finish import (
    declare_outputs,
    finish_graph,
    frozen_dims,
    output_values,
    save_structure,
)
from paritygate.converter.graph.nan import nan_notes
from paritygate.converter.graph.weights import attach_weights, detach_weights, inline_file
from paritygate.converter.graph.whole_numbers import keep_integers_exact
from paritygate.converter.types import Array, DemotedDim, Dim, DType, Feeds, Signature, TensorSpec


@dataclass(frozen=True)
class Versions:
    """Who made the numbers and who wrote the graph; recorded in the manifest."""

    framework: str
    framework_version: str
    exporter: str
    exporter_version: str


@dataclass(frozen=True)
class SourceInput:
    """One input as the source itself takes it.

    Attributes:
        name: The framework's own name.
        dtype: Element type.
        shape: A size for every axis; None where the framework itself leaves the size open, a text where it also
            has a name for it.
    """

    name: str
    dtype: DType
    shape: tuple[Dim | None, ...]


@dataclass(frozen=True)
class Weights:
    """Which weights were taken, and the digest of the file they came from.

    Attributes:
        selection: In words: `as in memory`, `checkpoint key model_state`, `ema`.
        source_sha256: Hex digest of the source file, or None for a model in memory.
    """

    selection: str = "as in memory"
    source_sha256: str | None = None


@dataclass(frozen=True)
class ConversionRequest:
    """What `SourceModel.convert` has to write.

    Attributes:
        path: The ONNX file to write; external data goes beside it as `<file name>.data`. Weights that belong into
            the file itself may lie beside it as well (`graph.weights.save_apart`), which saves copies of them.
        inputs: The inputs under the source's own names; a text in a shape is a size that has to stay open.
        example: Feeds under the source's own names, at the sizes to trace with.
        opset: Version of the default operator set.
        external_data_threshold_bytes: Weights larger than this in sum go to the side file.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    example: dict[str, Array]
    opset: int
    external_data_threshold_bytes: int


class DimCannotVary(Exception):
    """Raised by `SourceModel.convert` for a dimension that the framework's exporter can only fix.

    Attributes:
        dim: The name of the dimension, as it stands in `ConversionRequest.inputs`.
        reason: One line in plain words: why, and where in the model.
    """

    def __init__(self, dim: str, reason: str) -> None:
        super().__init__(f"{dim}: {reason}")
        self.dim = dim
        self.reason = reason


class SourceModel(abc.ABC):
    """A model that is open for export, in inference mode, in its own framework.

    Attributes:
        inputs: What it takes, in the order of the call.
        dims_are_declared: True if the framework itself says which sizes vary (None in a shape); False if the
            shapes are those of the example, and the default rule or the user decides.
        example: Feeds to trace with under the source's own names; None if the base shall make them.
        weights: Where the weights came from.
        notes: Sentences for the manifest; may grow until the source is closed.
        assets: Files that travel with the model (a tokenizer, labels), by their name below the bundle's `assets/`.
        narrows_floats: True if the converted graph may give float32 where the source gives float64. The
            probes then hold the source's answers cast to the graph's type, and a note says so.
        whole_numbers: True if the source holds no floats, so that what it does to integers may have to be exact
            at any magnitude; it is then also asked the cases `extreme:wide` and `extreme:half`.
        traces_anew: True if its functions are traced anew for each new size, and one that `convert` traces for
            open sizes would answer from then on for all that were not asked before. Every size of the
            planned cases is then asked once before the conversion, so that the answers are its own.
    """

    inputs: tuple[SourceInput, ...]
    dims_are_declared: bool = False
    example: Feeds | None = None
    weights: Weights = Weights()
    notes: Sequence[str] = ()
    assets: Mapping[str, Path] = MappingProxyType({})
    narrows_floats: bool = False
    whole_numbers: bool = False
    traces_anew: bool = False

    @abc.abstractmethod
    def run(self, feeds: Feeds) -> dict[str, Array]:
        """What the source framework itself answers, in inference mode.

        Args:
            feeds: Arrays under the source's own input names.

        Returns:
            Every output under its own name, in the order of the graph outputs that `convert` writes. Strings
            are object arrays of `str`, bfloat16 is ml_dtypes' type.

        Raises:
            Exception: Whatever the framework says of inputs that it cannot take; the case is then recorded as
                omitted with that reason.
        """

    @abc.abstractmethod
    def convert(self, request: ConversionRequest) -> None:
        """Write the model as ONNX to `request.path`, outputs in the order of `run`.

        Raises:
            DimCannotVary: If a size that has to stay open can only be fixed.
            UnsupportedOperator: If an operator has no ONNX form.
            ExportError: If the model cannot become ONNX for another reason.
        """

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """The same as `run`, computed in double precision from up-cast weights; None where that is impossible.

        Args:
            feeds: The same feeds as for `run`, not yet up-cast.

        Raises:
            Exception: Where the framework cannot; it is recorded and not tried again.
        """
        return None

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """Smallest and largest safe value of integer inputs, by own name, where the model itself tells."""
        return {}

    def acceptable(self, feeds: Feeds) -> Feeds:
        """Random feeds, under own names, with known values where the model was fitted on a list of them."""
        return feeds

    def telling_sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Sizes of open dims, by name, that the source's own code compares with; asked beside the usual sweep.

        Known once `convert` has succeeded.
        """
        return {}

    def own_code(self) -> Sequence[Any]:
        """Models, layers and functions of the user's, where the framework tells no `telling_sizes`.

        What hangs on them is looked through for code that compares sizes; none of it is run.
        """
        return ()

    def edges(self) -> Mapping[str, Feeds]:
        """Samples at which the model itself branches, where it knows; they are asked beside the planned cases.

        Returns:
            Feeds under the source's own names, by what they are about. Axis 0 of every input is the sample; there
            may be thousands, and any number of them may be asked together.
        """
        return {}


class Exporter(abc.ABC):
    """Turns sources of one framework into bundles.

    Attributes:
        name: Its key in `EXPORTERS`.
        keeps_saved_models: Whether it reads SavedModels, so that one can travel with the bundle.
        modules: What must be importable to export in this process; empty for whatever its environment holds.
    """

    name: ClassVar[str]
    keeps_saved_models: ClassVar[bool] = False
    modules: ClassVar[tuple[str, ...]] = ()

    def modules_for(self, source: Any) -> tuple[str, ...]:
        """What must be importable to export this source in this process; see `modules`."""
        return self.modules

    @abc.abstractmethod
    def recognises(self, source: Any) -> bool:
        """Whether a source is surely of this framework; imports no framework and runs nothing of the source."""

    def refuse_early(self, source: Any, config: ExportConfig) -> None:  # noqa: B027 - most have nothing to say
        """Refuse what can be seen to be wrong without the framework, before an environment is built for it.

        Raises:
            SourceError: As `open_source` would raise it.
        """

    @abc.abstractmethod
    def versions(self) -> Versions:
        """The framework and exporter at work, with their versions; may import them."""

    @abc.abstractmethod
    def open_source(self, source: Any, config: ExportConfig) -> AbstractContextManager[SourceModel]:
        """Open a source for export; leaving the context puts everything back as it was.

        Raises:
            SourceNotFound: If there is no such file, module or factory.
            UnsafeSource: If opening it could run code and `config.trust` is not set.
            FactoryError: If the user's factory raises or gives no model.
            ExportError: If the framework is not installed or the example inputs do not fit.
        """

    def export(self, source: Any, directory: Path, config: ExportConfig) -> Bundle:
        """Convert a source and seal it with its own answers.

        Args:
            source: What `open_source` takes.
            directory: The bundle to write; it must not exist.
            config: Names, dimensions, opset, trust, samples.

        Raises:
            SourceError: If the source cannot be opened.
            ExportError: If it cannot become ONNX.
            BundleError: If the bundle cannot be written.
        """
        directory = Path(directory)
        if directory.exists():
            raise BundleError(
                f"{directory} exists already; a bundle is never overwritten. Name a new directory or remove it."
            )
        if config.keep_saved_model and not self.keeps_saved_models:
            raise ExportError(
                f"keep_saved_model keeps the SavedModel that is exported, and exporter {self.name!r} reads none. "
                "Leave it out, or export a SavedModel."
            )
        with told(source, self.name):
            return self._export(source, directory, config)

    def _export(self, source: Any, directory: Path, config: ExportConfig) -> Bundle:
        with ExitStack() as opened:
            with stage("open"), told(source, self.name, reading=True):
                model = opened.enter_context(self.open_source(source, config))
            workspace = opened.enter_context(tempfile.TemporaryDirectory(prefix="paritygate-export-"))
            draft = self._draft(model, Path(workspace), config)
            with stage("write"):
                return write_bundle(draft, directory)

    def _draft(self, model: SourceModel, workspace: Path, config: ExportConfig) -> BundleDraft:
        source = NamedSource(model, config.output_names)
        config = under_new_names(model, config)
        with stage("probes"):
            binding = settle_dims(source, bind_inputs(model, config), config)
            answer = check_repeatable(source, binding)
            if model.traces_anew:
                ask_each_size(source, binding, config)
        path = workspace / MODEL_FILE
        with stage("graph"):
            binding, graph = _convert(source, binding, path, config)
            check_asked(binding, config)
            keep_integers_exact(graph)
            notes = finish_graph(
                graph,
                name=config.name,
                inputs=binding.inputs,
                own_inputs=binding.own_names,
                outputs=list(answer),
            )
            unasked = nan_notes(graph)
            save_structure(graph, path)
        with stage("probes"):
            check_unchanged(source, binding, answer)
        if config.after_conversion is not None:
            attach_weights(path)
            config.after_conversion(path)
            graph = detach_weights(path)
            save_structure(graph, path)
        with stage("graph"):
            values = output_values(graph)
            dtypes = _graph_dtypes(answer, values, model)
            source.constants = deciding_constants(graph)
            del graph  # it may carry constants as large as weights, and the probes need the memory
        with stage("probes"):
            said = capture(source, binding, config, dtypes)
            outputs = output_specs(values, said.shapes)
            notes += [] if holds_nan(said.probes) else unasked
        with stage("graph"):
            declare_outputs(path, outputs)
        return self._sealed(model, binding, Signature(binding.inputs, outputs), said, notes, path, config)

    def _sealed(
        self,
        model: SourceModel,
        binding: Binding,
        signature: Signature,
        said: Capture,
        notes: Sequence[str],
        path: Path,
        config: ExportConfig,
    ) -> BundleDraft:
        versions = self.versions()
        return BundleDraft(
            name=config.name,
            model_path=path,
            inline_weights=inline_file(path) if inline_file(path).exists() else None,
            signature=signature,
            framework=versions.framework,
            framework_version=versions.framework_version,
            exporter=versions.exporter,
            exporter_version=versions.exporter_version,
            probes=said.probes,
            trace_dims=binding.trace_dims,
            weights_selection=model.weights.selection,
            source_sha256=model.weights.source_sha256,
            demoted=binding.demoted,
            seed=config.seed,
            omitted=said.omitted,
            samples=sample_figures(config, said),
            notes=[*binding.notes, *model.notes, *notes, *said.notes],
            assets=model.assets,
        )


def _convert(
    source: NamedSource, binding: Binding, path: Path, config: ExportConfig
) -> tuple[Binding, onnx.ModelProto]:
    """Convert, demoting one dimension after the other until the framework's exporter is content."""
    while True:
        request = ConversionRequest(
            path=path,
            inputs=binding.own_inputs(),
            example=binding.to_own(binding.trace_example()),
            opset=config.opset,
            external_data_threshold_bytes=config.external_data_threshold_bytes,
        )
        inline_file(path).unlink(missing_ok=True)  # of an earlier try
        try:
            source.model.convert(request)
        except DimCannotVary as verdict:
            size = binding.trace_dims[verdict.dim]
            binding = demote(source, binding, config, DemotedDim(verdict.dim, size, verdict.reason))
            continue
        graph = detach_weights(path)
        frozen = frozen_dims(graph, binding.inputs, binding.own_names)
        if not frozen:
            return binding, graph
        for dim, size in frozen.items():
            reason = f"the framework's exporter fixed it at {size} without a word"
            binding = demote(source, binding, config, DemotedDim(dim, size, reason))


def _graph_dtypes(
    answer: Feeds, values: Sequence[tuple[str, DType, tuple[Dim, ...] | None]], model: SourceModel
) -> dict[str, DType]:
    """The graph's dtype of each output, refused where it is not the source's own."""
    dtypes: dict[str, DType] = {}
    for (name, array), (_, graph, _) in zip(answer.items(), values, strict=True):
        own = DType.from_numpy(array.dtype)
        narrowed = model.narrows_floats and (own, graph) == (DType.FLOAT64, DType.FLOAT32)
        if own is not graph and not narrowed:
            raise ExportError(
                f"output {name!r} is {own.value} in the source, but {graph.value} in the converted graph."
            )
        dtypes[name] = graph
    return dtypes
