"""Commands on training jobs: launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paritygate.cli._output import out, print_json

if TYPE_CHECKING:
    from paritygate.train_hooks.types import Plan

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("launch")(launch)


def launch(
    job: Annotated[Path, typer.Argument(help="A job.yaml.")],
    on: Annotated[str, typer.Option(help="local | kubernetes")] = "local",
    kind: Annotated[str | None, typer.Option(help="kubernetes: job | pytorchjob | tfjob")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print commands and environment only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start a distributed training job, or write its manifests.

    Example: paritygate launch job.yaml --on local --dry-run
    """
    from paritygate.train_hooks.config import load_job
    from paritygate.train_hooks.launch.launcher import plan, run

    planned = plan(load_job(job), on, kind=kind)
    if dry_run or not planned.runnable:
        _show(planned, as_json)
        return
    result = run(planned, on_line=None if as_json else (lambda line: out().print(line, markup=False)))
    if as_json:
        print_json(result.to_json())
    if result.reason:
        typer.echo(f"error: {result.reason}", err=True)
    raise typer.Exit(result.exit_code)


def _show(planned: Plan, as_json: bool) -> None:
    """Print a plan; what its target cannot express goes to standard error, so that the text stays pipeable."""
    if as_json:
        print_json(planned.to_json())
        return
    typer.echo(planned.render().rstrip("\n"))
    for note in planned.notes:
        typer.echo(f"note: {note}", err=True)
    for field in planned.lossy:
        typer.echo(f"not expressed: {field}", err=True)
