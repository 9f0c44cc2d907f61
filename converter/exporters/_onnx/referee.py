"""Questions to onnx's reference evaluator, which runs in a child with limits on time and memory.

A graph can ask for 2**62 trips of a loop or a tensor of terabytes without carrying any code, so nothing of a file
is computed in this process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paritygate
from paritygate.converter._tensors import decode_tensor, encode_tensor
from paritygate.converter.errors import ExportError, SourceError, UnsupportedOperator
from paritygate.converter.processes import Ended, start_supervised
from paritygate.converter.types import Array, Feeds

_BOOTSTRAP = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from paritygate.converter.exporters._onnx.answering import main
main(pathlib.Path(sys.argv[2]))
"""

_LOG_BYTES = 1 << 16

MAX_OVERRUNS = 3
"""Questions that may run out of time or memory before the export is given up."""


@dataclass(frozen=True)
class Limits:
    """What the child may take.

    Attributes:
        seconds: For one answer.
        memory_bytes: Private memory of the child.
        lifted: Whether these are the wide limits of a trusted file.
    """

    seconds: float
    memory_bytes: int
    lifted: bool = False


def limits_for(weight_bytes: int, *, trust: bool) -> Limits:
    """A file that nobody vouches for gets two minutes an answer and memory in proportion to its weights."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if trust:
        return Limits(3600.0, physical, lifted=True)
    return Limits(120.0, min(physical, 4 * 2**30 + 12 * weight_bytes))


class Overrun(Exception):
    """One question took too much time or memory; the next one may not."""


class Referee:
    """Asks the child; one that died or was stopped is started anew for the next question."""

    def __init__(self, folder: Path, outputs: tuple[str, ...], limits: Limits) -> None:
        self._folder = folder
        self._outputs = outputs
        self._limits = limits
        self._child: _Child | None = None
        self._answered = False
        self._overruns = 0

    def check(self) -> None:
        """Let the child load the model.

        Raises:
            UnsupportedOperator: If the evaluator lacks operators.
            SourceError: If onnx's checker refuses the model.
            ExportError: If loading takes more than allowed.
        """
        told = self._ask({"check": True})
        if told["kind"] == "missing":
            raise _missing(told["said"])
        if told["kind"] == "exhausted":
            raise self._too_much(told["said"])
        if told["kind"] == "refused":
            raise SourceError(f"onnx refuses the file: {told['said']}. Export the model again.")

    def answer(self, feeds: Feeds, *, wide: bool) -> dict[str, Array]:
        """The evaluator's outputs by name, in the order of the graph.

        Args:
            feeds: By the file's own names.
            wide: Whether to ask the double-precision twin.

        Raises:
            ValueError: With the evaluator's own words, if it refuses the inputs.
            Overrun: If this question took more than allowed and others did not.
            ExportError: If the first question did, or several.
        """
        for index, (name, array) in enumerate(feeds.items()):
            (self._folder / f"in_{index}.pb").write_bytes(encode_tensor(array, name))
        told = self._ask({"names": list(feeds), "wide": wide})
        if told["kind"] == "exhausted":
            self._count_overrun(told["said"])
        if told["kind"] == "missing":
            raise _missing(told["said"])
        if told["kind"] == "refused":
            raise ValueError(told["said"])
        self._answered = True
        return {
            name: decode_tensor((self._folder / f"out_{index}.pb").read_bytes())
            for index, name in enumerate(self._outputs)
        }

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = _Child(self._folder, self._limits.memory_bytes)
        told = self._child.ask(question, self._limits.seconds)
        if told is None:
            said = self._child.end(self._limits.seconds)
            self.close()
            return {"kind": "exhausted", "said": said}
        return told

    def _count_overrun(self, said: str) -> None:
        self._overruns += 1
        if not self._answered or self._overruns > MAX_OVERRUNS:
            raise self._too_much(said)
        raise Overrun(f"onnx's reference evaluator needs more than it was allowed ({said})")

    def _too_much(self, said: str) -> ExportError:
        gib = self._limits.memory_bytes / 2**30
        allowed = f"{self._limits.seconds:.0f} s an answer and {gib:.1f} GiB"
        advice = (
            "give smaller inputs (--samples)"
            if self._limits.lifted
            else "pass --trust (trust=True) to lift them if you know the file's origin, or give smaller inputs"
        )
        return ExportError(
            f"onnx's reference evaluator could not answer within its limits ({allowed}): {said}; {advice}."
        )


def _missing(operators: list[list[str]]) -> UnsupportedOperator:
    kinds = list(dict.fromkeys(operator for operator, _ in operators))
    first, node = operators[0]
    return UnsupportedOperator(
        f"onnx's reference evaluator has no {', '.join(kinds)} (first at node {node!r}), so nothing can vouch for "
        "the file's numbers. Export the model without operators of a runtime's own (no optimised or quantised "
        "copy that a runtime wrote), or export it from its framework.",
        operator=first,
        module=node,
    )


class _Child:
    """The process, its standard input, and its channel."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._log = folder / "child.log"
        command: list[str | Path] = [sys.executable, "-I", "-c", _BOOTSTRAP, _import_folder(folder), folder]
        with self._log.open("wb") as log:
            self._started = start_supervised(
                command, memory_bytes=memory_bytes, stdin=subprocess.PIPE, output=log, with_channel=True
            )
        self._rest = b""
        self._timed_out = False

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """What the child says; None if it died or its time is up."""
        stdin = self._started.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return None
        line = self._line(time.monotonic() + seconds)
        if line is None:
            return None
        told: dict[str, Any] = json.loads(line)
        return told

    def end(self, seconds: float) -> str:
        """Why there was no answer."""
        if self._timed_out:
            return f"stopped after {seconds:.0f} s"
        returncode = self._started.process.wait()
        log = self._end_of_log().strip().splitlines()
        if log and log[-1].startswith("MemoryError"):
            return "out of memory"
        ended = Ended(returncode, False, "", 0.0).describe()
        return f"its process {ended}" + (f"; its last line: {log[-1][:200]}" if log else "")

    def _end_of_log(self) -> str:
        """Its last lines; what a file makes the child write has no bound."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            return log.read(_LOG_BYTES).decode("utf-8", "replace")

    def _line(self, deadline: float) -> bytes | None:
        channel = self._started.channel_fd
        assert channel is not None
        waiting = select.poll()  # select() takes no descriptor beyond 1023
        waiting.register(channel, select.POLLIN)
        while b"\n" not in self._rest:
            ready = waiting.poll(1000 * max(0.0, deadline - time.monotonic()))
            if not ready:
                self._timed_out = True
                return None
            chunk = os.read(channel, 1 << 16)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        """End the whole process group."""
        self._started.close()


def _import_folder(folder: Path) -> Path:
    """A folder from which the child imports us and nothing else of this environment's path."""
    path = folder / "path"
    if not path.exists():
        path.mkdir()
        (path / "paritygate").symlink_to(Path(paritygate.__file__).absolute().parent)
    return path
