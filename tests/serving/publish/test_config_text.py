from __future__ import annotations

import pytest

from paritygate.serving.publish.config_text import replace_version_list

PLAIN = 'name: "m"\nversion_policy { specific { versions: [ 1 ] } }\nbackend: "onnxruntime"\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(PLAIN, PLAIN.replace("[ 1 ]", "[ 1, 2 ]"), id="one line"),
        pytest.param(
            "version_policy: {\n  specific {\n    versions: 1\n    versions: 7\n  }\n}\n# end\n",
            "version_policy { specific { versions: [ 1, 2 ] } }\n# end\n",
            id="repeated field",
        ),
        pytest.param(
            "# version_policy { all {} } was too much\nversion_policy{specific{versions:[1]}} # {\n",
            "# version_policy { all {} } was too much\nversion_policy { specific { versions: [ 1, 2 ] } } # {\n",
            id="braces in comments",
        ),
        pytest.param(
            'name: "a}version_policy {"\nversion_policy { specific { versions: [1] } }',
            'name: "a}version_policy {"\nversion_policy { specific { versions: [ 1, 2 ] } }',
            id="braces in strings",
        ),
    ],
)
def test_only_the_version_list_changes(before: str, after: str) -> None:
    assert replace_version_list(before, [1, 2]) == after


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('name: "m"\n', id="no policy"),
        pytest.param("version_policy { all {} } version_policy { all {} }", id="two policies"),
        pytest.param("version_policy { specific { versions: [1] }", id="no closing brace"),
        pytest.param("parameters { version_policy { } }", id="not at the top level"),
        pytest.param("version_policy < all: < > >", id="angle brackets"),
    ],
)
def test_text_that_is_not_understood_is_left_to_the_renderer(text: str) -> None:
    assert replace_version_list(text, [1]) is None
