"""Commands on training jobs: launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paritygate.cli._output import out, print_json

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

    planned = plan(load_job(job), on=on, kind=kind)
    if dry_run or not planned.runnable:
        if as_json:
            print_json(planned.to_json())
        else:
            typer.echo(planned.render(), nl=False)
        for field in planned.lossy:
            typer.echo(f"warning: {on} cannot express {field}", err=True)
        return
    outcome = run(planned, on_line=None if as_json else (lambda line: out().print(line, markup=False)))
    if as_json:
        print_json(outcome.to_json())
    elif outcome.reason:
        typer.echo(f"error: {outcome.reason}", err=True)
    raise typer.Exit(outcome.exit_code)
