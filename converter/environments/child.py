"""The other end of an isolated export: runs inside a framework environment and exports one request.

Started by `isolated.py`. Imports only what every framework environment has: numpy, onnx, ml_dtypes, and what the
exporter itself needs.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from paritygate.converter.environments.protocol import encode, encode_error
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.errors import ConverterError, EnvironmentFailure
from paritygate.converter.exporters import detect, get_exporter
from paritygate.converter.processes import CHANNEL_VARIABLE

BUNDLE_NAME = "bundle"


def main(workspace: Path) -> None:
    """Export the request that lies in `workspace` to `workspace/bundle` and say how it went on the channel."""
    channel = _Channel(int(os.environ.pop(CHANNEL_VARIABLE)))
    request = ExportRequest.read(workspace)
    warnings.showwarning = channel.warn
    try:
        digest = _export(request, workspace, channel)
    except (ConverterError, ValueError) as error:
        traceback.print_exc()
        channel.send(encode_error(error))
    except MemoryError:
        traceback.print_exc()
        channel.send(
            encode_error(EnvironmentFailure(f"exporting {request.source} took more memory than allowed."))
        )
    except Exception as error:  # noqa: BLE001 - told in full on stderr, and in one line to the parent
        traceback.print_exc()
        channel.send(encode_error(_unexpected(request, error)))
    else:
        channel.send(encode("result", bundle=BUNDLE_NAME, digest=digest))


def _export(request: ExportRequest, workspace: Path, channel: _Channel) -> str:
    exporter = get_exporter(request.exporter or detect(request.source))
    channel.send(encode("progress", message=f"starting exporter '{exporter.name}'"))
    versions = exporter.versions()
    made_by = f"{versions.framework} {versions.framework_version}"
    channel.send(encode("progress", message=f"exporting {request.source} with {made_by}"))
    bundle = exporter.export(request.source, workspace / BUNDLE_NAME, request.config)
    return bundle.digest


def _unexpected(request: ExportRequest, error: Exception) -> EnvironmentFailure:
    said = (str(error).strip().splitlines() or [""])[0]
    return EnvironmentFailure(
        f"exporter '{request.exporter or 'unknown'}' failed on {request.source} in a way that it does not know: "
        f"{type(error).__name__}: {said}",
        detail=traceback.format_exc()[-4000:],
    )


class _Channel:
    """The write end of the channel; nothing but messages gets in, whatever a framework prints."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - open as long as the process lives

    def send(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def warn(self, message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
        """Hand on what concerns the user; what a framework says to its own developers goes to stderr."""
        text = " ".join(str(message).split())
        if issubclass(
            category, DeprecationWarning | PendingDeprecationWarning | FutureWarning | ImportWarning
        ):
            print(f"{category.__name__}: {text}", file=sys.stderr)  # noqa: T201
        else:
            self.send(encode("warning", message=text[:1000]))
