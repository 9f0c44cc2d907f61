"""Shared set-up: makes `support` importable from every test."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# How fast examples come says something of the machine, nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

sys.path.insert(0, str(Path(__file__).parent))
