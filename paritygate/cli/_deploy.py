"""The command that runs for long: serve."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class DefaultVersion(enum.StrEnum):
    """Who answers where no rollout decides."""

    ROUTED = "routed"
    LATEST = "latest"


class ControlMode(enum.StrEnum):
    """Whether clients may load and unload."""

    NONE = "none"
    EXPLICIT = "explicit"


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
        DefaultVersion,
        typer.Option(help="routed: a new version gets traffic from a rollout only. latest: as Triton."),
    ] = DefaultVersion.ROUTED,
    model_control_mode: Annotated[
        ControlMode, typer.Option(help="explicit opens load and unload on the inference ports.")
    ] = ControlMode.NONE,
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

    settings = Settings(
        repository=repo,
        rollouts_dir=rollouts,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        admin_port=admin_port,
        allow_unproven=allow_unproven,
        default_version=default_version.value,
        model_control_mode=model_control_mode.value,
        poll_interval_s=poll_interval_s,
        drain_timeout_s=drain_timeout_s,
        ready_file=ready_file,
    )
    raise typer.Exit(run(settings))
