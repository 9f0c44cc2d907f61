"""Another release of an installed package, as its metadata tells it."""

from __future__ import annotations

import importlib.metadata

import pytest


def old_release(monkeypatch: pytest.MonkeyPatch, distribution: str, version: str) -> None:
    """Let a distribution say that it is of this version; all others say what they are."""
    real = importlib.metadata.version

    def told(name: str) -> str:
        return version if name == distribution else real(name)

    monkeypatch.setattr(importlib.metadata, "version", told)
