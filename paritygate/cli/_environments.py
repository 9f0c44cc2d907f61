"""Commands on framework environments: env list, sync, remove."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from paritygate.cli._output import out, print_json

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]
Framework = Annotated[str, typer.Argument(help="tensorflow, trees, ...")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="Isolated environments that hold one training framework each.", no_args_is_help=True
    )
    group.command("list")(list_)
    group.command("sync")(sync)
    group.command("remove")(remove)
    app.add_typer(group, name="env")


def list_(as_json: JsonFlag = False) -> None:
    """Show the frameworks that can be isolated, and which environments are built."""
    from paritygate.converter.environments import list_environments

    environments = list_environments()
    if as_json:
        print_json({"environments": [asdict(environment) for environment in environments]})
        return
    for seen in environments:
        size = f"{seen.size_bytes / 2**20:,.0f} MiB" if seen.size_bytes else ""
        out().print(f"{seen.name:<12} {seen.state:<9} {size:>10}  {seen.directory}", markup=False)


def sync(framework: Framework, as_json: JsonFlag = False) -> None:
    """Build a framework's environment from its pinned requirements, if it is not there.

    Example: paritygate env sync tensorflow
    """
    from paritygate.converter.environments import sync as build

    def show(event: Any) -> None:
        if not as_json:
            out().print(f"  {event}", markup=False)

    environment = build(framework, progress=show)
    if as_json:
        print_json(asdict(environment))
    else:
        out().print(f"ready  {environment.directory}", markup=False)


def remove(framework: Framework, as_json: JsonFlag = False) -> None:
    """Delete a framework's environment.   Example: paritygate env remove tensorflow"""
    from paritygate.converter.environments import remove as delete

    directories = delete(framework)
    if as_json:
        print_json({"removed": [str(directory) for directory in directories]})
        return
    for directory in directories:
        out().print(f"removed {directory}", markup=False)
    if not directories:
        out().print(f"there was no environment of {framework}", markup=False)
