from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.bundle import CERTIFICATE_FILE, MANIFEST_FILE, MODEL_FILE, Bundle, read_bundle
from paritygate.converter.errors import BundleCorrupt, BundleError
from paritygate.converter.parity import ToleranceConfig, validate_bundle, write_evidence
from paritygate.serving.publish import ModelRepository, publish_bundle
from paritygate.serving.publish import files as publish_files
from paritygate.serving.publish.errors import (
    BundleChanged,
    ConfigInvalid,
    ForeignModel,
    ModelNameInvalid,
    NotProven,
    PublishError,
    RepositoryBusy,
    RepositoryUnavailable,
    SignatureMismatch,
)
from paritygate.serving.publish.layout import UNFINISHED_MARKER
from support.bundles import BundleSet, linear_bundle
from support.repositories import assert_clean, assert_whole, fingerprint, listed


def copy_of(bundle: Bundle, folder: Path) -> Path:
    return Path(shutil.copytree(bundle.path, folder / "bundle"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# What is published


def test_published_version_is_the_bundle_byte_for_byte(bundles: BundleSet, repository: Path) -> None:
    published = publish_bundle(bundles.proven.path, repository)
    assert (published.model, published.version, published.created) == ("linear", 1, True)
    assert published.digest == bundles.proven.digest
    assert contents(published.path) == contents(bundles.proven.path)
    assert read_bundle(published.path).certificate() == bundles.proven.certificate()


def test_versions_are_listed_one_after_the_other(bundles: BundleSet, repository: Path) -> None:
    first = publish_bundle(bundles.proven.path, repository)
    before = fingerprint(first.path)
    second = publish_bundle(bundles.other.path, repository)
    assert (second.version, listed(repository, "linear")) == (2, (1, 2))
    assert fingerprint(first.path) == before, "a live version was touched"
    assert_whole(repository, "linear")
    assert_clean(repository, "linear")


def test_same_bundle_again_writes_nothing(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    publish_bundle(bundles.other.path, repository)
    before = fingerprint(repository)
    again = publish_bundle(bundles.proven.path, repository)
    assert (again.version, again.created) == (1, False)
    assert fingerprint(repository) == before


def test_model_name_replaces_the_name_of_the_bundle(bundles: BundleSet, repository: Path) -> None:
    published = publish_bundle(bundles.proven.path, repository, model_name="other-name")
    assert published.path == repository / "other-name" / "1"
    assert ModelRepository(repository).load_config("other-name").name == "other-name"


def test_missing_repository_is_made(bundles: BundleSet, tmp_path: Path) -> None:
    published = publish_bundle(bundles.proven.path, tmp_path / "new")
    assert published.path == tmp_path / "new" / "linear" / "1"


def test_repository_behind_a_link_is_published_to_where_it_lies(
    bundles: BundleSet, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(repository)
    publish_bundle(bundles.proven.path, tmp_path / "link")
    assert listed(repository, "linear") == (1,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["around", "link"]


def test_config_says_the_proven_signature_not_the_promised_one(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.demoted.path, repository)
    config = ModelRepository(repository).load_config("linear")
    assert config.inputs[0].dims == (2, 4), "batch was proven at 2 only"
    assert config.outputs[0].dims == (-1, 3), "what the graph says, which Triton compares exactly"


def test_config_says_sizes_that_the_runtime_infers(tmp_path: Path, repository: Path) -> None:
    bundle = linear_bundle(tmp_path / "bundle", graph_output_shape=("batch", "unnamed"))
    publish_bundle(bundle.path, repository, allow_unproven=True)
    assert ModelRepository(repository).load_config("linear").outputs[0].dims == (-1, 3)


def test_max_batch_size_is_written_into_the_first_config(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository, max_batch_size=8)
    publish_bundle(bundles.other.path, repository, max_batch_size=8)
    config = ModelRepository(repository).load_config("linear")
    assert (config.max_batch_size, config.inputs[0].dims) == (8, (4,))


# The gate


def test_bundle_without_certificate_is_refused(bundles: BundleSet, repository: Path) -> None:
    with pytest.raises(NotProven, match=r"has no certificate.*Run `paritygate validate") as caught:
        publish_bundle(bundles.unproven.path, repository)
    assert caught.value.verdict is None
    assert list(repository.iterdir()) == []


def test_bundle_without_certificate_goes_in_when_that_is_allowed(
    bundles: BundleSet, repository: Path
) -> None:
    published = publish_bundle(bundles.unproven.path, repository, allow_unproven=True)
    assert read_bundle(published.path).certificate() is None


@pytest.mark.parametrize("allow_unproven", [False, True])
def test_failing_bundle_is_never_published(
    bundles: BundleSet, repository: Path, allow_unproven: bool
) -> None:
    with pytest.raises(
        NotProven, match=r"failed validation \(fail\): output 'y': max_abs_diff 0\.\d+"
    ) as caught:
        publish_bundle(bundles.failing.path, repository, allow_unproven=allow_unproven)
    assert caught.value.verdict == "fail"
    assert list(repository.iterdir()) == []


@pytest.mark.parametrize("allow_unproven", [False, True])
def test_certificate_for_other_bytes_is_refused(
    bundles: BundleSet, tmp_path: Path, repository: Path, allow_unproven: bool
) -> None:
    bundle = copy_of(bundles.proven, tmp_path)
    shutil.copy(bundles.other.path / CERTIFICATE_FILE, bundle / CERTIFICATE_FILE)
    with pytest.raises(NotProven, match="was changed after it was validated"):
        publish_bundle(bundle, repository, allow_unproven=allow_unproven)
    assert list(repository.iterdir()) == []


def judged_by(tolerance: ToleranceConfig, bundle: Path) -> Path:
    held = read_bundle(bundle)
    write_evidence(held, validate_bundle(held, tolerance=tolerance))
    return bundle


def test_pass_under_looser_tolerances_is_refused_in_one_line(
    bundles: BundleSet, tmp_path: Path, repository: Path
) -> None:
    loose = ToleranceConfig().changed("float32", rtol=1e-3)
    bundle = judged_by(loose, copy_of(bundles.proven, tmp_path))
    with pytest.raises(
        NotProven, match=r"looser than ours \(float32 rtol 0\.001, ours is 0\.0001\)"
    ) as caught:
        publish_bundle(bundle, repository, allow_unproven=True)
    assert "\n" not in str(caught.value)
    assert list(repository.iterdir()) == []


def test_looser_tolerances_go_in_when_asked_for_and_never_stand_in_for_ours(
    bundles: BundleSet, tmp_path: Path, repository: Path
) -> None:
    loose = ToleranceConfig().changed("float32", rtol=1e-3)
    bundle = judged_by(loose, copy_of(bundles.proven, tmp_path))
    assert publish_bundle(bundle, repository, allow_custom_tolerances=True).version == 1
    assert publish_bundle(bundles.proven.path, repository).version == 2, "the first is less proven"
    assert not publish_bundle(bundle, repository, allow_custom_tolerances=True).created


def test_tighter_tolerances_need_no_permission(bundles: BundleSet, tmp_path: Path, repository: Path) -> None:
    tight = ToleranceConfig().changed("float32", rtol=1e-5)
    assert publish_bundle(judged_by(tight, copy_of(bundles.proven, tmp_path)), repository).created


def test_failing_verdict_rewritten_by_hand_is_no_proof(
    bundles: BundleSet, tmp_path: Path, repository: Path
) -> None:
    bundle = copy_of(bundles.failing, tmp_path)
    path = bundle / CERTIFICATE_FILE
    path.write_text(path.read_text().replace('"verdict":"fail"', '"verdict":"passed"'))
    with pytest.raises((BundleCorrupt, NotProven)):
        publish_bundle(bundle, repository)


def damage_model(bundle: Path) -> None:
    data = bytearray((bundle / MODEL_FILE).read_bytes())
    data[-1] ^= 1
    (bundle / MODEL_FILE).write_bytes(data)


def truncate_model(bundle: Path) -> None:
    (bundle / MODEL_FILE).write_bytes((bundle / MODEL_FILE).read_bytes()[:-10])


def remove_probe(bundle: Path) -> None:
    next(bundle.rglob("output_0.pb")).unlink()


def add_file(bundle: Path) -> None:
    (bundle / "extra.bin").write_bytes(b"1")


def reseal_other_weights(bundle: Path) -> None:
    """A changed model under a changed manifest: whole again, but no longer what was proven."""
    import hashlib

    damage_model(bundle)
    manifest = json.loads((bundle / MANIFEST_FILE).read_text())
    data = (bundle / MODEL_FILE).read_bytes()
    manifest["files"][MODEL_FILE] = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    (bundle / MANIFEST_FILE).write_text(json.dumps(manifest, sort_keys=True, separators=(",", ":")))


@pytest.mark.parametrize(
    "change",
    [damage_model, truncate_model, remove_probe, add_file, reseal_other_weights],
    ids=lambda change: change.__name__,
)
def test_bundle_changed_after_validation_is_refused(
    change: Callable[[Path], None], bundles: BundleSet, tmp_path: Path, repository: Path
) -> None:
    bundle = copy_of(bundles.proven, tmp_path)
    change(bundle)
    with pytest.raises((BundleCorrupt, NotProven)) as caught:
        publish_bundle(bundle, repository)
    assert "\n" not in str(caught.value)
    assert list(repository.iterdir()) == []


@pytest.mark.parametrize("name", [MODEL_FILE, MANIFEST_FILE, CERTIFICATE_FILE])
def test_file_swapped_while_it_is_copied_withdraws_the_version(
    name: str, bundles: BundleSet, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_bundle(bundles.proven.path, repository)
    bundle = copy_of(bundles.other, tmp_path)
    copy = publish_files.copy_file

    def swap_then_copy(source: Path, target: Path) -> tuple[str, int]:
        if source == bundle / name:
            shutil.copy(bundles.proven.path / name, source)
        return copy(source, target)

    monkeypatch.setattr(publish_files, "copy_file", swap_then_copy)
    with pytest.raises(BundleChanged, match="changed while it was being published") as caught:
        publish_bundle(bundle, repository)
    assert caught.value.file == name
    assert listed(repository, "linear") == (1,)
    assert_clean(repository, "linear")
    assert not (repository / "linear" / "2").exists()


def test_path_that_is_no_bundle_is_refused(tmp_path: Path, repository: Path) -> None:
    with pytest.raises(BundleError, match="expected a bundle"):
        publish_bundle(tmp_path, repository)


def test_unproven_version_does_not_stand_in_for_a_proven_one(
    bundles: BundleSet, tmp_path: Path, repository: Path
) -> None:
    bundle = copy_of(bundles.proven, tmp_path)
    shutil.rmtree(bundle / "evidence")
    publish_bundle(bundle, repository, allow_unproven=True)
    proven = publish_bundle(bundles.proven.path, repository)
    assert (proven.version, proven.created) == (2, True)
    assert publish_bundle(bundle, repository, allow_unproven=True).version == 2, (
        "the proven one stands in for it"
    )


# What is there already


def test_model_of_another_signature_is_refused(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    with pytest.raises(
        SignatureMismatch, match=r"output 'y' has dims \[-1, 3\] in the config.*under a new name"
    ):
        publish_bundle(bundles.wider.path, repository)
    assert listed(repository, "linear") == (1,)
    assert not (repository / "linear" / "2").exists()


def test_demoted_model_does_not_follow_a_variable_one(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    with pytest.raises(SignatureMismatch, match="proven at 2 only"):
        publish_bundle(bundles.demoted.path, repository)


def test_other_max_batch_size_is_refused(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository, max_batch_size=4)
    with pytest.raises(SignatureMismatch, match="max_batch_size 8 was asked for, the config says 4"):
        publish_bundle(bundles.other.path, repository, max_batch_size=8)


def test_fields_and_comments_of_the_operator_survive(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    path = repository / "linear" / "config.pbtxt"
    edited = (
        path.read_text() + "\n# two copies, one core each\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n"
    )
    path.write_text(edited)
    path.chmod(0o640)
    publish_bundle(bundles.other.path, repository)
    assert path.read_text() == edited.replace("versions: [ 1 ]", "versions: [ 1, 2 ]")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("moment", ["while the files are copied", "just before the commit"])
def test_what_an_operator_writes_meanwhile_survives(
    moment: str, bundles: BundleSet, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_bundle(bundles.proven.path, repository, model_name="m")
    config = repository / "m" / "config.pbtxt"
    watched = {"while the files are copied": "sync_tree", "just before the commit": "sync_file"}[moment]
    done = getattr(publish_files, watched)
    edits = ["instance_group { count: 3 kind: KIND_CPU }\n"]

    def edit_once(path: Path) -> None:
        done(path)
        if edits:
            config.write_text(config.read_text() + edits.pop())

    monkeypatch.setattr(publish_files, watched, edit_once)
    publish_bundle(bundles.other.path, repository, model_name="m")
    assert not edits
    assert "count: 3" in config.read_text()
    assert listed(repository, "m") == (1, 2)


def test_what_else_lies_in_the_evidence_folder_is_left_behind(
    bundles: BundleSet, repository: Path, tmp_path: Path
) -> None:
    bundle = copy_of(bundles.proven, tmp_path)
    (bundle / "evidence" / ".certificate.json.partial-1").write_text("half")
    (bundle / "evidence" / "notes").mkdir()
    published = publish_bundle(bundle, repository)
    assert {path.name for path in (published.path / "evidence").iterdir()} <= {
        "certificate.json",
        "summary.txt",
    }


def test_new_config_is_newer_than_everything_in_the_model(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    model_dir = repository / "linear"
    future_ns = 4_000_000_000 * 10**9
    os.utime(model_dir / "1" / MODEL_FILE, ns=(future_ns, future_ns))
    publish_bundle(bundles.other.path, repository)
    config_ns = (model_dir / "config.pbtxt").stat().st_mtime_ns
    assert all(
        path.stat().st_mtime_ns < config_ns for path in model_dir.rglob("*") if path.name != "config.pbtxt"
    )


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        pytest.param("", "serves the latest versions", id="default"),
        pytest.param(
            "version_policy { latest { num_versions: 3 } }", "serves the latest versions", id="latest"
        ),
        pytest.param("version_policy { all { } }", "serves all versions", id="all"),
    ],
)
def test_model_without_a_version_list_is_left_to_its_owner(
    policy: str, fault: str, bundles: BundleSet, repository: Path
) -> None:
    publish_bundle(bundles.proven.path, repository)
    path = repository / "linear" / "config.pbtxt"
    path.write_text(path.read_text().replace("version_policy { specific { versions: [ 1 ] } }", policy))
    before = fingerprint(repository)
    with pytest.raises(ForeignModel, match=f"{fault}.*publishing needs a list.*version_policy {{ specific"):
        publish_bundle(bundles.other.path, repository)
    assert fingerprint(repository) == before


def test_model_without_a_config_is_left_to_its_owner(bundles: BundleSet, repository: Path) -> None:
    (repository / "linear" / "1").mkdir(parents=True)
    (repository / "linear" / "1" / "model.onnx").write_bytes(b"theirs")
    with pytest.raises(ForeignModel, match=r"has no config\.pbtxt"):
        publish_bundle(bundles.proven.path, repository)
    assert contents(repository) == {"linear/1/model.onnx": b"theirs"}


def test_broken_config_stops_the_publish(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    (repository / "linear" / "config.pbtxt").write_text("max_batch_sizes: 4")
    with pytest.raises(ConfigInvalid, match="is not a Triton model config"):
        publish_bundle(bundles.other.path, repository)


def test_empty_folder_of_the_model_is_as_good_as_none(bundles: BundleSet, repository: Path) -> None:
    (repository / "linear").mkdir()
    assert publish_bundle(bundles.proven.path, repository).version == 1


def test_number_above_every_folder_and_every_listed_number_is_taken(
    bundles: BundleSet, repository: Path
) -> None:
    publish_bundle(bundles.proven.path, repository)
    model_dir = repository / "linear"
    config = (model_dir / "config.pbtxt").read_text()
    (model_dir / "config.pbtxt").write_text(config.replace("[ 1 ]", "[ 1, 9 ]"))
    (model_dir / "7").mkdir()
    (model_dir / "7" / "theirs").touch()
    assert publish_bundle(bundles.other.path, repository).version == 10
    assert listed(repository, "linear") == (1, 9, 10)


def test_whole_version_that_was_taken_off_the_list_stays_on_disk(
    bundles: BundleSet, repository: Path
) -> None:
    publish_bundle(bundles.proven.path, repository)
    publish_bundle(bundles.other.path, repository)
    path = repository / "linear" / "config.pbtxt"
    path.write_text(path.read_text().replace("[ 1, 2 ]", "[ 1 ]"))
    before = fingerprint(repository / "linear" / "2")
    again = publish_bundle(bundles.other.path, repository)
    assert (again.version, listed(repository, "linear")) == (3, (1, 3))
    assert fingerprint(repository / "linear" / "2") == before


def test_listed_version_is_never_swept_even_when_it_looks_half(bundles: BundleSet, repository: Path) -> None:
    published = publish_bundle(bundles.proven.path, repository)
    (published.path / UNFINISHED_MARKER).touch()
    publish_bundle(bundles.other.path, repository)
    assert published.path.is_dir()


def test_damaged_listed_version_does_not_stand_in_for_the_bundle(
    bundles: BundleSet, repository: Path
) -> None:
    published = publish_bundle(bundles.proven.path, repository)
    damage_model(published.path)
    with pytest.raises(RepositoryUnavailable, match="version 1 of 'linear' is listed, but damaged"):
        publish_bundle(bundles.proven.path, repository)


# What the file system refuses


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "-x", "a b", "ä", "x" * 201, "a\n", "a\0b"])
def test_model_name_that_is_no_folder_is_refused(name: str, bundles: BundleSet, repository: Path) -> None:
    with pytest.raises(ModelNameInvalid, match="is not valid: expected"):
        publish_bundle(bundles.proven.path, repository, model_name=name)


def test_repository_that_is_a_file_is_refused(bundles: BundleSet, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RepositoryUnavailable, match="is a file, expected a directory"):
        publish_bundle(bundles.proven.path, tmp_path / "file")


def test_repository_below_nothing_is_refused(bundles: BundleSet, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnavailable, match=r"does not exist\. Create it first"):
        publish_bundle(bundles.proven.path, tmp_path / "a" / "b")


def test_staging_inside_the_repository_is_refused(bundles: BundleSet, repository: Path) -> None:
    with pytest.raises(RepositoryUnavailable, match="lies inside the repository"):
        publish_bundle(bundles.proven.path, repository, staging=repository / ".")


def test_staging_on_another_file_system_is_refused(bundles: BundleSet, repository: Path) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == repository.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    with pytest.raises(RepositoryUnavailable, match="are different file systems"):
        publish_bundle(bundles.proven.path, repository, staging=elsewhere)


def test_staging_folder_of_choice_is_used_and_left_empty(
    bundles: BundleSet, repository: Path, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    publish_bundle(bundles.proven.path, repository, staging=staging)
    publish_bundle(bundles.other.path, repository, staging=staging)
    assert listed(repository, "linear") == (1, 2)
    assert list(staging.iterdir()) == []


def test_staging_folder_swept_before_it_is_opened_is_made_again(
    bundles: BundleSet, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open, swept = os.open, []

    def sweep_once(path: str | Path, flags: int, *rest: int, **options: int) -> int:
        if not swept and ".publishing-" in Path(path).name:
            os.rmdir(path)
            swept.append(path)
        return really_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", sweep_once)
    assert publish_bundle(bundles.proven.path, repository).created
    assert swept


def test_publisher_that_waits_too_long_says_who_is_in_the_way(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    with publish_files.locked_directory(repository / "linear", timeout_s=1.0):
        with pytest.raises(RepositoryBusy, match="another publisher has held"):
            publish_bundle(bundles.other.path, repository, lock_timeout_s=0.1)
    assert publish_bundle(bundles.other.path, repository, lock_timeout_s=0.1).version == 2


def test_every_refusal_is_one_line(bundles: BundleSet, repository: Path) -> None:
    publish_bundle(bundles.proven.path, repository)
    for bundle in (bundles.wider, bundles.failing, bundles.unproven, bundles.demoted):
        with pytest.raises(PublishError) as caught:
            publish_bundle(bundle.path, repository)
        assert "\n" not in str(caught.value)
