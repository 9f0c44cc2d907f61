"""Commands on framework environments: env list, sync, remove, doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paritygate.cli._output import out, print_json
from paritygate.cli._progress import BuildDisplay, BusyDisplay

if TYPE_CHECKING:
    from paritygate.converter.environments.conflicts import Conflict
    from paritygate.converter.environments.doctor import Finding
    from paritygate.converter.environments.manager import EnvironmentStatus

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]
Framework = Annotated[
    str | None, typer.Argument(help="pytorch, tensorflow, jax, trees, ... or one of their exporters.")
]
AllFlag = Annotated[bool, typer.Option("--all", help="Every environment.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="Isolated environments that hold one training framework each.", no_args_is_help=True
    )
    group.command("list")(list_)
    group.command("sync")(sync)
    group.command("remove")(remove)
    group.command("doctor")(doctor)
    app.add_typer(group, name="env")


def list_(as_json: JsonFlag = False) -> None:
    """Show the frameworks that can be isolated, and which environments are built."""
    from paritygate.converter.environments import list_environments

    environments = list_environments()
    if as_json:
        print_json({"environments": [_as_json(seen) for seen in environments]})
        return
    rows: list[tuple[str, ...]] = [("name", "state", "size", "python", "packages", "digest", "exports")]
    rows += [_row(seen) for seen in environments]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out().print(line.rstrip(), markup=False)


def _row(seen: EnvironmentStatus) -> tuple[str, ...]:
    size = f"{seen.size_bytes / 2**20:,.0f} MiB" if seen.size_bytes else "-"
    packages = str(seen.packages) if seen.packages else "-"
    return (
        seen.name,
        seen.state,
        size,
        seen.python or "-",
        packages,
        seen.digest,
        ", ".join(seen.exporters) or "-",
    )


def _as_json(seen: EnvironmentStatus) -> dict[str, object]:
    return {**asdict(seen), "digest": seen.digest}


def sync(framework: Framework = None, all_: AllFlag = False, as_json: JsonFlag = False) -> None:
    """Build a framework's environment from its locked requirements, if it is not there.

    Example: paritygate env sync tensorflow
    """
    from paritygate.converter.environments import sync as build

    with BuildDisplay(silent=as_json) as display:
        environments = [build(name, display.say, on_step=display.step) for name in _names(framework, all_)]
    if as_json:
        listed = [asdict(environment) for environment in environments]
        print_json({"environments": listed} if all_ else listed[0])
        return
    for environment in environments:
        out().print(f"ready  {environment.directory}", markup=False)


def remove(
    framework: Framework = None,
    all_: AllFlag = False,
    outdated: Annotated[
        bool,
        typer.Option("--outdated", help="Keep those of today's pins; without a name, of every framework."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a framework's environment.   Example: paritygate env remove tensorflow"""
    from paritygate.converter.environments import remove as delete
    from paritygate.converter.environments import remove_forgotten

    names = _names(framework, all_ or (outdated and framework is None))
    directories = [directory for name in names for directory in delete(name, outdated=outdated)]
    directories += remove_forgotten() if framework is None else []
    if as_json:
        print_json({"removed": [str(directory) for directory in directories]})
        return
    for directory in directories:
        out().print(f"removed {directory}", markup=False)
    if not directories:
        what = "outdated environment" if outdated else "environment"
        out().print(f"there was no {what}{f' of {framework}' if framework else ''}", markup=False)


def _names(framework: str | None, all_: bool) -> list[str]:
    from paritygate.cli._examples import BadArgument
    from paritygate.converter.environments import SPECS

    if (framework is None) == (not all_):
        raise BadArgument(f"name one environment or give --all; there are {', '.join(SPECS)}.")
    return list(SPECS) if framework is None else [framework]


def doctor(
    framework: Framework = None,
    requirements: Annotated[
        Path | None,
        typer.Option(help="Your requirements file: can it be installed beside the framework's pins?"),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="A job.yaml: its framework, and the requirements.txt in its workdir."),
    ] = None,
    every_file: Annotated[
        bool,
        typer.Option("--every-file", help="Read files too that were not touched since they were installed."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check this machine and its environments, or a job's requirements against a framework.

    Exit code 1 if anything is wrong.   Example: paritygate env doctor tensorflow --requirements requirements.txt
    """
    if requirements is None and job is None:
        _report_findings(framework, every_file, as_json)
    else:
        _report_conflicts(framework, requirements, job, as_json)


def _report_findings(framework: str | None, every_file: bool, as_json: bool) -> None:
    from paritygate.converter.environments.doctor import examine

    findings: list[Finding] = []
    with BusyDisplay(silent=as_json) as display:
        for finding in examine(framework, display.busy_with, every_file=every_file):
            findings.append(finding)
            display.say(f"{finding.subject:<11} {finding.state:<8} {finding.message}")
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(1)


def _report_conflicts(
    framework: str | None, requirements: Path | None, job: Path | None, as_json: bool
) -> None:
    from paritygate.cli._examples import BadArgument
    from paritygate.converter.environments.conflicts import find_conflicts
    from paritygate.converter.environments.specs import find_spec

    if job is not None:
        framework, requirements = _of_job(job, framework, requirements)
    if framework is None or requirements is None:
        raise BadArgument(
            "--requirements needs the framework that it is held against, as in: env doctor tensorflow"
        )
    spec = find_spec(framework)
    with BuildDisplay(silent=as_json) as display:
        conflicts = find_conflicts(spec, requirements, display.say)
    if as_json:
        print_json({"environment": spec.name, "conflicts": [_conflict_as_json(each) for each in conflicts]})
    else:
        _print_conflicts(spec.name, requirements, conflicts)
    if conflicts:
        raise typer.Exit(1)


def _of_job(job: Path, framework: str | None, requirements: Path | None) -> tuple[str, Path]:
    """The framework and the requirements file that a job names; what is given beside it counts more."""
    from paritygate.cli._examples import BadArgument
    from paritygate.train_hooks.config import load_job

    spec = load_job(job)
    file = requirements or Path(spec.local_path(spec.workdir)) / "requirements.txt"
    if not file.is_file():
        raise BadArgument(f"{job}: there is no {file}. Name the job's requirements with --requirements.")
    return framework or spec.environment or spec.framework, file


def _print_conflicts(environment: str, requirements: Path, conflicts: Sequence[Conflict]) -> None:
    for conflict in conflicts:
        out().print(f"conflict  {conflict}", markup=False)
    if not conflicts:
        out().print(
            f"ok        {requirements} can be installed beside environment '{environment}'", markup=False
        )


def _conflict_as_json(conflict: Conflict) -> dict[str, object]:
    return {"requirements": [asdict(each) for each in conflict.requirements], "reason": conflict.reason}
