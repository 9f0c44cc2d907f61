"""Shared set-up: makes `support` importable from every test, and keeps together what shares costly fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast examples come says something of the machine, nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for parallel workers: by file, and in the exporters' conformance suite by exporter.

    Fixtures of a module (a gateway, a Triton, a process of a framework) are then made once.
    """
    for item in items:
        group = str(item.path)
        if item.path.match("conformance/test_exporters.py") and hasattr(item, "callspec"):
            group += f"::{item.callspec.params.get('name')}"
        item.add_marker(pytest.mark.xdist_group(group))
