from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.parity import ToleranceConfig, validate_bundle, write_evidence
from paritygate.serving.publish import Finding, ModelRepository, publish_bundle
from paritygate.serving.publish.errors import (
    ConfigInvalid,
    ModelNameInvalid,
    ModelNotFound,
    ModelUnservable,
    RepositoryUnavailable,
)
from paritygate.serving.publish.layout import UNFINISHED_MARKER, parse_version
from support.bundles import BundleSet

POLICY = "version_policy { specific { versions: [ 1, 2 ] } }"


@pytest.fixture(scope="module")
def published(bundles: BundleSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two proven versions; tests change copies of it."""
    repository = tmp_path_factory.mktemp("published") / "repository"
    publish_bundle(bundles.proven.path, repository)
    publish_bundle(bundles.other.path, repository)
    return repository


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "repository"))


def edit_config(repository: Path, old: str, new: str) -> None:
    path = repository / "linear" / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_reader_tells_what_was_published(bundles: BundleSet, repository: Path) -> None:
    reader = ModelRepository(repository)
    assert reader.models() == ("linear",)
    assert reader.versions("linear") == (1, 2)
    assert reader.load_config("linear").backend == "onnxruntime"
    assert reader.signature("linear", 1) == bundles.proven.signature
    assert reader.require_servable("linear") == (1, 2)
    assert reader.lint() == []


def test_signature_is_the_proven_one(bundles: BundleSet, tmp_path: Path) -> None:
    publish_bundle(bundles.demoted.path, tmp_path / "repository")
    signature = ModelRepository(tmp_path / "repository").signature("linear", 1)
    assert signature.inputs[0].shape == (2, 4)


def test_signature_of_a_version_that_is_no_bundle_is_read_from_the_graph(repository: Path) -> None:
    (repository / "linear" / "1" / "bundle.json").unlink()
    assert (
        str(ModelRepository(repository).signature("linear", 1))
        == "(x: float32[batch, 4]) -> (y: float32[batch, 3])"
    )


def test_versions_follow_the_policy_and_the_folders(repository: Path) -> None:
    reader = ModelRepository(repository)
    edit_config(repository, POLICY, "version_policy { specific { versions: [ 2, 5, 4 ] } }")
    assert (reader.available_versions("linear"), reader.versions("linear")) == ((1, 2), (2,))
    assert reader.missing_versions("linear") == (4, 5)
    edit_config(repository, "version_policy { specific { versions: [ 2, 5, 4 ] } }", "")
    assert (reader.versions("linear"), reader.missing_versions("linear")) == ((2,), ())


@pytest.mark.parametrize(
    ("folder", "version"),
    [
        ("0", 0), ("1", 1), ("10", 10), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("01", None),
        ("-1", None),
        ("+1", None), (" 1", None), ("1 ", None), ("1.bak", None), ("2-old", None), ("2.5", None), ("v3", None),
        ("٣", None), ("", None), ("1\n", None),
    ],
)  # fmt: skip
def test_only_plain_whole_numbers_are_versions(folder: str, version: int | None) -> None:
    assert parse_version(folder) == version


def test_missing_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnavailable, match="is not a directory, expected a model repository"):
        ModelRepository(tmp_path / "none")


def test_unknown_model_and_version_name_the_known_ones(repository: Path) -> None:
    reader = ModelRepository(repository)
    with pytest.raises(ModelNotFound, match=r"has no model 'nope', only \['linear'\]"):
        reader.load_config("nope")
    with pytest.raises(ModelNotFound, match=r"'linear' has no version 7, only \[1, 2\]"):
        reader.signature("linear", 7)


@pytest.mark.parametrize("name", ["../linear", "linear/..", "/etc", "."])
def test_name_that_leaves_the_repository_is_never_looked_up(name: str, repository: Path) -> None:
    with pytest.raises(ModelNameInvalid):
        ModelRepository(repository).load_config(name)


def remove_config(repository: Path) -> None:
    (repository / "linear" / "config.pbtxt").unlink()


def break_config(repository: Path) -> None:
    edit_config(repository, "backend:", "backends:")


def list_missing_too(repository: Path) -> None:
    edit_config(repository, "[ 1, 2 ]", "[ 1, 2, 9 ]")


def list_missing_only(repository: Path) -> None:
    edit_config(repository, "[ 1, 2 ]", "[ 9 ]")


def remove_versions(repository: Path) -> None:
    edit_config(repository, POLICY, "")
    shutil.rmtree(repository / "linear" / "1")
    (repository / "linear" / "2").rename(repository / "linear" / "02")


def remove_model_file(repository: Path) -> None:
    (repository / "linear" / "2" / "model.onnx").unlink()


def unlist(repository: Path) -> None:
    edit_config(repository, "[ 1, 2 ]", "[ 1 ]")


def half_version(repository: Path) -> None:
    (repository / "linear" / "3").mkdir()
    (repository / "linear" / "3" / UNFINISHED_MARKER).touch()


def odd_folder(repository: Path) -> None:
    (repository / "linear" / "2-old").mkdir()


def hidden_folder_at_the_root(repository: Path) -> None:
    (repository / ".git").mkdir()


def name_with_a_space(repository: Path) -> None:
    (repository / "linear").rename(repository / "li near")


def label_file_missing(repository: Path) -> None:
    edit_config(repository, "dims: [-1, 3]", 'dims: [-1, 3] label_filename: "labels.txt"')


def label_file_outside(repository: Path) -> None:
    edit_config(repository, "dims: [-1, 3]", 'dims: [-1, 3] label_filename: "../../labels.txt"')


def damaged_bundle(repository: Path) -> None:
    (repository / "linear" / "1" / "model.onnx").write_bytes(b"")


def unproven_version(repository: Path) -> None:
    shutil.rmtree(repository / "linear" / "1" / "evidence")


def foreign_certificate(repository: Path) -> None:
    shutil.copytree(
        repository / "linear" / "2" / "evidence", repository / "linear" / "1" / "evidence", dirs_exist_ok=True
    )


def looser_tolerances(repository: Path) -> None:
    bundle = read_bundle(repository / "linear" / "1")
    tolerance = ToleranceConfig().changed("float32", rtol=1e-3)
    write_evidence(bundle, validate_bundle(bundle, tolerance=tolerance))


def wrong_dims(repository: Path) -> None:
    edit_config(repository, "[-1, 4]", "[-1, 5]")


def not_an_onnx_file(repository: Path) -> None:
    shutil.rmtree(repository / "linear" / "2")
    (repository / "linear" / "2").mkdir()
    (repository / "linear" / "2" / "model.onnx").write_bytes(b"\x00garbage")


FAULTS = [
    (remove_config, {"config-missing": "error"}, r"'linear' has no config\.pbtxt"),
    (break_config, {"config-invalid": "error"}, 'no field named "backends"'),
    (list_missing_too, {"version-missing": "warning"}, "version 9 is listed, but there is no folder"),
    (list_missing_only, {"version-missing": "error", "version-unlisted": "warning"}, "version 9 is listed"),
    (
        remove_versions,
        {"folder-ignored": "warning", "version-none": "error"},
        r"no version: .* found \['02'\]",
    ),
    (remove_model_file, {"model-file-missing": "error"}, r"version 2 has no model file model\.onnx"),
    (unlist, {"version-unlisted": "warning"}, "version 2 is not listed"),
    (half_version, {"version-unfinished": "warning"}, "version 3 is half-written"),
    (
        odd_folder,
        {"folder-ignored": "warning"},
        "'2-old' is not a version number, but Triton reads the number",
    ),
    (
        hidden_folder_at_the_root,
        {"folder-hidden": "warning"},
        "hidden folder, which Triton takes for a model",
    ),
    (name_with_a_space, {"name-invalid": "warning"}, "'li near' is not valid"),
    (label_file_missing, {"label-file-missing": "error"}, r"labels\.txt of output 'y' is not in"),
    (label_file_outside, {"label-file-outside": "error"}, "leaves the model's folder"),
    (damaged_bundle, {"bundle-corrupt": "error", "model-unloadable": "error"}, "version 1"),
    (unproven_version, {"version-unproven": "warning"}, "version 1 carries no certificate"),
    (foreign_certificate, {"version-unproven": "warning"}, "version 1 carries a certificate for other bytes"),
    (looser_tolerances, {"version-unproven": "warning"}, "version 1 passed only under tolerances looser"),
    (wrong_dims, {"config-graph-mismatch": "error"}, r"\[-1, 5\] in the config, \[-1, 4\] in the model"),
    (not_an_onnx_file, {"model-unloadable": "error"}, "version 2"),
]


@pytest.mark.parametrize(
    ("spoil", "rules", "text"), [pytest.param(*fault, id=fault[0].__name__) for fault in FAULTS]
)
def test_lint_names_what_is_wrong(
    spoil: Callable[[Path], None], rules: dict[str, str], text: str, repository: Path
) -> None:
    import re

    spoil(repository)
    findings = ModelRepository(repository).lint()
    assert {finding.rule: finding.severity for finding in findings} == rules
    assert any(re.search(text, finding.message) for finding in findings), findings
    assert all("\n" not in finding.message for finding in findings)


SERVABLE_AS_NAMED = {"config-graph-mismatch", "model-unloadable", "bundle-corrupt"}
"""What only opening the files shows; a server finds it when it opens them."""


@pytest.mark.parametrize(
    ("spoil", "rules"),
    [pytest.param(f[0], f[1], id=f[0].__name__) for f in FAULTS if f[0] is not name_with_a_space],
)
def test_model_is_servable_unless_its_layout_has_an_error(
    spoil: Callable[[Path], None], rules: dict[str, str], repository: Path
) -> None:
    spoil(repository)
    reader = ModelRepository(repository)
    if "error" in {severity for rule, severity in rules.items() if rule not in SERVABLE_AS_NAMED}:
        with pytest.raises((ModelUnservable, ConfigInvalid)):
            reader.require_servable("linear")
    else:
        assert reader.require_servable("linear")


def test_lint_of_one_model_says_nothing_of_the_others(repository: Path) -> None:
    shutil.copytree(repository / "linear", repository / "other")
    findings = ModelRepository(repository).lint("other")
    assert [(f.model, f.rule) for f in findings] == [("other", "config-invalid")]
    assert "the config's name is 'linear', expected the folder's name 'other'" in findings[0].message


def test_finding_is_told_in_one_line_and_in_json() -> None:
    finding = Finding("rule", "error", "m", Path("/r/m"), "what is wrong")
    assert str(finding) == "error: what is wrong [rule]"
    assert finding.to_json()["path"] == "/r/m"
