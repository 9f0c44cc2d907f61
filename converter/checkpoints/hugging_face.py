"""The files of a Hugging Face model directory: configuration, weights in one or more files, tokenizer.

Nothing outside of the directory is read: a name that leaves it is refused, and so is a link, except into the
`blobs` folder beside the snapshots, where the hub's own cache keeps every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.errors import SourceError, UnsafeSource

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "config.json"

_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip

_ASSETS = (
    CONFIG_FILE, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "sentencepiece.bpe.model", "spm.model",
    "tokenizer.model", "source.spm", "target.spm", "chat_template.jinja", "preprocessor_config.json",
    "processor_config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    "1_Pooling/config.json",
)  # fmt: skip
"""What a client needs to turn texts or pictures into inputs, and answers into words."""

_MAX_ASSET_BYTES = 256 * 2**20
_MAX_JSON_BYTES = 16 * 2**20


def read_config(path: Path) -> Mapping[str, Any]:
    """What `config.json` says.

    Raises:
        SourceError: If it is missing or no JSON object.
    """
    said = _read_json(_inside(path, CONFIG_FILE))
    if not isinstance(said, dict):
        raise SourceError(f"{path / CONFIG_FILE} holds a {type(said).__name__}; expected a JSON object.")
    return said


def refuse_code(path: Path, *, trust: bool) -> None:
    """Refuse a configuration that names code of its own, which transformers would import.

    Raises:
        UnsafeSource: Without `trust`.
    """
    if read_config(path).get("auto_map") and not trust:
        raise UnsafeSource(
            f"{path / CONFIG_FILE} names code of its own (auto_map), which would run; it was not opened. Read "
            f"that code, then pass trust=True (--trust)."
        )


def read_weights(path: Path, *, trust: bool) -> dict[str, torch.Tensor]:
    """The weights of all files by name; nothing that a file carries is run.

    Raises:
        UnsafeSource: If a `.bin` file holds something other than weights, and names code for it.
        SourceError: If there are none, or they are damaged.
    """
    from paritygate.converter.checkpoints import pytorch as files
    from paritygate.converter.checkpoints.torch_state import select_state

    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        checkpoint = files.load_file(file, trust=trust, whole=False)
        weights |= select_state(checkpoint, None).tensors
    return weights


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights: safetensors before pickles, the parts of an index in their order.

    Raises:
        SourceError: If there is none, or an index names one that is not there.
    """
    name = next((name for name in _WEIGHTS if (path / name).exists()), None)
    if name is None:
        raise SourceError(f"{path} holds no weights; expected one of {', '.join(_WEIGHTS)}.")
    found = _inside(path, name)
    if not name.endswith(".json"):
        return [found]
    said = _read_json(found)
    parts = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise SourceError(f"{found} has no weight_map; expected an index as save_pretrained writes it.")
    return [_inside(path, part) for part in dict.fromkeys(parts.values())]


def weights_sha256(path: Path) -> str:
    """Hex digest of the weights: that of the file, or of the digests of all parts."""
    digests = [file_sha256(file) for file in weight_files(path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def asset_files(path: Path) -> dict[str, Path]:
    """The files that travel with the model, by their name in the directory.

    Raises:
        SourceError: If one is too large to be what its name says.
    """
    found = {name: _inside(path, name) for name in _ASSETS if (path / name).exists()}
    for name, file in found.items():
        if file.stat().st_size > _MAX_ASSET_BYTES:
            raise SourceError(f"{path / name} has {file.stat().st_size} bytes, which no tokenizer file has.")
    return found


def _inside(path: Path, name: str) -> Path:
    """A file of the directory, which must lie in it or in the hub's cache around it."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise SourceError(f"{path} names the file {name!r}, which leaves the directory; it was not opened.")
    file = path / name
    real, home = file.resolve(), path.resolve()
    cache = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not (real.is_relative_to(home) or real.is_relative_to(cache)):
        raise SourceError(
            f"{file} is a link to {real}, outside of the directory; it was not opened. Copy it."
        )
    if not real.is_file():
        raise SourceError(f"there is no file {file}; the model directory is not whole.")
    return file


def _read_json(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_JSON_BYTES + 1)  # no more of it, however large the file is
        if len(data) > _MAX_JSON_BYTES:
            raise SourceError(f"{file} is larger than any configuration; it is something else.")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file} is no JSON, or is damaged: {str(error).splitlines()[0]}.") from error
