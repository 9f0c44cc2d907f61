"""The handed cases on model repositories and configs: what the reader and the linter say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.serving.publish import ModelRepository
from paritygate.serving.publish.errors import ConfigInvalid, ModelUnservable
from paritygate.serving.publish.triton_config import ModelConfig, load_config, parse_config, render_message
from support.shared import shared_dir


def repository(case: str) -> ModelRepository:
    (folder,) = shared_dir("cases", "model-repository").glob(f"{case}_*")
    return ModelRepository(folder / "repo")


def rules(case: str, model: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in repository(case).lint(model):
        found.setdefault(f"{finding.severity}: {finding.rule}", []).append(finding.path.name)
    return found


def test_case_31_odd_folders_are_named_once_each_and_ignored() -> None:
    assert repository("case_31").require_servable("counter") == (1, 2)
    assert rules("case_31", "counter") == {"warning: folder-ignored": ["010", "2.5", "model", "v3"]}


def test_case_31_only_a_leading_zero_is_no_version() -> None:
    with pytest.raises(ModelUnservable, match=r"'zero_first' has no version: .*'01'"):
        repository("case_31").require_servable("zero_first")


def test_case_31_newest_version_without_a_model_file_is_an_error() -> None:
    with pytest.raises(ModelUnservable, match=r"model 'gap': version 2 has no model file model\.onnx"):
        repository("case_31").require_servable("gap")
    assert "error: model-file-missing" in rules("case_31", "gap")


def test_case_32_version_minus_one_is_refused_as_it_was_written() -> None:
    with pytest.raises(ConfigInvalid, match=r"model 'pinned': version_policy lists version -1") as caught:
        repository("case_32").require_servable("pinned")
    assert "18446744073709551615" not in str(caught.value)
    assert list(rules("case_32", "pinned")) == ["error: config-invalid"]


def test_case_32_listed_version_that_is_not_there_is_named_and_the_other_served() -> None:
    assert repository("case_32").require_servable("absent") == (1,)
    assert repository("case_32").missing_versions("absent") == (4,)
    assert rules("case_32", "absent") == {"warning: version-missing": ["4"]}


def test_case_36_missing_label_file_is_an_error() -> None:
    with pytest.raises(ModelUnservable, match=r"model 'no_file': label file labels\.txt"):
        repository("case_36").require_servable("no_file")
    assert repository("case_36").lint("fruit") == []


@pytest.mark.parametrize("name", ["triton_text_encoder", "triton_reading_pipeline"])
def test_real_configs_mean_the_same_after_reading_and_rendering(name: str) -> None:
    path: Path = shared_dir("cases", "configs") / f"{name}.pbtxt"
    config = load_config(path)
    again: ModelConfig = parse_config(render_message(config.message))
    assert again.message == config.message


def test_real_config_keeps_its_queue_limits_when_a_version_is_listed() -> None:
    path = shared_dir("cases", "configs") / "triton_text_encoder.pbtxt"
    config = load_config(path)
    listed = config.with_versions([1])
    assert listed.version_policy.versions == (1,)
    listed.message.ClearField("version_policy")
    assert listed.message == config.message
    assert listed.message.dynamic_batching.default_queue_policy.max_queue_size == 256
