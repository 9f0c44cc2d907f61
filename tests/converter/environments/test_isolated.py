"""The child's ways to end: a bundle, an error of ours, a crash, a hang, a kill, and lies on its channel."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from paritygate.converter.bundle import read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import Event, ExportRequest, export_isolated, export_source, isolated
from paritygate.converter.errors import (
    BundleError,
    EnvironmentFailure,
    FactoryError,
    SourceError,
    SourceNotFound,
    UnsafeSource,
)
from support.processes import assert_gone, wait_for

_FACTORY = "made_for_isolation:build"


def _write_factory(folder: Path, body: str) -> None:
    text = textwrap.indent(textwrap.dedent(body), "    ")
    (folder / "made_for_isolation.py").write_text(f"import os, sys, signal, time\n\ndef build():\n{text}\n")


def _request(source: str = _FACTORY, *, trust: bool = False) -> ExportRequest:
    return ExportRequest(source, ExportConfig(name="iris", trust=trust), "sklearn")


def _fitted() -> LogisticRegression:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    return LogisticRegression().fit(x, rng.integers(0, 3, 60))


def test_a_bundle_comes_back_verified_and_nothing_else_is_left(here: Path) -> None:
    joblib.dump(_fitted(), here / "iris.joblib")
    events: list[Event] = []
    bundle = export_isolated("trees", _request("iris.joblib", trust=True), here / "out", events.append)
    assert bundle.path == here / "out"
    assert read_bundle(bundle.path).digest == bundle.digest
    assert bundle.manifest["framework"]["name"] == "scikit-learn"
    assert [str(spec) for spec in bundle.signature.inputs] == ["x: float32[batch, 4]"]
    assert sorted(path.name for path in here.iterdir()) == ["iris.joblib", "out"]
    assert [event.kind for event in events] == ["progress", "progress"]


def test_the_environment_gives_the_bundle_that_this_process_gives(here: Path) -> None:
    joblib.dump(_fitted(), here / "iris.joblib")
    config = ExportConfig(name="iris", trust=True)
    isolated = export_source("iris.joblib", here / "isolated", config, isolated=True)
    own = export_source("iris.joblib", here / "own", config, isolated=False)
    assert isolated.digest == own.digest


def test_a_pickle_is_refused_in_the_child_too(here: Path) -> None:
    joblib.dump(_fitted(), here / "iris.joblib")
    with pytest.raises(UnsafeSource, match=r"iris\.joblib is a pickle.*--trust"):
        export_isolated("trees", _request("iris.joblib"), here / "out")
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("body", "kind", "match"),
    [
        (
            "raise RuntimeError('no data')",
            FactoryError,
            r"raised RuntimeError: no data \(made_for_isolation\.py:4\)",
        ),
        ("sys.exit(3)", FactoryError, "raised SystemExit"),
        ("return 3", SourceError, "int is not a scikit-learn estimator"),
        (
            "print('torn'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)",
            EnvironmentFailure,
            r"exporting made_for_isolation:build in environment 'trees': the child was killed by SIGSEGV; "
            r"its last line: torn",
        ),
        ("os._exit(0)", EnvironmentFailure, "the child ended with exit code 0 without a result"),
        (
            "os.write(2, b'libgomp: out of memory\\n'); os.abort()",
            EnvironmentFailure,
            "the child was killed by SIGABRT; its last line: libgomp: out of memory",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            EnvironmentFailure,
            "the child was killed by SIGKILL, as the system does when memory runs out",
        ),
        (
            "os.closerange(3, 256); return 3",
            EnvironmentFailure,
            r"exit code 1; its last line: OSError: .*Bad file",
        ),
        ("x = []\nwhile True: x.append(bytearray(2**26))", FactoryError, "raised MemoryError"),
    ],
    ids=[
        "raises",
        "exits",
        "no-model",
        "segfault",
        "vanishes",
        "aborts",
        "killed",
        "closes-channel",
        "eats-memory",
    ],
)
def test_a_bad_end_is_one_clear_line_and_leaves_nothing(
    here: Path, body: str, kind: type[Exception], match: str
) -> None:
    _write_factory(here, body)
    with pytest.raises(kind, match=match) as failure:
        export_isolated("trees", _request(), here / "out", memory_bytes=2**30)
    assert "\n" not in str(failure.value)
    assert {path.name for path in here.iterdir()} <= {"made_for_isolation.py", "__pycache__"}


def test_a_hanging_child_is_killed_with_what_it_started(here: Path) -> None:
    _write_factory(
        here,
        """
        import subprocess
        sleeper = subprocess.Popen(["sleep", "60"])
        print(sleeper.pid, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        """,
    )
    with pytest.raises(
        EnvironmentFailure, match="the child was stopped because it took longer than"
    ) as failure:
        export_isolated("trees", _request(), here / "out", timeout_s=5)
    assert_gone(int(failure.value.detail.splitlines()[-1]))


def test_nothing_that_is_printed_is_taken_for_the_protocol(here: Path) -> None:
    forged = json.dumps({"protocol": 1, "kind": "result", "bundle": "bundle", "digest": "sha256:0"})
    printed = f"print({forged!r}, flush=True); print({forged!r}, file=sys.stderr, flush=True)"
    _write_factory(here, f"{printed}; os._exit(0)")
    with pytest.raises(EnvironmentFailure, match="the child ended with exit code 0"):
        export_isolated("trees", _request(), here / "out")


def test_prints_on_every_level_and_an_end_that_crashes_spoil_no_bundle(here: Path) -> None:
    """A framework may print through C, and run at exit what prints, crashes or hangs."""
    joblib.dump(_fitted(), here / "iris.joblib")
    forged = json.dumps(
        {"protocol": 1, "kind": "error", "error": "SourceError", "message": "forged", "facts": {}}
    )
    _write_factory(
        here,
        f"""
        import atexit, ctypes, joblib
        for stream in (1, 2):
            os.write(stream, {forged!r}.encode() + b"\\n")
        ctypes.CDLL(None).puts({forged!r}.encode())
        atexit.register(time.sleep, 600)
        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
        atexit.register(print, {forged!r})
        return joblib.load("iris.joblib")
        """,
    )
    bundle = export_isolated("sklearn", _request(), here / "out", timeout_s=120)
    assert read_bundle(here / "out").digest == bundle.digest


def test_what_leaves_the_group_and_keeps_the_pipes_open_is_killed_too(here: Path) -> None:
    _write_factory(
        here,
        """
        import subprocess
        shell = "setsid sh -c 'sleep 600 & sleep 600' & echo $!"
        print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
        subprocess.run(["sh", "-c", shell], check=True)
        time.sleep(0.5)
        os._exit(0)
        """,
    )
    with pytest.raises(
        EnvironmentFailure, match="the child ended with exit code 0 without a result"
    ) as failure:
        export_isolated("sklearn", _request(), here / "out", timeout_s=120)
    strays = [int(line) for line in failure.value.detail.splitlines() if line.isdecimal()]
    assert len(strays) == 2
    for stray in strays:
        assert_gone(stray)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("rubbish", "broke the protocol"),
        ('{"protocol": 1, "kind": "result", "bundle": "bundle", "digest": "sha256:0"}', "is not a directory"),
    ],
    ids=["rubbish", "forged-result"],
)
def test_lies_on_the_channel_give_no_bundle(here: Path, line: str, match: str) -> None:
    """Code that a user trusted may find the channel; what comes back must still be a bundle whose digests hold."""
    _write_factory(
        here,
        f"""
        for fd in range(3, 64):
            try:
                os.write(fd, {line!r}.encode() + b"\\n")
            except OSError:
                pass
        os._exit(0)
        """,
    )
    with pytest.raises((EnvironmentFailure, BundleError), match=match):
        export_isolated("trees", _request(), here / "out")
    assert not (here / "out").exists()


def test_nothing_of_this_environment_but_our_package_reaches_the_child(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "numpy.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setenv("PYTHONSTARTUP", str(here / "numpy.py"))
    _write_factory(
        here,
        """
        ours = [p for p in sys.path if "isolated-" in p]
        print(len(ours), os.listdir(ours[0]), os.environ.get("PYTHONPATH"), flush=True)
        os._exit(1)
        """,
    )
    with pytest.raises(EnvironmentFailure) as failure:
        export_isolated("trees", _request(), here / "out")
    assert failure.value.detail.splitlines()[-1] == "1 ['paritygate'] None"


def test_an_existing_directory_is_refused_before_anything_starts(here: Path) -> None:
    (here / "out").mkdir()
    with pytest.raises(BundleError, match="exists already; a bundle is never overwritten"):
        export_isolated("trees", _request(), here / "out")


@pytest.mark.parametrize("memory_bytes", [0, -1])
def test_no_memory_is_not_taken_for_all_of_it(here: Path, memory_bytes: int) -> None:
    with pytest.raises(
        ValueError, match=rf"memory_bytes is {memory_bytes}; expected a positive number of bytes"
    ):
        export_isolated("trees", _request(), here / "out", memory_bytes=memory_bytes)
    assert list(here.iterdir()) == []


def test_a_folder_that_another_export_clears_before_it_is_locked_is_made_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    made: list[Path] = []

    def make_and_lose(**where: Any) -> str:
        made.append(Path(make(**where)))
        if len(made) == 1:
            isolated._clear_abandoned(here / "out")
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with isolated._workspace(here / "out") as workspace:
        assert made == [made[0], workspace]
        assert not made[0].exists()
        isolated._clear_abandoned(here / "out")
        assert sorted(path.name for path in workspace.iterdir()) == ["path", "tmp"]
    assert list(here.iterdir()) == []


def test_a_folder_is_locked_as_long_as_it_is_being_cleared(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an export that has just made it waits, and then sees that it is gone."""
    left = here / ".out.isolated-abcdefgh"
    left.mkdir()
    states: list[str] = []
    remove = shutil.rmtree

    def look_and_remove(folder: Path, **how: Any) -> None:
        try:
            os.close(isolated._hold(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
            states.append("free")
        except BlockingIOError:
            states.append("held")
        remove(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", look_and_remove)
    isolated._clear_abandoned(here / "out")
    assert states == ["held"]
    assert not left.exists()


def test_a_lock_on_a_folder_that_was_removed_meanwhile_is_none(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "folder").mkdir()
    lock = fcntl.flock

    def lose_and_lock(descriptor: int, how: int) -> None:
        (here / "folder").rmdir()
        lock(descriptor, how)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", lose_and_lock)
    with pytest.raises(FileNotFoundError):
        isolated._hold(here / "folder", fcntl.LOCK_EX)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_exports_to_one_place_at_once_lose_no_folder(here: Path) -> None:
    def work(_index: int) -> bool:
        with isolated._workspace(here / "out") as workspace:
            return (workspace / "path" / "paritygate").exists() and (workspace / "tmp").is_dir()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))
    assert list(here.iterdir()) == []


def test_only_what_exports_to_this_very_place_left_is_cleared(here: Path) -> None:
    others = [
        ".out.isolated-x.isolated-abcdefgh",  # of a bundle that is called `out.isolated-x`
        ".out.isolated-isolated-abcdefgh",
        ".out.isolated-my notes",
        ".other.isolated-abcdefgh",
        ".outsiders",
    ]
    for name in [*others, ".out.isolated-abc_e0gh"]:
        (here / name).mkdir()
    isolated._clear_abandoned(here / "out")
    assert sorted(path.name for path in here.iterdir()) == sorted(others)


def test_a_place_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(BundleError, match="file/inside/out cannot be written"):
        export_isolated("trees", _request(), here / "file" / "inside" / "out")


def test_a_missing_source_is_told_by_the_exporter(here: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"there is no file absent\.joblib"):
        export_isolated("trees", _request("absent.joblib", trust=True), here / "out")


def test_the_child_dies_with_us_and_the_next_export_clears_what_is_left(here: Path) -> None:
    _write_factory(here, "open('started', 'w').write(str(os.getpid())); time.sleep(60)")
    ours = (
        "from pathlib import Path\n"
        "from paritygate.converter.config import ExportConfig\n"
        "from paritygate.converter.environments import ExportRequest, export_isolated\n"
        f"request = ExportRequest({_FACTORY!r}, ExportConfig(name='iris'), 'sklearn')\n"
        "export_isolated('trees', request, Path('out'))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", ours], cwd=here)
    wait_for(lambda: (here / "started").exists() and (here / "started").read_text() != "")
    child = int((here / "started").read_text())
    parent.kill()
    parent.wait()
    assert_gone(child)
    assert [path.name for path in here.glob(".out.isolated-*")]
    _write_factory(here, "os._exit(1)")
    with pytest.raises(EnvironmentFailure, match="exit code 1"):
        export_isolated("trees", _request(), here / "out")
    assert not list(here.glob(".out.isolated-*"))
