"""A Hugging Face model directory: `config.json`, weights, tokenizer; opened through `transformers`.

transformers builds the network from the configuration; the weights are read by our own readers, so a `.bin` file
runs nothing. A configuration that names code of its own (`auto_map`) is refused without trust, and nothing is ever
fetched: whatever is not in the directory is missing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.checkpoints import hugging_face as directory
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._pytorch import structure
from paritygate.converter.exporters._pytorch.model import TorchModel, accepted_call
from paritygate.converter.exporters.base import Weights
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

if TYPE_CHECKING:
    import torch

BATCH, SEQUENCE = "batch", "sequence"

_POOLING_NOTE = (
    "The directory describes steps after the network ({names}); the graph ends at the network's own outputs, and "
    "those steps are the client's."
)


class HuggingFaceModel(TorchModel):
    """See `TorchModel`; it knows the ranges of token ids, and that a row of nothing but padding has no answer."""

    ranges: Mapping[str, tuple[int, int]] = {}

    def integer_ranges(self) -> dict[str, tuple[int, int]]:
        """The sizes of the vocabularies, as the configuration tells them."""
        return super().integer_ranges() | dict(self.ranges)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See `SourceModel.run`.

        Raises:
            ValueError: If a row is padding throughout and the network answers it with NaN, which proves nothing.
        """
        answers = super().run(feeds)
        mask = feeds.get("attention_mask")
        if mask is not None and _has_nan(answers) and bool(np.any(~np.any(mask != 0, axis=-1))):
            raise ValueError("attention_mask has a row of zeros only, which the network answers with NaN")
        return answers


def _has_nan(answers: Feeds) -> bool:
    return any(bool(np.isnan(a.astype(np.float64)).any()) for a in answers.values() if a.dtype.kind in "fV")


def open_directory(path: Path, config: ExportConfig) -> TorchModel:
    """A directory as a source.

    Raises:
        UnsafeSource: If its configuration names code of its own, without trust.
        SourceError: If the weights are damaged, or are not those of the network.
        ExportError: If transformers is missing, or the model takes more than the directory tells.
    """
    said = directory.read_config(path)
    directory.refuse_code(path, trust=config.trust)
    _require_transformers(path)
    with _offline(), _as_one_line(path):
        network = _build(path, said, directory.read_weights(path, trust=config.trust), trust=config.trust)
    files = directory.asset_files(path)
    weights = Weights("as in the directory", directory.weights_sha256(path))
    model = _opened(network, config, weights, _notes(path))
    model.assets = files
    return model


def _require_transformers(path: Path) -> None:
    try:
        importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise ExportError(
            f"{path} is a Hugging Face model directory, which needs transformers, and that is not installed here; "
            f"run: pip install 'paritygate[huggingface]'"
        ) from error


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Nothing is fetched from a hub, whatever the configuration names."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _as_one_line(path: Path) -> Iterator[None]:
    """What transformers says of a directory that it cannot build, in one line."""
    try:
        yield
    except (SourceError, ExportError):
        raise
    except Exception as error:
        ours = importlib.metadata.version("transformers")
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {(lines or ['no text'])[0][:300]}"
        raise SourceError(
            f"transformers {ours} cannot build the model in {path} ({said}); "
            f"expected a directory as save_pretrained writes it."
        ) from error


# --- the network --------------------------------------------------------------------------------------------


