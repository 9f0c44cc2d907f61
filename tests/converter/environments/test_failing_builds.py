"""Builds that cannot succeed, with the real pip: one clear line each, and nothing left of them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from paritygate.converter.environments import list_environments, sync
from paritygate.converter.environments.pip_output import explain
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.processes import Ended
from support.environments import TinyIndex


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyIndex:
    return TinyIndex(tmp_path, monkeypatch)


def _refused(index: TinyIndex, match: str, **options: float) -> str:
    """The one line with which a build is refused; nothing of it is left."""
    with pytest.raises(EnvironmentFailure, match=match) as failure:
        sync("tiny", **options)
    text = str(failure.value)
    assert "\n" not in text
    assert not index.spec.directory.exists()
    assert {status.state for status in list_environments() if status.name == "tiny"} == {"absent"}
    return text


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (
            "raise ImportError('needs another processor')",
            r"importing tinyframework ended with exit code 1 \(ImportError: needs another processor\)\. "
            r"The pinned packages do not run on this machine",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            r"importing tinyframework was killed by SIGILL\. The pinned packages do not run",
        ),
    ],
    ids=["import-fails", "crashes-on-import"],
)
def test_a_wheel_that_does_not_run_here_is_told_at_the_build(index: TinyIndex, body: str, match: str) -> None:
    index.offer(body=body)
    _refused(index, match)


def test_an_index_without_the_pinned_version_says_which_it_has(index: TinyIndex) -> None:
    index.offer("1.0")
    index.offer("1.1")
    index.pin("tinyframework==9.9")
    text = _refused(
        index, r"tinyframework==9\.9 is pinned, but pip's index has only 1\.0, 1\.1\. Check pip's index"
    )
    assert "PARITYGATE_PIP_ARGS" in text
    assert text.endswith("then run `paritygate env sync tiny`.")


def test_an_index_without_the_package_says_so(index: TinyIndex) -> None:
    _refused(
        index,
        r"tinyframework==1\.0 is pinned, but pip's index has no wheel of it for this Python and machine",
    )


def test_a_locked_wheel_is_installed(index: TinyIndex) -> None:
    index.lock(index.offer())
    assert sync("tiny").packages == {"tinyframework": "1.0"}


def test_other_bytes_than_the_locked_ones_are_never_installed(index: TinyIndex) -> None:
    """The planted wheel has the same name and version, and would say that it ran."""
    ran = index.folder / "ran"
    index.lock(index.offer())
    index.offer(body=f"open({str(ran)!r}, 'w').close()")
    text = _refused(
        index,
        r"pip's index gives other bytes of tinyframework==1\.0 than those that are locked "
        r"\(their sha256 is [0-9a-f]{12}\.\.\.\); nothing was installed\.",
    )
    assert "tiny.txt" in text
    assert not ran.exists()


def test_a_package_beside_the_locked_ones_is_refused(index: TinyIndex) -> None:
    """Once one pin is locked, pip takes none that is not."""
    index.offer(name="tinyhelper")
    index.lock(index.offer())
    index._requirements.write_text(index._requirements.read_text() + "tinyhelper==1.0\n")
    _refused(index, r"Hashes are required in --require-hashes mode")


def test_an_index_that_cannot_be_reached_is_told_as_that(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    _forget_pip_settings(monkeypatch)
    monkeypatch.setenv(
        "PARITYGATE_PIP_ARGS", f"--index-url http://127.0.0.1:{port}/simple --retries 1 --timeout 2"
    )
    text = _refused(index, r"pip install failed: the package index cannot be reached \(Connection refused\)")
    assert "--no-index --find-links FOLDER" in text


def test_a_host_without_an_address_is_told_as_that(index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_pip_settings(monkeypatch)
    monkeypatch.setenv("PARITYGATE_PIP_ARGS", "--index-url https://index.invalid/simple --retries 1")
    _refused(
        index, r"the package index cannot be reached \((Name or service not known|Temporary failure in name)"
    )


def test_an_index_that_pip_does_not_trust_is_told_as_that(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget_pip_settings(monkeypatch)
    monkeypatch.setenv("PARITYGATE_PIP_ARGS", "--index-url http://index.invalid/simple")
    _refused(
        index,
        r"pip takes nothing from index\.invalid, which it reaches without encryption\. .*--trusted-host",
    )


def _forget_pip_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_pip_arguments_that_pip_does_not_know_are_told(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITYGATE_PIP_ARGS", "--no-such-option")
    _refused(index, r"pip install ended with exit code 2 \(no such option: --no-such-option\)")


def test_a_constraint_of_the_users_own_project_moves_no_pin(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index.folder / "constraints.txt").write_text("tinyframework==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(index.folder / "constraints.txt"))
    index.offer()
    assert sync("tiny").packages == {"tinyframework": "1.0"}


def test_a_python_without_pip_is_told(index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    _refused(index, r"has no pip\. Run `.* -m ensurepip`, then `paritygate env sync tiny`\.")


def test_a_hanging_step_is_stopped(index: TinyIndex) -> None:
    index.offer(body="import time; time.sleep(600)")
    _refused(index, "importing tinyframework was stopped because it took longer than", timeout_s=20)


def test_a_folder_that_cannot_be_written_is_named(index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    (index.folder / "file").touch()
    monkeypatch.setenv("PARITYGATE_ENV_DIR", str(index.folder / "file" / "inside"))
    with pytest.raises(EnvironmentFailure, match=r"cannot be written .*Set PARITYGATE_ENV_DIR"):
        sync("tiny")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("size=256k", r"failed: there is no space left on the disk of \S+/environments\. Free some, or set"),
        ("ro,size=1m", r"environments cannot be written \(Read-only file system\)\. Set PARITYGATE_ENV_DIR"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_takes_nothing_more_is_told(index: TinyIndex, options: str, match: str) -> None:
    index.offer(body="x = 1\n" * 100_000)
    folder = index.folder / "environments"
    folder.mkdir()
    builder = index.build_in_another_process(*_with_a_disk(folder, options))
    said = builder.communicate(timeout=120)[0]
    assert builder.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith("failure: ")

    assert re.search(match, last), last


def _with_a_disk(folder: Path, options: str) -> list[str]:
    """A command that starts another one in a mount namespace in which `folder` is a small disk."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    mount = f'mount -t tmpfs -o {options} tmpfs "{folder}"'
    apart = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*apart, mount], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mounts in a namespace of one's own")
    return [*apart, f'{mount} && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (
            f"ERROR: Could not install packages due to an OSError: [Errno {errno.EACCES}] Permission denied: "
            "'/srv/environments/tiny/lib'",
            r"pip install failed: something may not be written \(ERROR: .*'/srv/environments/tiny/lib'\)\. Check",
        ),
        (
            f"OSError: [Errno {errno.EDQUOT}] Disk quota exceeded",
            r"pip install failed: there is no space left on the disk of /srv/environments",
        ),
        (
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'ReadTimeoutError("
            "\"HTTPSConnectionPool(host='index.invalid', port=443): Read timed out. (read timeout=15)\")'\n"
            "ERROR: Could not find a version that satisfies the requirement tiny==1 (from versions: none)",
            r"the package index cannot be reached \(Read timed out\)",
        ),
        ("", r"pip install ended with exit code 1\. Check the network"),
    ],
    ids=["no-permission", "quota", "time-out", "says-nothing"],
)
def test_what_pip_says_is_put_in_plain_words(said: str, match: str, index: TinyIndex) -> None:

    ended = Ended(1, timed_out=False, tail=said, seconds=1.0)
    sentences = explain(index.spec, Path("/srv/environments/tiny-0"), "pip install", ended, said.splitlines())
    assert re.search(match, " ".join(sentences)), sentences
