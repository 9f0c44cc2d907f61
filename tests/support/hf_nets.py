"""Writes small Hugging Face model directories and exports them; runs where transformers is installed."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import export_model

CODE = """
import pathlib
pathlib.Path({canary!r}).touch()
from transformers import BertConfig, BertModel
class OwnModel(BertModel):
    config_class = BertConfig
"""


def bert(kind: str, **settings: object) -> torch.nn.Module:
    """A tiny network of a class of transformers."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=48, num_labels=3, **settings,
    )  # fmt: skip
    network: torch.nn.Module = getattr(transformers, kind)(config)
    return network


def write(folder: Path, network: torch.nn.Module) -> None:
    """A directory as `save_pretrained` writes it, with a tokenizer file."""
    network.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(f"word{index}" for index in range(40)))


def write_bin(folder: Path, network: torch.nn.Module) -> None:
    """The same with its weights in a pickle, as older versions wrote it, and names of older versions inside."""
    write(folder, network)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")


def write_all(folder: Path) -> None:
    """All directories of the tests."""
    encoder, classifier = bert("BertModel"), bert("BertForSequenceClassification")
    write(folder / "encoder", encoder)
    write(folder / "classifier", classifier)
    write_bin(folder / "pickled", classifier)
    classifier.save_pretrained(folder / "shards", max_shard_size="8KB")
    torch.manual_seed(0)
    picture = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
    )
    write(folder / "picture", transformers.ViTForImageClassification(picture))
    distil = transformers.DistilBertConfig(
        vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=24, max_position_embeddings=48
    )
    write(folder / "distil", transformers.DistilBertForSequenceClassification(distil))
    lacking = {name: value for name, value in encoder.state_dict().items() if "layer.1" not in name}
    write(folder / "lacking", encoder)
    save_file(lacking, folder / "lacking" / "model.safetensors", {"format": "pt"})
    own = folder / "own_code"
    write(own, encoder)
    said = json.loads((own / "config.json").read_text())
    said["auto_map"] = {"AutoModel": "modeling_own.OwnModel"}
    said["architectures"] = ["OwnModel"]
    (own / "config.json").write_text(json.dumps(said))
    (own / "modeling_own.py").write_text(CODE.format(canary=str(folder / "own_canary")))
    write_planted(folder, classifier)
    for size in (0, 100, 5000):
        write(folder / f"cut_{size}", encoder)
        weights = folder / f"cut_{size}" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:size])
    write(folder / "unknown", encoder)
    said = json.loads((folder / "unknown" / "config.json").read_text())
    (folder / "unknown" / "config.json").write_text(json.dumps({**said, "architectures": ["NoSuchModel"]}))


class Payload:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def write_planted(folder: Path, network: torch.nn.Module) -> None:
    """A directory whose weights are a payload."""
    write_bin(folder / "planted", network)
    payload = pickle.dumps(Payload(folder / "planted_canary"))
    (folder / "planted" / "pytorch_model.bin").write_bytes(payload)


def export(source: Path, bundle: Path, **options: Any) -> dict[str, str]:
    """What came of an export: nothing where it went well, else the error and its text."""
    try:
        export_model(source, bundle, name="net", **options)
    except ConverterError as error:
        return {"error": type(error).__name__, "said": str(error)}
    return {}


def main(folder: Path, trained: Path) -> None:
    """Write and export all, and say in `said.json` how each ended and which payloads had run by then."""
    write_all(folder)
    sources = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()} | {"trained": trained}
    bundles = folder / "bundles"
    bundles.mkdir()
    said: dict[str, Any] = {name: export(path, bundles / name) for name, path in sources.items()}
    said["ran_without_trust"] = [path.name for path in folder.glob("*canary")]
    for name in ("own_code", "planted"):
        said[f"{name} trusted"] = export(sources[name], bundles / f"{name} trusted", trust=True)
    said["ran_with_trust"] = sorted(path.name for path in folder.glob("*canary"))
    (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
