"""Bundles that the tests of the gateway publish; made once, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle
from support.bundles import proven_bundle


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """Proven bundles of one signature and different weights, `y = x @ w`."""
    root = tmp_path_factory.mktemp("bundles")
    return [proven_bundle(root / f"b{seed}", seed=seed, num_probes=3) for seed in range(3)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository of its own."""
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder
