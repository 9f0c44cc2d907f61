"""Whether what a user requires can be installed beside a framework's pins, as pip's resolver sees it."""

from __future__ import annotations

import json
import re
import tempfile
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments.pins import canonical, needed_by, read_pins
from paritygate.converter.environments.pip_command import lend_pip, pip_command, pip_environment
from paritygate.converter.environments.pip_output import explain
from paritygate.converter.environments.progress import Say, silent_line
from paritygate.converter.environments.specs import EnvironmentSpec
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.processes import Ended, run_supervised

DEFAULT_TIMEOUT_S = 900.0

SAME_FOLDER = (
    frozenset({"onnxruntime", "onnxruntime-gpu"}),
    frozenset({"tensorflow", "tensorflow-cpu"}),
    frozenset({"xgboost", "xgboost-cpu"}),
    frozenset({"paddlepaddle", "paddlepaddle-gpu"}),
)
"""Packages of different names that write the same folder: pip accepts both, and the last one installed wins."""


@dataclass(frozen=True)
class Requirement:
    """One line of a user's requirements file.

    Attributes:
        text: The requirement, without comments and hashes.
        where: File and line, such as `requirements.txt:3`.
    """

    text: str
    where: str

    @property
    def name(self) -> str:
        """The package that it asks for, in the form in which names are compared."""
        return canonical(re.split(r"[^A-Za-z0-9._-]", self.text, maxsplit=1)[0])


@dataclass(frozen=True)
class Conflict:
    """Something that cannot be.

    Attributes:
        requirements: The user's requirements that take part.
        reason: Why, in one sentence that names the pins or packages and who needs them.
    """

    requirements: tuple[Requirement, ...]
    reason: str

    def __str__(self) -> str:
        asked = " and ".join(f"{each.text} ({each.where})" for each in self.requirements)
        return f"{asked}: {self.reason}" if asked else self.reason


