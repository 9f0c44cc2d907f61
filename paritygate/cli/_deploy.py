"""The command that runs for long: serve. Every setting of the gateway is a flag of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_LIMITS = "Limits"
_TIMING = "Timing"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("serve")(serve)


def _limit(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, rich_help_panel=_LIMITS)
    return option


def _timing(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, rich_help_panel=_TIMING)
    return option


def serve(
    repository: Annotated[Path, typer.Option("--repo", help="The model repository.")],
    rollouts_dir: Annotated[
        Path | None, typer.Option("--rollouts", "--rollouts-dir", help="Where the state of rollouts is kept.")
    ] = None,
    upstreams_file: Annotated[
        Path | None,
        typer.Option(
            "--upstreams", "--upstreams-file", help="Which versions other servers compute, as YAML."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address of the inference and metrics ports; there is no authentication here.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8002,
    admin_port: Annotated[int, typer.Option(help="Always on loopback. 0 takes a free port.")] = 8003,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written once ready, with the real ports as JSON.")
    ] = None,
    allow_unproven: Annotated[
        bool,
        typer.Option("--allow-unproven", help="Serve versions without a certificate; every answer says so."),
    ] = False,
    default_version: Annotated[
        str,
        typer.Option(help="routed: a new version gets traffic from a rollout only. latest: as Triton."),
    ] = "routed",
    model_control_mode: Annotated[
        str, typer.Option(help="none, or explicit: load and unload are open on the inference ports too.")
    ] = "none",
    load_model: Annotated[
        list[str] | None, typer.Option(help="In mode explicit: a model to load at start; * loads all.")
    ] = None,
    reserved_headers: Annotated[
        str, typer.Option(help="refuse or strip: what happens to x-pg-* headers of a client.")
    ] = "refuse",
    error_style: Annotated[
        str, typer.Option(help="triton or kserve: whose codes are given where the two differ.")
    ] = "triton",
    shared_memory: Annotated[
        list[str] | None,
        typer.Option(help="Clients may register shared memory objects whose key begins so; default: none."),
    ] = None,
    trace_file: Annotated[
        Path | None, typer.Option(help="Where sampled requests are traced once trace settings ask for it.")
    ] = None,
    server_timing: Annotated[
        bool, typer.Option("--server-timing", help="Have answers tell how long they waited and computed.")
    ] = False,
    inference_threads: Annotated[
        int | None, typer.Option(help="Threads that run models; default: one a core.")
    ] = None,
    intra_op_threads: Annotated[
        int, typer.Option(help="Threads inside one run; 0 leaves it to onnxruntime.")
    ] = 1,
    inline_below_us: Annotated[
        float, _timing("Models seen to run shorter than this (microseconds) run without a thread; 0: none.")
    ] = 200.0,
    poll_interval_s: Annotated[float, _timing("Seconds between two looks at the repository.")] = 1.0,
    rollout_poll_interval_s: Annotated[float, _timing("Seconds between two looks at the rollouts.")] = 0.2,
    rollout_lease_s: Annotated[float, _timing("Seconds for which this worker counts as live.")] = 10.0,
    drain_delay_s: Annotated[
        float, _timing("Seconds after SIGTERM in which it still answers but is not ready.")
    ] = 0.0,
    drain_timeout_s: Annotated[float, _timing("Seconds that requests get to finish after SIGTERM.")] = 30.0,
    body_timeout_s: Annotated[float, _timing("Seconds in which head, and then body, must arrive.")] = 30.0,
    keep_alive_timeout_s: Annotated[float, _timing("Seconds an idle connection stays open.")] = 75.0,
    max_queue: Annotated[int, _limit("Requests that may wait for a thread.")] = 512,
    max_body_bytes: Annotated[int, _limit("Largest request, before and after decompression.")] = 64 << 20,
    max_inflight_bytes: Annotated[int, _limit("Largest sum of all bodies at one moment.")] = 1 << 30,
    max_response_bytes: Annotated[int, _limit("Largest sum of output bytes of one answer.")] = 1 << 30,
    max_memory_bytes: Annotated[int, _limit("Memory of this process; 0: nine tenths of the machine's.")] = 0,
    max_header_bytes: Annotated[int, _limit("Largest sum of a request's header lines.")] = 64 << 10,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Serve a model repository to stock Triton and KServe v2 clients over HTTP and gRPC.

    Example: paritygate serve --repo model_repo --rollouts rollouts
    """
    given = dict(locals())
    from paritygate.serving.app import serve as run
    from paritygate.serving.config import Settings

    given["shared_memory"] = tuple(shared_memory or ())
    given["load_models"] = tuple(given.pop("load_model") or ())
    if inference_threads is None:
        del given["inference_threads"]
    raise typer.Exit(run(Settings(**given)))
