"""Load by `wrk` (HTTP) and `h2load` (gRPC): requests a second, their durations, and CPU time of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import orjson
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/octet-stream"
{header}
"""
_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Load:
    """What one round of load came to.

    Attributes:
        per_second: Requests answered with 200, a second.
        p99_us: 99th percentile of their durations, in microseconds; over gRPC the longest: h2load tells no other.
        cpu_us: CPU time of the server a request, in microseconds.
        p50_us: Median of their durations, in microseconds; 0 over gRPC.
    """

    per_second: float
    p99_us: float
    cpu_us: float
    p50_us: float = 0.0


def missing() -> list[str]:
    """What is to be installed first."""
    return [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]


def write_request(folder: Path, name: str, shape: tuple[int, ...], *, binary: bool) -> Path:
    """A request for a model as a script of wrk; gives its path."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    given: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": list(shape)}
    if binary:
        given["parameters"] = {"binary_data_size": x.nbytes}
        head = orjson.dumps({"inputs": [given], "parameters": {"binary_data_output": True}})
        body = head + x.tobytes()
        header = f'wrk.headers["Inference-Header-Content-Length"] = "{len(head)}"'
    else:
        given["data"] = [round(float(v), 5) for v in x.ravel()]
        body, header = orjson.dumps({"inputs": [given]}), 'wrk.headers["Content-Type"] = "application/json"'
    kind = "binary" if binary else "json"
    (folder / f"{name}-{kind}.bin").write_bytes(body)
    script = folder / f"{name}-{kind}.lua"
    script.write_text(_SCRIPT.format(body=folder / f"{name}-{kind}.bin", header=header))
    return script


def write_grpc_request(folder: Path, name: str, shape: tuple[int, ...]) -> Path:
    """A ModelInfer request as it goes in an HTTP/2 stream: a flag, four bytes of length, the message."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    request = pb.ModelInferRequest(model_name=name, raw_input_contents=[x.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    message = request.SerializeToString()
    path = folder / f"{name}-grpc.bin"
    path.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    return path


def press_grpc(port: int, body: Path, *, connections: int, seconds: float, pid: int) -> Load:
    """Ask one model over so many connections with one call at a time on each, for a time.

    Raises:
        RuntimeError: If a call failed. h2load sees the HTTP status alone, so one answer is looked at first.
    """
    _check_grpc(port, body)
    before = _cpu_seconds(pid)
    said = subprocess.run(
        ["h2load", "-t1", f"-c{connections}", "-m1", f"-D{seconds}", "--warm-up-time=0", "-d", body,
         "-H", "content-type: application/grpc", "-H", "te: trailers",
         f"http://127.0.0.1:{port}/inference.GRPCInferenceService/ModelInfer"],
        capture_output=True, text=True, check=True, timeout=seconds + 30,
    ).stdout  # fmt: skip
    spent = _cpu_seconds(pid) - before
    done, failed = (int(_found(rf"requests:.* (\d+) {word}", said)) for word in ("succeeded", "failed"))
    if failed:
        raise RuntimeError(f"h2load saw errors: {said}")
    longest, unit = re.search(r"time for request:\s+\S+\s+([\d.]+)(us|ms|s)", said).groups()  # type: ignore[union-attr]
    return Load(done / seconds, float(longest) * _UNITS[unit], 1e6 * spent / done)


def _check_grpc(port: int, body: Path) -> None:
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=limits) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(pb.ModelInferRequest.FromString(body.read_bytes()[5:]), timeout=30)
    if not answer.raw_output_contents:
        raise RuntimeError(f"the server on port {port} gave no tensor")


def press(port: int, name: str, script: Path, *, connections: int, seconds: float, pid: int) -> Load:
    """Ask one model over so many connections, for a time.

    Raises:
        RuntimeError: If an answer was another than 200.
    """
    before = _cpu_seconds(pid)
    said = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", script,
         f"http://127.0.0.1:{port}/v2/models/{name}/infer"],
        capture_output=True, text=True, check=True, timeout=seconds + 30,
    ).stdout  # fmt: skip
    if "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"wrk saw errors: {said}")
    spent = _cpu_seconds(pid) - before
    count = int(_found(r"(\d+) requests in", said))
    return Load(
        float(_found(r"Requests/sec:\s+([\d.]+)", said)),
        _percentile("99", said),
        1e6 * spent / count,
        _percentile("50", said),
    )


def _percentile(percent: str, said: str) -> float:
    number, unit = re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)", said).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def _found(pattern: str, said: str) -> str:
    match = re.search(pattern, said)
    if match is None:
        raise RuntimeError(f"wrk did not say {pattern!r}: {said}")
    return match[1]


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process with its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