def _build(
    path: Path, said: Mapping[str, Any], weights: Mapping[str, torch.Tensor], *, trust: bool
) -> torch.nn.Module:
    import transformers
    from transformers.utils import logging

    if said.get("quantization_config"):
        raise ExportError(
            f"the model in {path} is quantised ({said['quantization_config'].get('quant_method')}), which this "
            f"exporter does not convert; export the model that it was quantised from."
        )
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        settings = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=trust
        )
        if getattr(settings, "use_cache", None):
            settings.use_cache = False  # the past of a decoder is no input or output of a served graph
        network, found = _class_of(path, said, settings, trust=trust).from_pretrained(
            None,
            config=settings,
            state_dict=dict(weights),
            dtype="auto",
            attn_implementation="eager",
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
    _check_loaded(path, network, found)
    built: torch.nn.Module = network.eval()
    return built


def _class_of(path: Path, said: Mapping[str, Any], settings: Any, *, trust: bool) -> Any:
    """The class of the network: the one that the configuration names, else the plain one of its kind."""
    import transformers

    names = said.get("architectures") or []
    own = said.get("auto_map") or {}
    if own and trust:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        kinds = {kind: place for kind, place in own.items() if kind.startswith("AutoModel")}
        named = [place for place in kinds.values() if names and place.endswith(f".{names[0]}")]
        if kinds:
            chosen = (named or list(kinds.values()))[0]
            return get_class_from_dynamic_module(chosen, str(path), local_files_only=True)
    if names:
        found = getattr(transformers, names[0], None)
        if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
            raise SourceError(
                f"{path / directory.CONFIG_FILE} names the architecture {names[0]!r}, which transformers "
                f"{transformers.__version__} does not have; expected one of its own."
            )
        return found
    return transformers.AutoModel._model_mapping[type(settings)]


def _check_loaded(path: Path, network: Any, found: Mapping[str, Any]) -> None:
    """Refuse weights that are not all there: transformers fills in random ones and goes on."""
    missing = sorted(map(str, found.get("missing_keys") or ()))
    others = [
        str(entry[0] if isinstance(entry, tuple) else entry) for entry in found.get("mismatched_keys") or ()
    ]
    if missing or others:
        what = [f"missing {_some(missing)}"] if missing else []
        what += [f"other shapes: {_some(sorted(others))}"] if others else []
        raise SourceError(
            f"the weights in {path} do not fit the network {type(network).__name__} of its configuration: "
            f"{'; '.join(what)}. Use the configuration that they were saved with."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# --- what it takes ------------------------------------------------------------------------------------------


def _opened(
    network: torch.nn.Module, config: ExportConfig, weights: Weights, notes: list[str]
) -> HuggingFaceModel:
    if config.inputs is not None and declared_inputs(config.inputs) is None:
        plan = accepted_call(network, structure.plan_calls(network, config.inputs))
        model = HuggingFaceModel(network, plan, weights=weights, notes=notes)
    else:
        specs = declared_inputs(config.inputs) or _own_inputs(network)
        plan = structure.plan_declared(network, specs)
        model = HuggingFaceModel(network, plan, declared=specs, weights=weights, notes=notes)
    model.ranges = {name: bounds for name, bounds in _ranges(network).items() if name in plan.names}
    return model


def _own_inputs(network: Any) -> tuple[TensorSpec, ...]:
    """The inputs that the configuration tells: token ids with their mask, or a picture.

    Raises:
        ExportError: If the network takes something else.
    """
    settings, main = network.config, str(network.main_input_name)
    if getattr(settings, "is_encoder_decoder", False):
        raise ExportError(
            f"{type(network).__name__} is an encoder with a decoder, whose inputs the directory does not tell; "
            f"give example arrays (--samples x.npz, or inputs=)."
        )
    if main == "input_ids":
        ranges = _ranges(network)
        names = ["input_ids", *(name for name in ("attention_mask", "token_type_ids") if name in ranges)]
        return tuple(TensorSpec(name, DType.INT64, (BATCH, SEQUENCE)) for name in names)
    size, channels = getattr(settings, "image_size", None), getattr(settings, "num_channels", None)
    if main == "pixel_values" and isinstance(size, int | list | tuple) and isinstance(channels, int):
        height, width = (size, size) if isinstance(size, int) else size[-2:]
        return (TensorSpec(main, DType.FLOAT32, (BATCH, channels, int(height), int(width))),)
    raise ExportError(
        f"{type(network).__name__} takes {main!r}, whose shape the directory does not tell; give example arrays "
        f"(--samples x.npz, or inputs=), or declare it (--input '{main}:float32[batch,...]')."
    )


def _ranges(network: Any) -> dict[str, tuple[int, int]]:
    """Smallest and largest value of the token inputs that the network really uses."""
    taken = structure.parameter_names(network)
    found: dict[str, tuple[int, int]] = {}
    if "input_ids" in taken:
        found["input_ids"] = (0, int(network.get_input_embeddings().num_embeddings) - 1)
    if "attention_mask" in taken:
        found["attention_mask"] = (0, 1)
    types = getattr(network.config, "type_vocab_size", None)
    if "token_type_ids" in taken and isinstance(types, int) and types > 1:
        found["token_type_ids"] = (0, types - 1)
    return found


def _notes(path: Path) -> list[str]:
    modules = path / "modules.json"
    if not modules.is_file():
        return []
    try:
        steps = json.loads(modules.read_text("utf-8"))
        names = [str(step["type"]).rpartition(".")[2] for step in steps[1:]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [_POOLING_NOTE.format(names=", ".join(names))] if names else []
