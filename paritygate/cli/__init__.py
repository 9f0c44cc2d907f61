"""The command line: one noun group a module, verbs under it; a command parses, calls the library and prints.

Exit code 0 only on success. Every error is one line on standard error that says what was given, what was
expected and what to do; with `--json` it is one object on standard output as well. PARITYGATE_DEBUG=1 shows
tracebacks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from paritygate import __version__
from paritygate.cli import _deploy, _environments, _models, _quickstart, _rollouts, _saved_model, _training
from paritygate.cli._output import UsageError, report_error

_HELP = "A model trained in any framework reaches production only with proof that its ONNX computes the same."


def build_app() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback(help=_HELP)(_options)
    for module in (_quickstart, _models, _saved_model, _deploy, _rollouts, _training, _environments):
        module.register(app)
    return app


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=lambda given: _say_version() if given else None),
    ] = False,
) -> None:
    pass


def _say_version() -> None:
    typer.echo(f"paritygate {__version__}")
    raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code.

    Args:
        arguments: What follows the program's name; None takes it from the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(build_app())
    try:
        code = command.main(given, prog_name="paritygate", standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a bare noun: its help is the answer
            error.show()
        else:
            report_error(error, as_json="--json" in given)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        report_error(KeyboardInterrupt("interrupted; nothing more was done"), as_json="--json" in given)
        raise SystemExit(130) from None
    except Exception as error:  # noqa: BLE001  the one edge where any error becomes one line
        report_error(error, as_json="--json" in given)
        raise SystemExit(1) from None
    raise SystemExit(code if isinstance(code, int) else 0)
