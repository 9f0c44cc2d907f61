"""`python -m paritygate.serving`: the gateway without the rest of the command line, one flag for each setting."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from paritygate.serving.app import serve
from paritygate.serving.config import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the flags and serve; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paritygate.serving", description=main.__doc__)
    hints = get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        _add_flag(parser, field.name, hints[field.name])
    given = {key: value for key, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        settings = Settings(**given)
    except ValueError as error:
        sys.stderr.write(f"paritygate serve: {error}\n")
        return 1
    return serve(settings)


def _add_flag(parser: argparse.ArgumentParser, name: str, hint: Any) -> None:
    flag = "--repo" if name == "repository" else f"--{name.replace('_', '-')}"
    if hint is bool:
        parser.add_argument(flag, dest=name, action="store_const", const=True)
    elif hint == tuple[str, ...]:
        parser.add_argument(flag, dest=name, type=lambda text: tuple(text.split(",")))
    else:
        kinds: dict[Any, Any] = {int: int, float: float, Path: Path, Path | None: Path}
        parser.add_argument(flag, dest=name, type=kinds.get(hint, str), required=name == "repository")


if __name__ == "__main__":
    sys.exit(main())
