"""Building environments with the real pip from a folder of tiny wheels, and everything that can go wrong."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from paritygate.converter.environments import EnvironmentSpec, examine, list_environments, remove, sync
from paritygate.converter.environments.manager import MARKER_FILE, in_use
from paritygate.converter.environments.progress import BuildStep
from paritygate.converter.errors import EnvironmentFailure
from support.environments import TinyIndex


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyIndex:
    return TinyIndex(tmp_path, monkeypatch)


def _state(index: TinyIndex) -> str:
    return next(status.state for status in list_environments() if status.directory == index.spec.directory)


def test_an_environment_is_built_once_listed_and_removed(index: TinyIndex) -> None:
    index.offer()
    assert _state(index) == "absent"
    told: list[str] = []
    steps: list[BuildStep] = []
    built = sync("tiny", told.append, on_step=steps.append)
    assert built.directory == index.spec.directory
    assert built.packages == {"tinyframework": "1.0"}
    assert "installing 1 pinned packages with pip" in told
    assert [str(step) for step in steps[:2]] == ["fetching 1 of 1: tinyframework", "installing 1 packages"]
    assert [(step.phase, step.package, step.done, step.total) for step in steps] == [
        ("fetching", "tinyframework", 0, 1),
        ("installing", "", 0, 1),
        ("installing", "", 1, 1),
    ]
    found = subprocess.run(
        [built.python, "-I", "-c", "import tinyframework, sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == built.directory

    again: list[str] = []
    assert sync("tiny-exporter", again.append) == built
    assert again == []
    assert _state(index) == "ready"
    assert next(s.size_bytes for s in list_environments() if s.name == "tiny") > 10_000

    index.pin("tinyframework==1.0", "# other bytes")
    states = {(s.directory, s.state) for s in list_environments() if s.name == "tiny"}
    assert states == {(index.spec.directory, "absent"), (built.directory, "outdated")}

    assert remove("tiny") == [built.directory]
    assert not built.directory.exists()
    assert remove("tiny") == []


def test_two_processes_at_once_build_one_environment(index: TinyIndex) -> None:
    """Both begin before either is done; the second waits, says so, and finds it ready."""
    count = index.folder / "built"
    index.offer(body=f"import os, time\nopen({str(count)!r}, 'a').write('x')\ntime.sleep(1)\n")
    builders = [index.build_in_another_process() for _ in range(2)]
    said = [builder.communicate(timeout=120)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert {text.splitlines()[-1] for text in said} == {str(index.spec.directory)}
    assert count.read_text() == "x"
    assert sum("waiting for another process" in text for text in said) == 1


def test_a_killed_build_is_never_used_and_the_next_one_clears_it(index: TinyIndex) -> None:
    reached = index.folder / "reached"
    index.offer(body=f"import time\nopen({str(reached)!r}, 'w').close()\ntime.sleep(120)\n")
    builder = index.build_in_another_process()
    deadline = time.monotonic() + 60
    while not reached.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    builder.kill()
    builder.communicate()
    assert _state(index) == "partial"
    left = index.spec.directory / "left-by-the-killed-one"
    left.touch()

    (index.folder / "wheels" / "tinyframework-1.0-py3-none-any.whl").unlink()
    index.offer()
    assert sync("tiny", timeout_s=60).packages == {"tinyframework": "1.0"}
    assert not left.exists()


def test_an_environment_in_use_is_not_removed(index: TinyIndex) -> None:
    index.offer()
    environment = sync("tiny")
    with (
        in_use(environment),
        pytest.raises(EnvironmentFailure, match=r"is used or built by another process\. Wait for it"),
    ):
        remove("tiny")
    assert environment.python.exists()
    (environment.directory / MARKER_FILE).unlink()
    with pytest.raises(EnvironmentFailure, match="was removed by somebody else"), in_use(environment):
        pass


def test_an_environment_whose_python_is_gone_is_built_anew(index: TinyIndex) -> None:
    index.offer()
    environment = sync("tiny")
    environment.python.unlink()
    assert sync("tiny").python.exists()


@pytest.mark.parametrize(("build", "drawn_in"), [("1.0", True), ("1.0+cpu", False)])
def test_a_supplement_is_installed_with_the_build_that_needs_it_only(
    build: str, drawn_in: bool, index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may have a build with a GPU's libraries where another has the small one; both meet the pin."""
    supplement = index.folder / "supplement.txt"
    monkeypatch.setattr(EnvironmentSpec, "supplement", property(lambda _spec: supplement))
    bare = index.spec.directory
    supplement.write_text("tinygpu==2.0\n")
    assert index.spec.directory != bare, "other pins must be another environment"
    index.offer("2.0", name="tinygpu")
    index.offer(build, requires=["tinygpu>=2"] if drawn_in else [])
    built = sync("tiny")
    assert built.packages == ({"tinyframework": "1.0"} | ({"tinygpu": "2.0"} if drawn_in else {}))
    assert [each.packages for each in list_environments() if each.state == "ready"] == [len(built.packages)]
    assert list(built.directory.glob("lib/*/site-packages/tinygpu.py")) != [] or not drawn_in
    assert [finding.state for finding in examine("tiny") if finding.subject == "tiny"] == ["ok"]
