"""Loading by itself: what a certificate under changed tolerances is worth to the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.parity import ToleranceConfig, validate_bundle, write_evidence
from paritygate.serving.errors import LoadFailed
from paritygate.serving.loading import LoadedVersion, LoadRequest, load_version
from paritygate.serving.publish import ModelRepository, publish_bundle
from support.bundles import linear_bundle

LOOSER = ToleranceConfig().changed("float32", rtol=1e-3)
TIGHTER = ToleranceConfig().changed("float32", rtol=1e-5)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "around" / "repository"
    path.mkdir(parents=True)
    return path


def publish_under(tolerance: ToleranceConfig, repository: Path, directory: Path) -> None:
    bundle = linear_bundle(directory, num_probes=2)
    write_evidence(bundle, validate_bundle(bundle, tolerance=tolerance))
    publish_bundle(read_bundle(directory).path, repository, allow_custom_tolerances=True)


def load(repository: Path, *, allow_unproven: bool) -> LoadedVersion:
    config = ModelRepository(repository).load_config("linear")
    return load_version(LoadRequest(repository / "linear", "linear", 1, config, allow_unproven, 1))


def test_what_passed_under_looser_tolerances_is_not_served_as_proven(
    repository: Path, tmp_path: Path
) -> None:
    publish_under(LOOSER, repository, tmp_path / "b")
    with pytest.raises(
        LoadFailed, match=r"allows more than our tolerances \(float32 rtol 0\.001, ours is 0\.0001\).*"
    ) as caught:
        load(repository, allow_unproven=False)
    assert "\n" not in str(caught.value)
    assert "--allow-unproven" in str(caught.value)


def test_it_is_attested_and_served_as_unproven_where_that_is_allowed(
    repository: Path, tmp_path: Path
) -> None:
    publish_under(LOOSER, repository, tmp_path / "b")
    version = load(repository, allow_unproven=True)
    assert version.provenance.proof == "unproven"
    assert version.attestation is not None
    version.backend.close()


def test_tighter_tolerances_are_as_good_as_ours(repository: Path, tmp_path: Path) -> None:
    publish_under(TIGHTER, repository, tmp_path / "b")
    version = load(repository, allow_unproven=False)
    assert version.provenance.proof == "proven"
    version.backend.close()
