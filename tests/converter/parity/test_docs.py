"""docs/parity.md and docs/bundle.md say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.parity.feeds import SWEEP_SIZES
from paritygate.converter.parity.likeness import LIKE_EXAMPLE, LIKE_ROWS
from paritygate.converter.parity.tolerance import TABLE
from paritygate.converter.schemas import load_schema

DOCS = Path(__file__).parents[3] / "docs"
PARITY = (DOCS / "parity.md").read_text("utf-8")
BUNDLE = (DOCS / "bundle.md").read_text("utf-8")


def short(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


@pytest.mark.parametrize("rung", TABLE)
def test_the_table_in_the_docs_is_the_one_in_force(rung: str) -> None:
    tolerance = TABLE[rung]
    row = f"| `{rung}` | {short(tolerance.rtol)} | {short(tolerance.atol)} | {short(tolerance.budget)} |"
    assert row in PARITY


def test_the_noise_key_in_the_docs_is_the_one_in_force() -> None:
    assert f"<= {TABLE['float32'].noise_factor:g} * noise + floor" in PARITY
    assert f"the floor is {short(TABLE['float32'].noise_floor)}" in PARITY.replace("\n", " ")


@pytest.mark.parametrize("key", load_schema("bundle.v1")["required"])
def test_every_key_of_the_manifest_is_told(key: str) -> None:
    assert f"`{key}`" in BUNDLE


def test_the_sizes_of_the_sweep_are_told() -> None:
    *most, last = SWEEP_SIZES
    assert f"{', '.join(map(str, most))} and {last}" in BUNDLE


def test_the_cases_on_the_scale_of_the_example_are_told() -> None:
    assert f"| `{LIKE_EXAMPLE}`, `{LIKE_EXAMPLE}:<dim>={LIKE_ROWS}` |" in BUNDLE
    assert f"the other has {LIKE_ROWS} rows" in BUNDLE
