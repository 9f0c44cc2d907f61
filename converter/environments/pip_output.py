"""What pip says while it builds: figures for a bar, lines for a log, and failures in plain words."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from paritygate.converter.environments.pins import canonical
from paritygate.converter.environments.pip_command import PIP_ARGUMENTS_VARIABLE
from paritygate.converter.environments.progress import FETCHING, INSTALLING, BuildStep, Progress
from paritygate.converter.environments.specs import DIRECTORY_VARIABLE, EnvironmentSpec
from paritygate.converter.processes import Ended

_KEPT_LINES = 60

_COLLECTING = re.compile(r"Collecting (?P<name>[A-Za-z0-9._-]+)==")
_PROCESSING = re.compile(r"Processing .*?(?P<name>[^/]+)-[^/-]+(-[^/-]+){3}\.whl")
_BYTES = re.compile(r"Progress (?P<done>\d+) of (?P<total>\d+)")


class PipOutput:
    """Listens to pip's output: tells how far it is, and keeps what it said but not its figures."""

    def __init__(self, spec: EnvironmentSpec, directory: Path, total: int, progress: Progress) -> None:
        self.said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._name = spec.name
        self._directory = directory
        self._progress = progress
        self._step = BuildStep(spec.name, FETCHING, "", 0, total)
        self._seen = 0

    def hear(self, line: bytes) -> None:
        """Take one line."""
        text = line.decode("utf-8", "replace").rstrip()
        figures = _BYTES.fullmatch(text.strip())
        if figures:
            self._show(
                FETCHING, self._step.package, self._step.done, int(figures["done"]), int(figures["total"])
            )
            return
        self.said.append(text)
        package = _COLLECTING.match(text) or _PROCESSING.match(text)
        if package:
            self._fetch(canonical(package["name"]))
        elif text.startswith("Installing collected packages"):
            self._show(INSTALLING, "", 0)

    def look(self) -> None:
        """Count what is installed: pip does not say it, and writes the RECORD of a package last."""
        if self._step.phase == INSTALLING:
            records = self._directory.glob("lib/python*/site-packages/*.dist-info/RECORD")
            self._show(INSTALLING, "", min(sum(1 for _ in records), self._step.total))

    def _fetch(self, package: str) -> None:
        self._seen += 1
        self._show(FETCHING, package, self._seen - 1)

    def _show(self, phase: str, package: str, done: int, bytes_done: int = 0, bytes_total: int = 0) -> None:
        step = BuildStep(self._name, phase, package, done, self._step.total, bytes_done, bytes_total)
        if step != self._step:
            self._step = step
            self._progress.step(step)


def explain(
    spec: EnvironmentSpec, directory: Path, what: str, ended: Ended, said: Sequence[str]
) -> tuple[str, str]:
    """What happened to a step of a build, and what to do about it, told from what it said.

    The patterns are pip's, the system's and Python's own words; a step that says something else is told by its end
    and its last line.

    Args:
        spec: The environment.
        directory: Where it was built.
        what: The step.
        ended: How it ended.
        said: Its output.
    """
    text = "\n".join(said)
    again = f"then run `paritygate env sync {spec.name}`."
    settings = f"pip's index settings (pip.conf, PIP_* variables or {PIP_ARGUMENTS_VARIABLE})"
    if re.search(r"Errno 28\b|No space left on device|Errno 122\b|Disk quota exceeded", text):
        return (
            f"{what} failed: there is no space left on the disk of {directory.parent}.",
            f"Free some, or set {DIRECTORY_VARIABLE} to a folder on another disk, {again}",
        )
    if "DO NOT MATCH THE HASHES" in text:
        return _explain_hashes(spec, what, text, again)
    if re.search(r"Errno 13\b|Permission denied|Errno 30\b|Read-only file system", text):
        return (
            f"{what} failed: something may not be written ({_last_word(said)}).",
            f"Check the rights in {directory.parent}, or set {DIRECTORY_VARIABLE} to a folder that can be "
            f"written, {again}",
        )
    missing = re.search(r"satisfies the requirement (?P<what>\S+) \(from versions: (?P<versions>.*?)\)", text)
    distrusted = re.search(r"located at (?P<host>\S+) is not a trusted or secure host", text)
    if missing and distrusted:
        return (
            f"{what} failed: pip takes nothing from {distrusted['host']}, which it reaches without encryption.",
            f"Give its https address in pip's index settings, or add --trusted-host {distrusted['host']} to "
            f"{PIP_ARGUMENTS_VARIABLE}, {again}",
        )
    if missing and (why := _broken_connection(text)):
        return (
            f"{what} failed: the package index cannot be reached ({why}).",
            f"Check the network, the proxy and {settings}; on a machine without a network bring the wheels and "
            f"set {PIP_ARGUMENTS_VARIABLE}='--no-index --find-links FOLDER'; {again}",
        )
    if missing:
        offers = missing["versions"]
        there = (
            "has no wheel of it for this Python and machine" if offers == "none" else f"has {_some(offers)}"
        )
        return (
            f"{what} failed: {missing['what']} is pinned, but pip's index {there}.",
            f"Check {settings}, {again}",
        )
    word = _last_word(said)
    return (
        f"{what} {ended.describe()}{f' ({word})' if word else ''}.",
        f"Check the network and {settings}, {again}",
    )


def _explain_hashes(spec: EnvironmentSpec, what: str, text: str, again: str) -> tuple[str, str]:
    package = re.search(r"^\s+(?P<pin>\S+==\S+) from \S+", text, re.MULTILINE)
    got = re.search(r"Got\s+(?P<digest>[0-9a-f]{64})", text)
    digest = f" (their sha256 is {got['digest'][:12]}...)" if got else ""
    return (
        f"{what} failed: pip's index gives other bytes of {package['pin'] if package else 'a package'} than those "
        f"that are locked{digest}; nothing was installed.",
        f"Ask whoever runs the index why, or use another one, {again} The locked hashes: {spec.requirements}.",
    )


def _broken_connection(text: str) -> str:
    """The innermost reason that pip gives for a broken connection, or nothing if none broke."""
    if "confirming the ssl certificate" in text:
        return "its certificate is not valid here"
    if not re.search(r"connection broken by|Max retries exceeded", text):
        return ""
    for pattern in (
        r"\[Errno -?\d+\] (?P<why>[A-Z][\w -]+)",
        r"(?P<why>[\w ]*timed out)",
        r"'(?P<why>\w+Error)",
    ):
        found = re.search(pattern, text)
        if found:
            return found["why"].strip()
    return "the connection broke"


def _some(versions: str, limit: int = 5) -> str:
    listed = versions.split(", ")
    older = f" and {len(listed) - limit} older versions" if len(listed) > limit else ""
    return f"only {', '.join(listed[-limit:])}{older}"


def _last_word(said: Sequence[str]) -> str:
    lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1].rstrip(".")[:300]
