"""A config, and files, that come with a load call instead of from the repository.

They hold until the model is loaded without them or unloaded. A config alone changes how proven bytes are served,
and they stay proven; files are nobody's evidence, so they are served only where unproven versions may be.

Source: triton-inference-server/server, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from paritygate.converter.bundle import MANIFEST_FILE
from paritygate.serving.errors import InvalidArgument, LoadFailed
from paritygate.serving.publish.errors import PublishError
from paritygate.serving.publish.triton_config import ModelConfig, parse_config, render_message

_FILE = re.compile(r"file:([1-9][0-9]{0,18})/([A-Za-z0-9_][A-Za-z0-9._-]{0,199})")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_MAX_FILES = 64


@dataclass(frozen=True)
class LoadParameters:
    """What came with a load call.

    Attributes:
        config: Text of a ModelConfig as JSON; empty if there is none.
        files: Contents by version and file name.
    """

    config: str = ""
    files: Mapping[tuple[int, str], bytes] = field(default_factory=dict)


NOTHING = LoadParameters()


@dataclass(frozen=True)
class Override:
    """What stands for a model's folder and config.

    Attributes:
        config: The config.
        folder: Where the files lie; None leaves the repository's.
    """

    config: ModelConfig
    folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def directory(self) -> Path | None:
        """The folder that holds the versions; None for the repository's."""
        return Path(self.folder.name) if self.folder is not None else None

    def drop(self) -> None:
        """Remove the files; what is loaded of them stays loaded."""
        if self.folder is not None:
            self.folder.cleanup()


def read_load_parameters(given: Mapping[str, object]) -> LoadParameters:
    """Check what came with a load call.

    Args:
        given: `config` as text, `file:<version>/<name>` as bytes.

    Raises:
        InvalidArgument: If a parameter is not known, is of another type, or names another place than a version's
            folder.
    """
    config, files = "", {}
    for key, value in given.items():
        if key == "config":
            if not isinstance(value, str) or not value.strip():
                raise InvalidArgument("load parameter 'config' is no text; give the ModelConfig as JSON.")
            config = value
        elif key.startswith("file:"):
            files[_place(key)] = _content(key, value)
        else:
            raise InvalidArgument(
                f"load parameter '{key[:60]}' is not known; known are config and file:<version>/<name>."
            )
    if files and not config:
        raise InvalidArgument(
            "a load with files needs the parameter 'config' too; send the ModelConfig as JSON."
        )
    if len(files) > _MAX_FILES:
        raise InvalidArgument(f"a load came with {len(files)} files; expected at most {_MAX_FILES}.")
    return LoadParameters(config, files)


def _place(key: str) -> tuple[int, str]:
    match = _FILE.fullmatch(key)
    if match is None or match[2] == MANIFEST_FILE:
        raise InvalidArgument(
            f"load parameter '{key[:80]}' names no file of a version; expected file:<version>/<name>, a name of "
            f"letters, digits, '.', '_' and '-' other than {MANIFEST_FILE}."
        )
    return int(match[1]), match[2]


def _content(key: str, value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise InvalidArgument(f"load parameter '{key[:80]}' is empty; expected the content of a file.")
    return value


def make_override(model: str, parameters: LoadParameters) -> Override:
    """What the parameters make of a model; writes the files, so not for the event loop.

    Raises:
        LoadFailed: If the config is none, says what Triton refuses, or is for another model.
    """
    if not _NAME.fullmatch(model):
        raise LoadFailed(
            f"failed to load '{model[:80]}', a model's name is of letters, digits, '.', '_' and '-'"
        )
    config = _read_config(model, parameters.config)
    if not parameters.files:
        return Override(config)
    folder = tempfile.TemporaryDirectory(prefix="paritygate-load-")
    for (version, name), content in parameters.files.items():
        path = Path(folder.name) / str(version) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return Override(config, folder)


def _read_config(model: str, text: str) -> ModelConfig:
    try:
        message = json_format.ParseDict(json.loads(text), model_config_pb2.ModelConfig())
    except (ValueError, RecursionError, json_format.ParseError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise LoadFailed(
            f"failed to load '{model}', the config that came with the call cannot be read: {reason}"
        ) from error
    try:
        return parse_config(render_message(message), model=model)
    except PublishError as error:
        raise LoadFailed(f"failed to load '{model}': {error}") from error
