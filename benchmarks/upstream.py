"""The gateway before a real Triton, beside a real Envoy in the same place: `python -m benchmarks.upstream`.

Needs `make real-environment` and Debian's wrk. All three run side by side; rounds are interleaved.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.serving.load import Load, missing, press, write_request
from benchmarks.serving.models import SHAPES, write_repository

ROOT = Path(__file__).parents[1]
ROUNDS, SECONDS = 7, 3
CONNECTIONS = (2, 8)
CASES = ("mlp", "conv", "echo")

sys.path.insert(0, str(ROOT / "tests"))


@contextmanager
def _envoy(upstream: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Envoy with one route to one cluster; gives its port and process id."""
    from support.envoy import envoy_binary
    from support.ports import reserve_ports

    admin, port = reserve_ports(2)
    host, _, to = upstream.rpartition(":")
    kind = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "triton"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{kind}.http.router.v3.Router"},
            }
        ],
    }
    network = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    endpoint = {"endpoint": {"address": _address(host, int(to))}}
    document = {
        "admin": {"address": _address("127.0.0.1", admin)},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": _address("127.0.0.1", port),
                    "filter_chains": [{"filters": network}],
                }
            ],
            "clusters": [
                {
                    "name": "triton",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": {
                        "cluster_name": "triton",
                        "endpoints": [{"lb_endpoints": [endpoint]}],
                    },
                }
            ],
        },
    }
    config = folder / "envoy.json"
    config.write_text(json.dumps(document))
    command = [str(envoy_binary()), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
    with (folder / "envoy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        time.sleep(2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)


def _address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


@contextmanager
def _gateway(upstream: str, repository: Path, folder: Path) -> Iterator[tuple[int, int]]:
    file, ready = folder / "upstreams.yaml", folder / "ready.json"
    file.write_text(
        "schema: paritygate.upstreams/v1\n"
        f"upstreams: {{triton: {{url: 'http://{upstream}'}}}}\nmodels: {{'*': {{'*': [triton]}}}}\n"
    )
    ports = [part for port in ("http", "grpc", "metrics", "admin") for part in (f"--{port}-port", "0")]
    command = [sys.executable, "-m", "paritygate", "serve", "--repo", str(repository), *ports]
    command += ["--upstreams", str(file), "--ready-file", str(ready)]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((folder / "gateway.log").read_text()[-2000:])
            time.sleep(0.05)
        yield json.loads(ready.read_text())["http"], process.pid
    finally:
        process.terminate()
        process.wait(40)


def main() -> None:
    """Run all cases and print a line for each."""
    if missing():
        sys.exit(f"{' and '.join(missing())} not installed; Debian's packages are wrk and nghttp2-client.")
    from support.triton import running_triton

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as running:
        folder = Path(scratch)
        write_repository(folder / "models")
        triton = running.enter_context(running_triton(folder / "models", folder / "triton"))
        for model in CASES:
            triton.wait_ready(model, [1])
        direct = (int(triton.http.rpartition(":")[2]), triton.process.pid)
        envoy = running.enter_context(_envoy(triton.http, folder))
        gateway = running.enter_context(_gateway(triton.http, folder / "models", folder))
        print(f"{os.cpu_count()} cores; {ROUNDS} rounds of {SECONDS} s, medians")
        print(
            "case        direct/s   envoy/s gateway/s  gateway:envoy (range)    p50 ms direct, envoy, gateway"
        )
        for model in CASES:
            asked = write_request(folder, model, SHAPES[model], binary=True)
            for connections in CONNECTIONS:
                rounds = [
                    [
                        press(port, model, asked, connections=connections, seconds=SECONDS, pid=pid)
                        for port, pid in (direct, envoy, gateway)
                    ]
                    for _ in range(ROUNDS + 1)
                ][1:]
                print(_line(f"{model}-{connections}", rounds), flush=True)


def _line(name: str, rounds: list[list[Load]]) -> str:
    ratios = sorted(ours.per_second / theirs.per_second for _, theirs, ours in rounds)
    rates, halves = (
        [statistics.median(read(each[k]) for each in rounds) for k in range(3)]
        for read in (lambda load: load.per_second, lambda load: load.p50_us / 1000)
    )
    return (
        f"{name:<10}{rates[0]:>10,.0f}{rates[1]:>10,.0f}{rates[2]:>10,.0f}"
        f"  {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        f"       {halves[0]:.2f}, {halves[1]:.2f}, {halves[2]:.2f}"
    )


if __name__ == "__main__":
    main()
