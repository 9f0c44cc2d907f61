"""Interleaved rounds of the gateway and its floor; medians with the smallest and largest ratio of a round."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from json import loads
from pathlib import Path

from benchmarks.serving.load import Load, missing, press, press_grpc, write_grpc_request, write_request
from benchmarks.serving.models import SHAPES, write_repository

ROUNDS, SECONDS = 7, 2


@dataclass(frozen=True)
class Case:
    """One figure: which model, in which form, over how many connections, against which floor."""

    name: str
    model: str
    binary: bool
    connections: int
    pooled: bool = False
    grpc: bool = False


CASES = (
    Case("mlp-binary-8", "mlp", True, 8),
    Case("mlp-binary-32", "mlp", True, 32),
    Case("mlp-json-8", "mlp", False, 8),
    Case("conv-binary-8", "conv", True, 8, pooled=True),
    Case("echo-binary-8", "echo", True, 8),
    Case("mlp-grpc-8", "mlp", True, 8, grpc=True),
    Case("conv-grpc-8", "conv", True, 8, pooled=True, grpc=True),
    Case("echo-grpc-8", "echo", True, 8, pooled=True, grpc=True),
)


@dataclass(frozen=True)
class Server:
    ports: dict[str, int]
    pid: int


@contextmanager
def _started(command: list[str], ready: Path, log: Path) -> Iterator[Server]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=sink, stderr=sink, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() or not ready.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        time.sleep(0.5)
        yield Server(loads(ready.read_text()), process.pid)
    finally:
        process.terminate()
        process.wait(40)


def main(chosen: list[str]) -> None:
    if missing():
        sys.exit(f"{' and '.join(missing())} not installed; Debian's packages are wrk and nghttp2-client.")
    unknown = set(chosen) - {case.name for case in CASES}
    if unknown:
        sys.exit(f"there is no case {min(unknown)}; there are {', '.join(case.name for case in CASES)}.")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as running:
        folder = Path(scratch)
        files = write_repository(folder / "models")
        given = [f"{name}={path}" for name, path in files.items()]
        (folder / "rollouts").mkdir()

        def server(name: str, *command: str) -> Server:
            ready = folder / f"{name}.json"
            return running.enter_context(_started(list(command), ready, folder / f"{name}.log"))

        ports = [part for port in ("http", "grpc", "metrics", "admin") for part in (f"--{port}-port", "0")]
        store = ["--repo", str(folder / "models"), "--rollouts", str(folder / "rollouts")]
        ready = ["--ready-file", str(folder / "gateway.json")]
        gateway = server("gateway", "paritygate", "serve", *store, *ready, *ports)
        floors = {
            (grpc, pooled): server(
                f"{module}-{pooled}",
                f"benchmarks.serving.{module}",
                str(folder / f"{module}-{pooled}.json"),
                *(("--threads", "2") if pooled else ()),
                *given,
            )
            for grpc, module in ((False, "floor"), (True, "grpc_floor"))
            for pooled in (False, True)
        }
        print(
            f"{'case':<16}{'gateway/s':>11}{'floor/s':>11}  ratio (range)       p99 ratio   CPU us a request"
        )
        for case in CASES:
            if not chosen or case.name in chosen:
                floor = floors[case.grpc, case.pooled]
                asked = _written(folder, case)
                rounds = [[_asked(s, case, asked) for s in (gateway, floor)] for _ in range(ROUNDS + 1)][1:]
                print(_line(case, rounds), flush=True)


def _written(folder: Path, case: Case) -> Path:
    if case.grpc:
        return write_grpc_request(folder, case.model, SHAPES[case.model])
    return write_request(folder, case.model, SHAPES[case.model], binary=case.binary)


def _asked(server: Server, case: Case, asked: Path) -> Load:
    if case.grpc:
        return press_grpc(
            server.ports["grpc"], asked, connections=case.connections, seconds=SECONDS, pid=server.pid
        )
    return press(
        server.ports["http"], case.model, asked, connections=case.connections, seconds=SECONDS, pid=server.pid
    )


def _line(case: Case, rounds: list[list[Load]]) -> str:
    ratios = sorted(ours.per_second / floor.per_second for ours, floor in rounds)
    middle = statistics.median
    ours, floor = ([pair[k] for pair in rounds] for k in (0, 1))
    return (
        f"{case.name:<16}{middle(o.per_second for o in ours):>11,.0f}{middle(f.per_second for f in floor):>11,.0f}"
        f"  {middle(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        f"  {middle(o.p99_us / f.p99_us for o, f in rounds):>9.2f}"
        f"     {middle(o.cpu_us for o in ours):,.0f} / {middle(f.cpu_us for f in floor):,.0f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
