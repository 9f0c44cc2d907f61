"""A real Envoy on loopback, with routes given as its own JSON; skips where it is not installed."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.ports import reserve_ports
from support.shared import ROOT

_TYPES = "type.googleapis.com/envoy.extensions.filters"


def envoy_binary() -> Path:
    """The Envoy of .venvs/envoy (requirements/envoy.txt), or a visible skip."""
    binary = Path(os.environ.get("PARITYGATE_ENVOY", ROOT / ".venvs" / "envoy" / "bin" / "envoy"))
    if not binary.exists():
        pytest.skip("the real Envoy is not installed (make test-real installs it; or set PARITYGATE_ENVOY)")
    return binary


@contextmanager
def running_envoy(
    virtual_hosts: Sequence[Mapping[str, Any]], folder: Path, clusters: Sequence[str] = ()
) -> Iterator[http.client.HTTPConnection]:
    """Start Envoy with these virtual hosts and give a connection to it.

    Args:
        virtual_hosts: Envoy's VirtualHost messages as JSON.
        folder: Where the configuration and the log go.
        clusters: Names of upstream clusters; each answers 200 with its own name as the body.
    """
    admin, port, *upstreams = reserve_ports(2 + len(clusters))
    listeners = [_listener("in", port, virtual_hosts)]
    listeners += [_listener(name, at, [_saying(name)]) for name, at in zip(clusters, upstreams, strict=True)]
    bootstrap = {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": listeners,
            "clusters": [_cluster(name, at) for name, at in zip(clusters, upstreams, strict=True)],
        },
    }
    config = folder / "envoy.json"
    config.write_text(json.dumps(bootstrap), encoding="utf-8")
    command = [
        str(envoy_binary()),
        "-c",
        str(config),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "warning",
    ]
    with open(folder / "envoy.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(admin, process, folder / "envoy.log")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        yield connection
        connection.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(
    connection: http.client.HTTPConnection,
    host: str,
    headers: Mapping[str, bytes] | Sequence[tuple[str, bytes]],
    *,
    method: str = "POST",
    path: str = "/v2/models/m/infer",
) -> str:
    """The body that Envoy answers; header values go out byte for byte."""
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("host", host)
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        connection.putheader(name, value)
    connection.putheader("content-length", "0")
    connection.endheaders()
    response = connection.getresponse()
    body = response.read().decode()
    assert response.status == 200, (response.status, body, headers)
    return body


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener(name: str, port: int, virtual_hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": list(virtual_hosts)},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": _address(port), "filter_chains": [chain]}


def _saying(text: str) -> dict[str, Any]:
    answer = {"status": 200, "body": {"inline_string": text}}
    return {"name": text, "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": answer}]}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _address(port)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _wait_ready(admin: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", admin, timeout=2)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    pytest.fail(f"Envoy did not get ready: {log.read_text(errors='replace')[-2000:]}")
