"""pypmml, a PMML scorer that others wrote: it runs on the JVM, in an environment of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from paritygate.converter.types import Array

PACKAGES = ("pypmml==1.5.8", "py4j==0.10.9.9", "pandas==2.3.3")
Ask: TypeAlias = Callable[[Path, dict[str, list[Any]]], dict[str, list[Any]]]

_ASK = """
import json, sys, pandas
from pypmml import Model
for line in sys.stdin:
    job = json.loads(line)
    try:
        frame = Model.load(job["path"]).predict(pandas.DataFrame(job["columns"]))
        answer = {name: frame[name].astype(object).tolist() for name in frame.columns}
    except Exception as error:
        answer = {"error": [str(error)[:200]]}
    print("ANSWER" + json.dumps(answer, default=float), flush=True)
"""


@contextmanager
def started(folder: Path) -> Iterator[Ask]:
    """Install pypmml below a folder and answer questions: a file and columns, None being missing."""
    if subprocess.run(["java", "-version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Java, which pypmml runs on")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.skip(f"pypmml cannot be installed: {done.stderr.strip()[-200:]}")
    with subprocess.Popen(
        [python, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        stdin, stdout = child.stdin, child.stdout
        assert stdin
        assert stdout

        def ask(path: Path, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            stdin.write(json.dumps({"path": str(path), "columns": columns}) + "\n")
            stdin.flush()
            line = next(line for line in stdout if line.startswith("ANSWER"))
            answer: dict[str, list[Any]] = json.loads(line.removeprefix("ANSWER"))
            return answer

        try:
            yield ask
        finally:
            stdin.close()


def departures(
    ours: dict[str, Array], theirs: dict[str, list[Any]], rel_tol: float = 1e-9
) -> list[tuple[str, Any, Any]]:
    """Every answer that differs; no result is None on both sides."""
    found = []
    for name, column in ours.items():
        if column.ndim == 1:
            other = theirs.get(name) or theirs[f"predicted_{name}"]
            found += [
                (name, a, b) for a, b in zip(column.tolist(), other, strict=True) if not _agree(a, b, rel_tol)
            ]
    return found


def _agree(ours: Any, theirs: Any, rel_tol: float) -> bool:
    if _is_nothing(ours) or _is_nothing(theirs):
        return _is_nothing(ours) and _is_nothing(theirs)
    if isinstance(ours, str):
        return ours == str(theirs)
    return math.isclose(float(ours), float(theirs), rel_tol=rel_tol, abs_tol=1e-12)


def _is_nothing(value: Any) -> bool:
    """No result; pypmml hands infinities over as that too."""
    return value in (None, "", -(2**63)) or (isinstance(value, float) and not math.isfinite(value))
