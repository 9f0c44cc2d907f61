"""The files of a model directory, as a stranger may have made them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.checkpoints import hugging_face
from paritygate.converter.errors import SourceError


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", hugging_face.read_config),
        ("model.safetensors.index.json", hugging_face.weight_files),
    ],
)
def test_a_file_beyond_the_limit_is_not_read_whole(
    name: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**29)  # no bytes on the disk
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="is larger than any configuration"):
            read(tmp_path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * hugging_face._MAX_JSON_BYTES
