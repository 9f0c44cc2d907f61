"""Export conformance cases; as a program, a worker inside a framework environment that exports one after another.

The worker reads one JSON object a line from standard input and answers one on a descriptor of its own, so that
nothing a framework prints can be taken for an answer: `{"digest": ...}`, or `{"error": class, "said": text}`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import export_model
from support.exporter_cases import cases_of
from support.weight_changes import change_weights


@dataclass(frozen=True)
class Job:
    """One case to export.

    Attributes:
        exporter: An entry of the registry.
        group: A field of `ExporterCases`, or `hook` to ask the training hook of the exporter's `guarded` model.
        case: A name in that field; empty for `demoted` and `guarded`.
        directory: The bundle to write; the folder `<directory>.files` is for what the case itself writes.
        change: Whether the weights are changed after conversion.
        trust: Whether the source is trusted.
    """

    exporter: str
    group: str
    case: str
    directory: str
    change: bool = False
    trust: bool = False

    @property
    def canary(self) -> Path:
        """What the code of a planted file makes, once it runs."""
        return Path(f"{self.directory}.canary")


def export_case(job: Job) -> Bundle:
    """Export a case in this process."""
    model, options = _build(job)
    if job.change:
        options = {**options, "after_conversion": change_weights}
    if job.trust:
        options = {**options, "trust": True}
    return export_model(
        model, Path(job.directory), name=job.case or job.group, **{"framework": job.exporter, **options}
    )


def _build(job: Job) -> tuple[Any, dict[str, Any]]:
    cases = getattr(cases_of(job.exporter), job.group)
    chosen = cases[job.case] if job.case else cases
    if job.group in ("ranks", "demoted", "guarded", "trained"):
        model, options = chosen()
        return model, dict(options)
    folder = Path(f"{job.directory}.files")
    folder.mkdir()
    if job.group == "planted":
        model, options = chosen(folder, job.canary)
    else:
        model, options = (chosen.build if job.group == "refused" else chosen)(folder)
    return model, dict(options)


def ask_hook(job: Job) -> dict[str, Any]:
    """Which hook takes a model of the exporter, and what it says of it."""
    from paritygate.train_hooks.hooks import HOOKS, find_hook

    model, _ = cases_of(job.exporter).guarded()
    hook = find_hook(model)
    owners = [name for name, target in HOOKS.items() if resolve_name(target)().owns(model)]
    return {
        "framework": hook.framework,
        "owners": owners,
        "first": hook.rank().is_first,
        "same": hook.unwrap(model) is model,
    }


def _answer(line: str) -> dict[str, Any]:
    job = Job(**json.loads(line))
    try:
        return ask_hook(job) if job.group == "hook" else {"digest": export_case(job).digest}
    except (ConverterError, ValueError) as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": kinds, "said": str(error)}
    except BaseException as error:
        traceback.print_exc()
        return {"error": [type(error).__name__], "said": f"{error}\n{traceback.format_exc()[-3000:]}"}


def main(descriptor: int) -> None:
    """Answer jobs until standard input ends."""
    os.set_inheritable(descriptor, False)
    with open(descriptor, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            print(json.dumps(_answer(line)), file=answers, flush=True)


def encode(job: Job) -> str:
    """One line for the worker."""
    return json.dumps(asdict(job)) + "\n"


if __name__ == "__main__":
    main(int(sys.argv[1]))
