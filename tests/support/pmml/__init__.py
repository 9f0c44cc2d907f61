"""PMML documents for tests: files that PMML writers made, documents written out here, and hostile ones."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the `.pmml` files lie; README.md tells where each comes from."""
