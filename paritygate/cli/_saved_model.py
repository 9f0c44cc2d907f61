"""The command for the SavedModel that travels with a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paritygate.cli._output import out, print_json


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("saved-model")(saved_model)


def saved_model(
    bundle_path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle directory.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The model's base path of TensorFlow Serving.")
    ],
    trust: Annotated[bool, typer.Option("--trust", help="Load a SavedModel that can run code.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Lay out the SavedModel of a bundle for TensorFlow Serving, once it answered every sealed probe again.

    Example: paritygate saved-model bundle -o models/digits
    """
    from paritygate.cli._progress import BuildDisplay
    from paritygate.converter.bundle import read_bundle
    from paritygate.converter.parity.report import shown_share
    from paritygate.converter.saved_model import lay_out

    with BuildDisplay(silent=as_json) as display:
        laid = lay_out(read_bundle(bundle_path), output, trust=trust, on_event=display.say)
    if as_json:
        print_json(
            {
                "path": str(laid.path),
                "version": laid.version,
                "signature": laid.signature,
                "figures": len(laid.figures),
                "max_abs_diff": laid.max_abs_diff,
                "share_of_allowed": laid.share,
            }
        )
        return
    differences = f"largest difference {laid.max_abs_diff:.2e}, {shown_share(laid.share)}"
    out().print(
        f"laid out  version {laid.version}, signature {laid.signature}  ({len(laid.figures)} figures agree with "
        f"the sealed answers, {differences})\n          {laid.path}",
        markup=False,
    )
