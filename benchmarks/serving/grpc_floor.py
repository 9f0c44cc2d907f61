"""The gRPC floor: a bare grpc.aio server that unpacks a message and calls onnxruntime, and does nothing else.

`python -m benchmarks.serving.grpc_floor READY_FILE [--threads N] NAME=MODEL.onnx...` serves until SIGTERM.
It routes, checks, counts and limits nothing. Without threads the model runs on the event loop.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import uvloop
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc


class Floor(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers ModelInfer for models with one input `x` and one output `y`."""

    def __init__(self, models: dict[str, Path], threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = {
            name: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for name, path in models.items()
        }
        self._pool = ThreadPoolExecutor(threads) if threads else None

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(request.inputs[0].shape)
        run = self._sessions[request.model_name].run
        if self._pool is None:
            (y,) = run(None, {"x": x})
        else:
            (y,) = await asyncio.get_running_loop().run_in_executor(self._pool, run, None, {"x": x})
        answer = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
        answer.outputs.add(name="y", datatype="FP32", shape=y.shape)
        answer.raw_output_contents.append(y.tobytes())
        return answer


async def serve(ready: Path, threads: int, models: dict[str, Path]) -> None:
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=limits)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Floor(models, threads), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready.write_text(json.dumps({"grpc": port}))
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    await server.stop(1)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments.pop(2)) if arguments[1] == "--threads" else 0
    given = [part for part in arguments[1:] if part != "--threads"]
    uvloop.run(
        serve(
            Path(arguments[0]),
            count,
            {name: Path(path) for name, _, path in (part.partition("=") for part in given)},
        )
    )
