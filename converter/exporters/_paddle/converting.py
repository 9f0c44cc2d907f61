"""The child: calls paddle2onnx, whose errors end the process that it runs in.

Run as a script by `process.py`, with nothing of ours imported: its argument is the file of paddle2onnx's extension
module, which it loads at once. Then it waits for its orders, a line of JSON: the program, its parameters (or an
empty text), the opset, and the ONNX file to write. Only the extension is loaded: paddle2onnx's Python part would
fold constants with polygraphy, which runs pip.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path

_UNBUFFERED = 2
"""_IONBF of stdio.h: what is said before an abort must not be lost in a buffer."""


def main(extension: str) -> None:
    """Convert one program, or none if the orders do not come."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _UNBUFFERED, 0)
    spec = importlib.util.spec_from_file_location("paddle2onnx_cpp2py_export", extension)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    line = sys.stdin.readline()
    if not line:
        return
    program, parameters, opset, target = json.loads(line)
    upgrade_opset, verbose, check, experimental, optimize, half = False, True, False, True, True, False
    written = module.export(
        program, parameters, int(opset), upgrade_opset, verbose, check, experimental, optimize, {},
        "onnxruntime", "", "", half,
    )  # fmt: skip
    Path(target).write_bytes(written)


if __name__ == "__main__":
    main(sys.argv[1])
