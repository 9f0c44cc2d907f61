from __future__ import annotations

import re
from pathlib import Path

import pytest

from paritygate.serving.publish import lint

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "publishing.md").read_text()


def test_every_lint_rule_is_in_the_documentation() -> None:
    source = Path(lint.__file__).read_text()
    rules = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source)) | {"config-missing"}
    assert len(rules) > 10
    assert {rule for rule in rules if f"`{rule}`" not in PAGE} == set()


@pytest.mark.parametrize(
    "name", ["models", "versions", "load_config", "signature", "require_servable", "lint"]
)
def test_reader_methods_in_the_documentation_exist(name: str) -> None:
    from paritygate.serving.publish import ModelRepository

    assert f"`{name}(" in PAGE
    assert callable(getattr(ModelRepository, name))
