"""The command that shows the whole of paritygate on real data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paritygate.cli._output import print_json


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("quickstart")(quickstart)


def quickstart(
    output: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("quickstart-output"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train, prove, publish, serve, split traffic, promote and roll back, on real data in under two minutes."""
    from paritygate.quickstart import run_story

    result = run_story(output, quiet=as_json)
    if as_json:
        print_json(result)
    if not result["ok"]:
        raise typer.Exit(1)
