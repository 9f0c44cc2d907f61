"""Requirements files of framework environments: packages, their versions, and the hashes of their wheels."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.errors import EnvironmentFailure

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.+!]*)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One line of a requirements file.

    Attributes:
        name: The package, in the form in which names are compared.
        version: Its one version; a build of it such as `2.13.0+cpu` is that version, as it is for pip.
        hashes: sha256 of each wheel that may be installed; empty if the file does not lock them.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    def is_met_by(self, version: str) -> bool:
        """Whether an installed version is the pinned one or a build of it."""
        return version == self.version or version.partition("+")[0] == self.version


def canonical(name: str) -> str:
    """A package's name in the form in which names are compared: `ml_dtypes` and `ML-dtypes` are `ml-dtypes`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(requirements: Path) -> dict[str, Pin]:
    """The pins of a requirements file by name; a line that ends with a backslash goes on in the next.

    Raises:
        EnvironmentFailure: If a line is anything but one exact pin and its hashes, or a package comes twice.
    """
    text = requirements.read_text("utf-8")
    bare = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    pins: dict[str, Pin] = {}
    for line in bare.replace("\\\n", " ").splitlines():
        if words := line.split():
            pin = _parse(words, requirements)
            if pin.name in pins:
                raise EnvironmentFailure(f"{requirements} pins {pin.name} twice; expected each package once.")
            pins[pin.name] = pin
    return pins


def installed(directory: Path) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that lie in a virtual environment, by name; none if it is not there."""
    packages = [str(folder) for folder in directory.glob("lib/python*/site-packages")]
    return {
        canonical(distribution.metadata["Name"]): distribution
        for distribution in importlib.metadata.distributions(path=packages)
    }


def needed_by(directory: Path, name: str) -> list[str]:
    """The installed distributions that declare a package; what only an extra draws in is left out."""
    users = {
        user
        for user, distribution in installed(directory).items()
        for text in distribution.requires or ()
        if "extra ==" not in text and canonical(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]) == name
    }
    return sorted(users)


def _parse(words: list[str], requirements: Path) -> Pin:
    pin = _PIN.fullmatch(words[0])
    hashes = [_HASH.fullmatch(word) for word in words[1:]]
    if pin is None or not all(hashes):
        raise EnvironmentFailure(
            f"{requirements} has the line {' '.join(words)[:120]!r}; expected name==version and, after it, "
            "--hash=sha256:... of each wheel."
        )
    return Pin(canonical(pin["name"]), pin["version"], tuple(found["digest"] for found in hashes if found))
