"""Commands that run something for long: serve, and the doctor that says whether it could."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("serve")(serve)


def serve(
    repo: Annotated[Path, typer.Option(help="The model repository.")],
    rollouts: Annotated[Path | None, typer.Option(help="Where the state of rollouts is kept.")] = None,
    host: Annotated[str, typer.Option(help="Address of the inference ports.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8002,
    admin_port: Annotated[int, typer.Option(help="On loopback only. 0 takes a free port.")] = 8003,
    allow_unproven: Annotated[
        bool,
        typer.Option("--allow-unproven", help="Serve versions without a certificate; every answer says so."),
    ] = False,
    default_version: Annotated[
        str, typer.Option(help="routed: a new version gets traffic from a rollout only. latest: as Triton.")
    ] = "routed",
    model_control_mode: Annotated[
        str, typer.Option(help="none | explicit: whether the inference ports may load and unload.")
    ] = "none",
    poll_interval_s: Annotated[
        float, typer.Option(help="How often the repository is looked at, seconds.")
    ] = 1.0,
    drain_timeout_s: Annotated[
        float, typer.Option(help="How long SIGTERM waits for requests, seconds.")
    ] = 30.0,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written when ready, with the real ports as JSON.")
    ] = None,
) -> None:
    """Serve a model repository to stock Triton and KServe v2 clients over HTTP and gRPC.

    Example: paritygate serve --repo model_repo --rollouts rollouts
    """
    from paritygate.serving.app import serve as run
    from paritygate.serving.config import Settings

    settings = Settings.from_options(
        repository=repo,
        rollouts_dir=rollouts,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        admin_port=admin_port,
        allow_unproven=allow_unproven,
        default_version=default_version,
        model_control_mode=model_control_mode,
        poll_interval_s=poll_interval_s,
        drain_timeout_s=drain_timeout_s,
        ready_file=ready_file,
    )
    raise typer.Exit(run(settings))
