"""The floor: a bare ASGI app that decodes a body and calls onnxruntime, and does nothing else that a gateway does.

`python -m benchmarks.serving.floor READY_FILE [--threads N] NAME=MODEL.onnx...` serves until SIGTERM.
It routes, checks, counts and limits nothing. Without threads the model runs on the event loop.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvicorn


class Floor:
    """Answers `POST /v2/models/<name>/infer` for models with one input `x` and one output `y`."""

    def __init__(self, models: dict[str, Path], threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = {
            name: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for name, path in models.items()
        }
        self._pool = ThreadPoolExecutor(threads) if threads else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].split("/")[3]
        headers = dict(scope["headers"])
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        length = headers.get(b"inference-header-content-length")
        if length is None:
            document = orjson.loads(body)
            given = document["inputs"][0]
            x = np.array(given["data"], np.float32).reshape(given["shape"])
        else:
            document = orjson.loads(body[: int(length)])
            x = np.frombuffer(body, np.float32, offset=int(length)).reshape(document["inputs"][0]["shape"])
        run = self._sessions[name].run
        if self._pool is None:
            (y,) = run(None, {"x": x})
        else:
            (y,) = await asyncio.get_running_loop().run_in_executor(self._pool, run, None, {"x": x})
        answer, kind = _encoded(name, y, binary=length is not None)
        await send({"type": "http.response.start", "status": 200, "headers": [
            *kind, (b"content-length", b"%d" % len(answer)),
        ]})  # fmt: skip
        await send({"type": "http.response.body", "body": answer})


def _encoded(name: str, y: np.ndarray, *, binary: bool) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": y.shape}
    if not binary:
        output["data"] = y.ravel().tolist()
        document = orjson.dumps({"model_name": name, "model_version": "1", "outputs": [output]})
        return document, [(b"content-type", b"application/json")]
    output["parameters"] = {"binary_data_size": y.nbytes}
    document = orjson.dumps({"model_name": name, "model_version": "1", "outputs": [output]})
    return document + y.tobytes(), [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", b"%d" % len(document)),
    ]


def main(ready: Path, threads: int, models: dict[str, Path]) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        Floor(models, threads),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    ready.write_text(json.dumps({"http": listener.getsockname()[1]}))
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments.pop(2)) if arguments[1] == "--threads" else 0
    given = [part for part in arguments[1:] if part != "--threads"]
    main(
        Path(arguments[0]),
        count,
        {name: Path(path) for name, _, path in (part.partition("=") for part in given)},
    )