def find_conflicts(
    spec: EnvironmentSpec, requirements: Path, say: Say | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[Conflict]:
    """Resolve a user's requirements together with the pins of an environment.

    Only wheels are looked at: resolving the source of a package would run its set-up code.

    Args:
        spec: The environment.
        requirements: The user's requirements file.
        say: Told what goes on.
        timeout_s: Limit of each run of pip.

    Returns:
        The conflicts; empty if both can be installed together.

    Raises:
        EnvironmentFailure: If the file cannot be read, or pip cannot tell (no network, no index, no time).
    """
    asked, options = read_requirements(requirements)
    tell = say or silent_line
    with tempfile.TemporaryDirectory(prefix="paritygate-doctor-") as folder:
        resolver = _Resolver(spec, Path(folder), requirements, options, timeout_s)
        tell(f"resolving {len(asked)} requirements with the pins of environment '{spec.name}'")
        together = resolver.resolve(asked)
        if together.chosen is not None:
            return _same_folder_conflicts(asked, spec, together.chosen)
        conflicts = _same_folder_conflicts(asked, spec, ())
        if len(asked) == 1:
            return [*conflicts, Conflict(tuple(asked), together.reason)]
        alone = []
        for requirement in asked:
            tell(f"resolving {requirement.text} alone")
            outcome = resolver.resolve([requirement])
            if outcome.chosen is None:
                alone.append(Conflict((requirement,), outcome.reason))
        return [*conflicts, *(alone or [Conflict(tuple(_involved(asked, together.reason)), together.reason)])]


def read_requirements(path: Path) -> tuple[list[Requirement], list[str]]:
    """The requirements of a file in pip's format, and its option lines.

    Raises:
        EnvironmentFailure: If there is no such file, it is no text, or asks for nothing.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFailure(
            f"the requirements file {path} cannot be read ({error}). Give a text file in pip's format."
        ) from error
    asked, options, held = [], [], ""
    for number, line in enumerate(lines, 1):
        held += re.sub(r"(^|\s)#.*", "", line).strip()
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        text = re.sub(r"\s--hash=\S+", "", held).strip()
        held = ""
        if text.startswith("-"):
            options.append(text)
        elif text:
            asked.append(Requirement(text, f"{path.name}:{number}"))
    if not asked and not options:
        raise EnvironmentFailure(f"the requirements file {path} asks for nothing; expected a package a line.")
    return asked, options


@dataclass(frozen=True)
class _Outcome:
    """What one run of the resolver gave: the names that it chose, or the reason why it could not."""

    chosen: tuple[str, ...] | None
    reason: str = ""


class _Resolver:
    """Asks pip, in an empty environment of this Python, with the pins as constraints."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        folder: Path,
        requirements: Path,
        options: Sequence[str],
        timeout_s: float,
    ) -> None:
        self._spec, self._folder, self._timeout_s = spec, folder, timeout_s
        self._beside = requirements.absolute().parent  # relative paths in the file start there
        self._options = options
        self._pins = read_pins(spec.requirements)
        venv.create(folder / "empty", with_pip=False)
        self._pip = lend_pip(spec, folder)
        (folder / "tmp").mkdir()
        pins = "".join(f"{pin.name}=={pin.version}\n" for pin in self._pins.values())
        (folder / "pins.txt").write_text(pins)

    def resolve(self, asked: Sequence[Requirement]) -> _Outcome:
        """Resolve some of the requirements."""
        file, report = self._folder / "asked.txt", self._folder / "report.json"
        file.write_text("\n".join([*self._options, *(each.text for each in asked)]) + "\n", "utf-8")
        said: list[str] = []
        arguments = ["install", "--dry-run", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
        arguments += ["--disable-pip-version-check", "--report", str(report), "-r", str(file)]
        ended = run_supervised(
            pip_command(self._folder / "empty" / "bin" / "python", self._pip, *arguments),
            timeout_s=self._timeout_s,
            environment={
                **pip_environment(self._folder / "tmp"),
                "PIP_CONSTRAINT": str(self._folder / "pins.txt"),
            },
            directory=self._beside,
            on_output=lambda line: said.append(line.decode("utf-8", "replace")),
        )
        if ended.ok:
            found = json.loads(report.read_text("utf-8"))["install"]
            return _Outcome(tuple(canonical(each["metadata"]["name"]) for each in found))
        return _Outcome(None, self._reason(ended, said))

    def _reason(self, ended: Ended, said: Sequence[str]) -> str:
        causes = _causes(said)
        if causes:
            return self._in_plain_words(causes)
        text = "\n".join(said)
        missing = re.search(
            r"satisfies the requirement (?P<what>\S+).*? \(from versions: (?P<versions>.*?)\)", text
        )
        reason, advice = explain(self._spec, self._folder / "empty", "pip's resolver", ended, said)
        if missing is None or "cannot be reached" in reason or "takes nothing from" in reason:
            raise EnvironmentFailure(f"the requirements could not be resolved: {reason} {advice}")
        pin = self._pins.get(canonical(re.split(r"[^A-Za-z0-9._-]", missing["what"])[0]))
        if pin is not None:
            return self._pinned(pin.name, pin.version)
        has = missing["versions"]
        return "pip's index has no wheel of it for this Python and machine" + (
            "" if has == "none" else f", only versions {has}"
        )

    def _pinned(self, name: str, version: str) -> str:
        users = needed_by(self._spec.directory, canonical(name))
        return f"environment '{self._spec.name}' pins {name} {version}" + (
            f" for {', '.join(users)}" if users else ""
        )

    def _in_plain_words(self, causes: Iterable[str]) -> str:
        sentences = []
        for cause in causes:
            pin = re.fullmatch(r"The user requested \(constraint\) (?P<pin>\S+)==(?P<version>\S+)", cause)
            if pin:
                sentences.append(self._pinned(pin["pin"], pin["version"]))
            elif not cause.startswith("The user requested"):
                sentences.append(cause)
        return "; ".join(dict.fromkeys(sentences)) or "it contradicts another of the requirements"


def _causes(said: Sequence[str]) -> list[str]:
    """The lines under pip's heading `The conflict is caused by`."""
    lines = [line.strip() for line in said]
    heading = next((i for i, line in enumerate(lines) if line.startswith("The conflict is caused by")), None)
    if heading is None:
        return []
    rest = lines[heading + 1 :]
    end = rest.index("") if "" in rest else len(rest)
    return rest[:end]


def _involved(asked: Sequence[Requirement], reason: str) -> list[Requirement]:
    named = [each for each in asked if re.search(rf"(?<![\w-]){re.escape(each.name)}(?![\w-])", reason)]
    return named or list(asked)


def _same_folder_conflicts(
    asked: Sequence[Requirement], spec: EnvironmentSpec, chosen: Iterable[str]
) -> list[Conflict]:
    pins = set(read_pins(spec.requirements))
    names = {each.name for each in asked} | set(chosen)
    found = []
    for rivals in SAME_FOLDER:
        for other in sorted((rivals - pins) & names):
            for there in sorted(((rivals & pins) or (rivals & names)) - {other}):
                takes_part = tuple(each for each in asked if each.name in (other, there))
                pinned = f", which environment '{spec.name}' pins" if there in pins else ""
                found.append(Conflict(takes_part, both_present(other, f"{there}{pinned}")))
    return list({frozenset(each.requirements): each for each in found}.values())  # each pair once


def both_present(one: str, other: str) -> str:
    """Why two packages of different names cannot be installed together."""
    return f"{one} overwrites the files of {other}; pip does not object, so take only one of them"
