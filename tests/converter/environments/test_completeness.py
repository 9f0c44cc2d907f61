"""Whether the pins of each environment are complete: nothing resolves them again, so nobody else would notice."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from paritygate.converter.environments import SPECS, Environment, EnvironmentSpec
from paritygate.converter.environments.installer import pins_in
from paritygate.converter.environments.manager import find
from paritygate.converter.environments.pins import canonical, installed

_PROVIDED = {
    ("tf-keras", "tensorflow"): "tensorflow-cpu is tensorflow under another name",
}
"""What a package declares and something else provides."""


def _built(name: str) -> tuple[EnvironmentSpec, Environment]:
    environment = find(name)
    if environment is None:
        pytest.skip(f"environment '{name}' is not built: `paritygate env sync {name}`")
    return SPECS[name], environment


@pytest.mark.real
@pytest.mark.parametrize("name", SPECS)
def test_every_requirement_of_every_package_is_met_by_a_pin(name: str) -> None:
    spec, environment = _built(name)
    pins = pins_in(spec, environment.directory)
    unmet = [
        f"{user} needs {requirement}"
        for user, distribution in installed(environment.directory).items()
        for requirement in map(Requirement, distribution.requires or ())
        if _applies(requirement) and (user, canonical(requirement.name)) not in _PROVIDED
        if not _is_met(
            requirement, pins[found].version if (found := canonical(requirement.name)) in pins else ""
        )
    ]
    assert unmet == []


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _is_met(requirement: Requirement, version: str) -> bool:
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


@pytest.mark.real
@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_installed_but_the_pins(name: str) -> None:
    spec, environment = _built(name)
    versions = {package: found.version for package, found in installed(environment.directory).items()}
    pins = pins_in(spec, environment.directory)
    assert set(versions) == set(pins)
    assert [pin for pin in pins.values() if not pin.is_met_by(versions[pin.name])] == []


@pytest.mark.parametrize("name", SPECS)
def test_every_pin_has_a_wheel_for_this_project_s_oldest_python(name: str) -> None:
    """The head of a file names the machines for which something is missing; CPython 3.11 on x86-64 has all."""
    head = [line for line in SPECS[name].requirements.read_text("utf-8").splitlines() if line.startswith("#")]
    assert not any(re.match(r"# Not for CPython 3\.11 on x86_64", line) for line in head)
