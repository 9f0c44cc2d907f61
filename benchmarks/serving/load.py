"""Load by `wrk`: requests a second, the 99th percentile, and what a server's process spent meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

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
        p99_us: 99th percentile of their durations, in microseconds.
        cpu_us: CPU time of the server a request, in microseconds.
    """

    per_second: float
    p99_us: float
    cpu_us: float


def available() -> bool:
    """Whether `wrk` is installed."""
    return shutil.which("wrk") is not None


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
    number, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", said).groups()  # type: ignore[union-attr]
    return Load(
        float(_found(r"Requests/sec:\s+([\d.]+)", said)), float(number) * _UNITS[unit], 1e6 * spent / count
    )


def _found(pattern: str, said: str) -> str:
    match = re.search(pattern, said)
    if match is None:
        raise RuntimeError(f"wrk did not say {pattern!r}: {said}")
    return match[1]


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process with its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
