from __future__ import annotations

from pathlib import Path

import pytest

from support.bundles import BundleSet, linear_bundle, proven_bundle


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> BundleSet:
    folder = tmp_path_factory.mktemp("bundles")
    return BundleSet(
        proven=proven_bundle(folder / "proven", seed=1),
        other=proven_bundle(folder / "other", seed=2),
        wider=proven_bundle(folder / "wider", seed=3, num_classes=5),
        demoted=proven_bundle(folder / "demoted", seed=4, num_probes=1),
        failing=proven_bundle(folder / "failing", seed=5, spoil=0.5),
        unproven=linear_bundle(folder / "unproven", seed=6),
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository with nothing beside it."""
    path = tmp_path / "around" / "repository"
    path.mkdir(parents=True)
    return path
