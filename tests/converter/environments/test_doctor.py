"""What the doctor sees: environments that are whole, and every way in which one is not."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.environments import (
    SPECS,
    Environment,
    Finding,
    examine,
    list_environments,
    remove,
    remove_forgotten,
    sync,
)
from paritygate.converter.environments.intact import InstalledFile, unrecorded
from paritygate.converter.environments.manager import MARKER_FILE
from paritygate.converter.environments.pins import installed
from support.environments import TinyIndex, real_environment

_NAME = "tiny"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyIndex:
    tiny = TinyIndex(tmp_path, monkeypatch)
    tiny.offer()
    return tiny


def _of_environment() -> list[Finding]:
    return [finding for finding in examine(_NAME) if finding.subject == _NAME]


def _of_machine() -> list[Finding]:
    return [finding for finding in examine(_NAME) if finding.subject == "machine"]


def test_an_environment_that_is_not_built_is_no_fault(index: TinyIndex) -> None:
    (finding,) = _of_environment()
    assert finding.state == "absent"
    assert "`paritygate env sync tiny`" in finding.message


def test_a_whole_environment_is_fine(index: TinyIndex) -> None:
    sync(_NAME)
    (finding,) = _of_environment()
    assert finding.state == "ok", finding
    assert (
        finding.message
        == "1 packages as they are pinned, every file as installed and no other, imports tinyframework"
    )


def _site_packages(environment: Environment) -> Path:
    return next(environment.directory.glob("lib/python*/site-packages"))


def _change_a_file(environment: Environment) -> None:
    (_site_packages(environment) / "tinyframework.py").write_text("changed = True\n")


def _compile_anew(environment: Environment) -> None:
    (info,) = _site_packages(environment).glob("tinyframework-*.dist-info")
    compiled = Path("__pycache__") / "tinyframework.cpython-311.pyc"
    (_site_packages(environment) / compiled).parent.mkdir(exist_ok=True)
    (_site_packages(environment) / compiled).write_bytes(b"other bytecode")
    with (info / "RECORD").open("a") as record:
        record.write(f"{compiled},sha256=zd9yf0Ycn-ffRFlFlSAZzXZuBjj2t-2rX1pwgtsyCPk,14202\n")


def _lose_a_package(environment: Environment) -> None:
    shutil.rmtree(_site_packages(environment) / "tinyframework-1.0.dist-info")


def _lose_a_file(environment: Environment) -> None:
    (_site_packages(environment) / "tinyframework.py").unlink()


def _add_a_package(environment: Environment) -> None:
    info = _site_packages(environment) / "intruder-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 1.0\n")


def _move_a_version(environment: Environment) -> None:
    metadata = _site_packages(environment) / "tinyframework-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))


def _break_the_import(environment: Environment) -> None:
    (_site_packages(environment) / "tinyframework.py").write_text("raise ImportError('no such processor.')\n")


def _add_files(environment: Environment) -> None:
    packages = _site_packages(environment)
    for name in (
        "a.py",
        "b.py",
        "c.py",
        "sitecustomize.py",
        "stray.pth",
        "plugin/__init__.py",
        "plugin/more.py",
    ):
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).touch()


def _die_in_a_build(environment: Environment) -> None:
    (environment.directory / MARKER_FILE).unlink()


def test_bytecode_that_a_wheel_brought_may_be_compiled_anew(index: TinyIndex) -> None:
    _compile_anew(sync(_NAME))
    (finding,) = _of_environment()
    assert finding.state == "ok", finding


@pytest.mark.parametrize(
    ("harm", "match"),
    [
        (_change_a_file, "1 files of tinyframework are not as they were installed: tinyframework.py"),
        (_lose_a_file, "1 files of tinyframework are not as they were installed: tinyframework.py"),
        (_lose_a_package, "tinyframework 1.0 is missing"),
        (_add_a_package, "intruder was put there by somebody else"),
        (_add_files, "are of no package: sitecustomize.py, stray.pth, a.py and others. Run"),
        (_move_a_version, "tinyframework is 1.1 instead of 1.0"),
        (
            _break_the_import,
            "importing tinyframework ended with exit code 1 (ImportError: no such processor)",
        ),
        (_die_in_a_build, "a build died in"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(
    harm: Callable[[Environment], None], match: str, index: TinyIndex
) -> None:
    harm(sync(_NAME))
    findings = _of_environment()
    assert {finding.state for finding in findings} == {"fault"}
    assert any(match in finding.message for finding in findings), findings
    assert all("paritygate env sync tiny`" in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stray.pth", "stray.pth"),
        ("usercustomize.py", "usercustomize.py"),
        ("tinyframework.pyc", "tinyframework.pyc"),
        ("numpy/__init__.py", "numpy/"),
        ("tinyframework-1.0.dist-info/entry_points.txt", "tinyframework-1.0.dist-info/entry_points.txt"),
    ],
)
@pytest.mark.parametrize("every_file", [False, True])
def test_a_file_of_no_package_is_found_also_when_it_is_older_than_the_build(
    name: str, told: str, every_file: bool, index: TinyIndex
) -> None:
    environment = sync(_NAME)
    added = _site_packages(environment) / name
    added.parent.mkdir(exist_ok=True)
    added.touch()
    marker = environment.directory / MARKER_FILE
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"built_at_ns": time.time_ns() + 10**12}))
    (finding,) = [each for each in examine(_NAME, every_file=every_file) if each.subject == _NAME]
    assert finding.state == "fault"
    assert (
        f"1 files or folders in {_site_packages(environment)} are of no package: {told}. Run"
        in finding.message
    )


def test_what_python_and_folders_without_files_leave_is_no_fault(index: TinyIndex) -> None:
    packages = _site_packages(sync(_NAME))
    (packages / "empty" / "__pycache__").mkdir(parents=True)
    for folder in (packages, packages / "empty"):
        (folder / "__pycache__").mkdir(exist_ok=True)
        (folder / "__pycache__" / "gone.cpython-311.pyc").touch()
    (finding,) = _of_environment()
    assert finding.state == "ok", finding


@pytest.mark.real
@pytest.mark.parametrize("name", SPECS)
def test_a_real_environment_holds_nothing_that_its_packages_do_not_name(name: str) -> None:
    directory = real_environment(name).directory
    distributions = installed(directory).values()
    (packages,) = directory.glob("lib/python*/site-packages")
    assert unrecorded(packages, distributions) == []


def test_what_was_not_touched_since_the_build_is_not_read(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = sync(_NAME)
    read: list[str] = []
    whole = InstalledFile.has_its_bytes
    monkeypatch.setattr(InstalledFile, "has_its_bytes", lambda file: read.append(file.name) or whole(file))
    assert [finding.state for finding in _of_environment()] == ["ok"]
    assert read == []
    (_site_packages(environment) / "tinyframework.py").touch()
    assert [finding.state for finding in _of_environment()] == ["ok"]
    assert read == ["tinyframework.py"]
    assert [finding.state for finding in examine(_NAME, every_file=True) if finding.subject == _NAME] == [
        "ok"
    ]
    assert {"tinyframework.py", "tinyframework-1.0.dist-info/WHEEL"} <= set(read[1:])


def test_a_change_that_hides_its_time_and_size_is_found(index: TinyIndex) -> None:
    environment = sync(_NAME)
    wheel = _site_packages(environment) / "tinyframework-1.0.dist-info" / "WHEEL"
    before = wheel.stat()
    wheel.write_text(wheel.read_text().replace("Generator: tests", "Generator: other"))
    os.utime(wheel, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert wheel.stat().st_size == before.st_size
    (finding,) = _of_environment()
    assert (
        "1 files of tinyframework are not as they were installed: tinyframework-1.0.dist" in finding.message
    )


def test_an_environment_that_does_not_know_when_it_was_built_is_read_whole(index: TinyIndex) -> None:
    environment = sync(_NAME)
    _change_a_file(environment)
    marker = environment.directory / MARKER_FILE
    told = json.loads(marker.read_text())
    del told["built_at_ns"]
    marker.write_text(json.dumps(told))
    (finding,) = _of_environment()
    assert finding.state == "fault"


def test_what_older_pins_and_names_left_is_named_with_the_command_that_removes_it(index: TinyIndex) -> None:
    old = sync(_NAME).directory
    index.pin("tinyframework==1.0", "# other bytes")
    half = old.with_name(f"{_NAME}-0123456789ab")
    half.mkdir()
    forgotten = old.with_name("gone-0123456789ab")
    forgotten.mkdir()
    (forgotten / MARKER_FILE).write_text("{}")
    somebodys = old.with_name("photos-0123456789ab")
    somebodys.mkdir()

    found = {
        finding.message.partition(", and nothing uses it. Run ")[::2]
        for finding in examine()
        if finding.state == "outdated"
    }
    said = {(text.partition(" takes ")[0], text.rpartition("/")[2], command) for text, command in found}
    assert said == {
        ("an older one", old.name, "`paritygate env remove tiny --outdated`."),
        ("a half-built older one", half.name, "`paritygate env remove tiny --outdated`."),
        ("an older one", forgotten.name, "`paritygate env remove --outdated`."),
    }
    assert {(each.name, each.state) for each in list_environments() if each.directory == forgotten} == {
        ("gone", "outdated")
    }
    assert remove(_NAME, outdated=True) == sorted([half, old])
    assert remove_forgotten() == [forgotten]
    assert somebodys.is_dir()


def test_an_environment_that_is_being_built_is_no_fault(index: TinyIndex) -> None:
    reached = index.folder / "reached"
    index.offer(body=f"import time\nopen({str(reached)!r}, 'w').close()\ntime.sleep(120)\n")
    builder = index.build_in_another_process()
    try:
        deadline = time.monotonic() + 60
        while not reached.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        (finding,) = _of_environment()
        assert finding.state == "absent"
        assert "another process builds it now" in finding.message
    finally:
        builder.kill()
        builder.communicate()


def test_the_machine_is_looked_at_too(index: TinyIndex) -> None:
    findings = _of_machine()
    assert {finding.state for finding in findings} == {"ok"}
    assert findings[0].message.startswith("Python 3.")
    assert "GiB free for environments in" in findings[1].message
    assert findings[-1].message == "pip's index answers and has tinyframework 1.0"


def test_an_index_that_lacks_the_pins_is_a_fault(index: TinyIndex) -> None:
    index.pin("tinyframework==9.9")
    finding = _of_machine()[-1]
    assert finding.state == "fault"
    assert finding.message.startswith(
        "asking pip's index failed: tinyframework==9.9 is pinned, but pip's index has only 1.0."
    )


def test_a_full_disk_is_a_fault(index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 2**20

    monkeypatch.setattr("shutil.disk_usage", lambda _path: Full)
    assert any("0.0 GiB free" in finding.message and finding.state == "fault" for finding in _of_machine())


def test_two_packages_that_overwrite_each_other_are_a_fault(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("xgboost", "xgboost_cpu"):
        info = index.folder / "beside" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(index.folder / "beside")
    faults = [finding.message for finding in _of_machine() if finding.state == "fault"]
    assert any("xgboost overwrites the files of xgboost-cpu;" in fault for fault in faults), faults
