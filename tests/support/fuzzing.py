"""Damaged files of every form, exported one after another by a worker in the form's environment: this, run.

The worker writes one JSON object a line to a descriptor: before a file is opened, that it will be; then how it
ended. What it does not say itself (a native crash, a limit on memory or time) is told by its end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.environments import SPECS, sync
from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import export_model
from support.exporter_cases import cases_of
from support.spoiling import spoil

SAMPLES: dict[Form, tuple[tuple[str, str], ...]] = {
    Form.TORCH_CHECKPOINT: (("pytorch", "training_checkpoint.pt"), ("pytorch", "stream_of_old_torch.pth")),
    Form.TORCHSCRIPT: (("pytorch", "script.pt"),),
    Form.TORCH_PROGRAM: (("pytorch", "program.pt2"),),
    Form.SAFETENSORS: (("pytorch", "state_dict.safetensors"), ("mindspore", "safetensors")),
    Form.KERAS_ARCHIVE: (("keras", "archive"),),
    Form.HDF5: (("keras", "hdf5"), ("keras", "weights_of_keras_2")),
    Form.SAVED_MODEL: (("tensorflow", "saved_model"), ("tensorflow", "saved_by_tf_1")),
    Form.FROZEN_GRAPH: (("tensorflow", "frozen"),),
    Form.TF_CHECKPOINT: (("tensorflow", "checkpoint"), ("keras", "checkpoint")),
    Form.ORBAX: (("jax", "orbax"), ("jax", "orbax_in_files")),
    Form.FLAX_MSGPACK: (("jax", "msgpack"),),
    Form.MINDSPORE_CHECKPOINT: (("mindspore", "checkpoint"),),
    Form.MINDIR: (("mindspore", "mindir"), ("mindspore", "mindir_in_parts")),
    Form.PICKLE: (("sklearn", "joblib"), ("sklearn", "compressed-joblib")),
    Form.XGBOOST_JSON: (("xgboost", "booster-json"), ("xgboost", "estimator-json"), ("xgboost", "linear-json")),
    Form.XGBOOST_UBJ: (("xgboost", "booster-ubj"), ("xgboost", "estimator-ubj")),
    Form.LIGHTGBM_TEXT: (("lightgbm", "text"), ("lightgbm", "text-with-categories")),
    Form.PADDLE_PROGRAM: (("paddle", "program"),),
    Form.PADDLE_PARAMETERS: (("paddle", "weights-and-factory"),),
    Form.PMML: (("pmml", "document"),),
    Form.ONNX: (("onnx", "weights-beside"), ("onnx", "function-and-loop"), ("onnx", "onnx-ml-trees")),
}  # fmt: skip
"""A form -> the conformance cases (exporter, name in `files`) that write small files of it."""

NOT_SAMPLED = {Form.HUGGING_FACE: "a folder of safetensors and JSON, whose weights are fuzzed as such"}
"""Forms that have no small sample, and why."""

ROOT = Path(__file__).resolve().parents[2]

SECONDS = 60
"""How long one damaged file may take; a whole one takes a few seconds."""

START_SECONDS = 300
"""How long a worker may take to import its framework and to export the file as it was."""

BYTES = 3 * 2**30
"""How much more memory may be mapped than after the export of the file as it was."""


@dataclass(frozen=True)
class Task:
    """What a worker does: files number `first` to `last` of a case, each damaged by its own seed."""

    exporter: str
    case: str
    seed: int
    first: int
    last: int
    kept: str
    descriptor: int


@dataclass(frozen=True)
class Fault:
    """A damaged file that was not refused in one line.

    Attributes:
        file: A copy of what was given to the exporter.
        said: What the exporter, or the end of its process, said.
    """

    file: Path
    said: str


def faults_of(
    exporter: str, case: str, *, seed: int, files: int, seconds: float, folder: Path
) -> list[Fault]:
    """Export damaged copies of a case's file, for a time and a number at most; what ended badly is kept.

    A worker that dies is one fault, and another goes on after the file that it died of. A framework that always
    runs in a process of its own may crash there: the process that started it says so in one line
    (`tests/converter/environments`), and so does one that hangs, but not before its time is up.
    """
    faults: list[Fault] = []
    spec = SPECS.get(cases_of(exporter).environment or "")
    apart = spec is not None and spec.always_isolated
    (folder / "kept").mkdir(parents=True)
    first = 0
    while first < files and seconds > 0:
        work = _work(exporter, case, seed, (first, files), seconds, folder)
        assert work.opened is not None, f"the worker could not start: {work.log}"
        faults += [
            Fault(folder / "kept" / str(a["number"]), a["said"])
            for a in work.answers
            if a["ended"] == "badly"
        ]
        if work.stopped or work.opened == (work.answers[-1]["number"] if work.answers else None):
            break
        if not (apart and work.crashed):
            faults.append(Fault(folder / "kept" / str(work.opened), f"its process died: {work.log}"))
        first, seconds = work.opened + 1, seconds - work.seconds
    return faults


@dataclass
class _Work:
    """What a worker did: the file that it opened last, its answers, and how it ended."""

    opened: int | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: bool = False
    crashed: bool = False
    log: str = ""


def _work(
    exporter: str, case: str, seed: int, numbers: tuple[int, int], seconds: float, folder: Path
) -> _Work:
    """One worker to its end, or for so many seconds after it has opened its first file."""
    work, began = _Work(), 0.0
    reading, writing = os.pipe()
    task = Task(exporter, case, seed, *numbers, kept=str(folder / "kept"), descriptor=writing)
    python, variables = _interpreter(exporter, folder)
    with (folder / "log").open("wb") as log, subprocess.Popen(
        [python, "-m", "support.fuzzing", json.dumps(asdict(task))],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(writing,), cwd=folder, env=variables,
    ) as worker:  # fmt: skip
        os.close(writing)
        timer = threading.Timer(START_SECONDS, worker.kill)
        timer.start()
        with open(reading, encoding="utf-8") as lines:
            for line in lines:
                said = json.loads(line)
                if work.opened is None:
                    timer.cancel()
                    began, timer = time.monotonic(), threading.Timer(seconds, worker.kill)
                    timer.start()
                work.opened = said["number"]
                if "ended" in said:
                    work.answers.append(said)
        work.crashed = worker.wait() < 0
        timer.cancel()
    work.seconds = time.monotonic() - began
    work.stopped = work.seconds >= seconds
    work.log = (folder / "log").read_text("utf-8", "replace")[-2000:]
    return work


def _interpreter(exporter: str, folder: Path) -> tuple[str, dict[str, str]]:
    name = cases_of(exporter).environment
    places = folder / "path"
    places.mkdir(exist_ok=True)
    for place in (ROOT / "paritygate", ROOT / "tests" / "support"):
        if not (places / place.name).is_symlink():
            (places / place.name).symlink_to(place)
    python = sys.executable if name is None else str(sync(name).python)
    own = {} if name is None else SPECS[name].variables
    return python, {
        **os.environ, **own, "PYTHONPATH": str(places), "KERAS_HOME": str(folder / "keras"),
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip


def main(task: Task) -> None:
    """Export the damaged files; those that are not refused in words of ours are kept."""
    os.set_inheritable(task.descriptor, False)
    warnings.simplefilter("ignore")
    with open(task.descriptor, "w", encoding="utf-8") as answers, tempfile.TemporaryDirectory() as scratch:
        origin = Path(scratch) / "origin"
        origin.mkdir()
        source, options = cases_of(task.exporter).files[task.case](origin)
        options = {"framework": task.exporter, **options, "trust": False}
        form = look_at(Path(source))
        with contextlib.suppress(ConverterError):
            export_model(source, Path(scratch) / "warm", name="net", **options)
        _limit_memory()
        for number in range(task.first, task.last):
            print(json.dumps({"number": number}), file=answers, flush=True)
            answer = _one(Path(source), origin, Path(scratch), options, form, task, number)
            print(json.dumps({"number": number, **answer}), file=answers, flush=True)


def _one(
    source: Path,
    origin: Path,
    scratch: Path,
    options: dict[str, Any],
    form: Form | None,
    task: Task,
    number: int,
) -> dict[str, Any]:
    assert form is not None
    folder = scratch / f"spoilt{number}"
    shutil.copytree(origin, folder, symlinks=True)
    own = folder / source.relative_to(origin)
    spoil(own, form, np.random.default_rng([task.seed, number]))
    kept = Path(task.kept) / str(number)
    shutil.copytree(folder, kept, symlinks=True)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    answer = _ended(str(own), folder.with_suffix(".bundle"), options)
    faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(folder)
    shutil.rmtree(folder.with_suffix(".bundle"), ignore_errors=True)
    if answer["ended"] != "badly":
        shutil.rmtree(kept)
    return answer


def _ended(source: str, bundle: Path, options: dict[str, Any]) -> dict[str, Any]:
    try:
        export_model(source, bundle, name="net", **options)
    except ConverterError as error:
        said = str(error)
        one_line = said.replace("\n", " ").isprintable() and len(said) < 3000
        return {"ended": "refused" if one_line else "badly", "said": f"{type(error).__name__}: {said}"}
    except BaseException as error:
        return {
            "ended": "badly",
            "said": f"{type(error).__name__}: {error}\n{traceback.format_exc()[-2500:]}",
        }
    return {"ended": "exported", "said": ""}


def _limit_memory() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES, mapped + BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
