"""Seen with strace: nothing goes live before all of it is on the disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle
from paritygate.serving.publish import publish_bundle
from support.bundles import proven_bundle
from support.repositories import listed
from support.traced import publish_traced, require_strace

pytestmark = pytest.mark.real

WRITE = re.compile(r"write\(\d+<(?P<path>[^>]+)>")
SYNC = re.compile(r"fsync\(\d+<(?P<path>[^>]+)>")
CREATE = re.compile(r'openat\([^,]+, "(?P<path>[^"]+)", [^)]*O_CREAT')
MKDIR = re.compile(r'mkdir\("(?P<path>[^"]+)"')
RENAME = re.compile(r'rename\("(?P<source>[^"]+)", "(?P<target>[^"]+)"\)\s+= 0')
UNLINK = re.compile(r'unlink\("(?P<path>[^"]+)"\)\s+= 0')


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    require_strace()
    folder = tmp_path_factory.mktemp("bundles")
    first, second = (proven_bundle(folder / str(seed), seed=seed, batch=2) for seed in (1, 2))
    return first, second


def where(calls: list[str], pattern: re.Pattern[str], path: str) -> list[int]:
    return [n for n, call in enumerate(calls) if (m := pattern.match(call)) and m["path"] == path]


def assert_flushed_before(calls: list[str], commit: int, below: str) -> None:
    """Every file and folder made below a path was flushed after its last change and before the commit."""
    files = {
        m["path"] for call in calls[:commit] if (m := CREATE.match(call)) and m["path"].startswith(below)
    }
    removed = {m["path"] for call in calls[:commit] if (m := UNLINK.match(call))}
    assert len(files) > 10, "the trace shows no copying"
    for path in files - removed:
        last_write = max(where(calls[:commit], WRITE, path), default=max(where(calls[:commit], CREATE, path)))
        assert any(n > last_write for n in where(calls[:commit], SYNC, path)), f"{path} is not flushed"
    folders = {str(Path(path).parent) for path in files}
    for folder in folders:
        entries = [
            n
            for path in files
            for n in where(calls[:commit], CREATE, path)
            if str(Path(path).parent) == folder
        ]
        entries += [
            n
            for path in removed
            for n in where(calls[:commit], UNLINK, path)
            if str(Path(path).parent) == folder
        ]
        assert any(n > max(entries) for n in where(calls[:commit], SYNC, folder)), f"{folder} is not flushed"


def commit_of(calls: list[str], target: str) -> int:
    (commit,) = [n for n, call in enumerate(calls) if (m := RENAME.match(call)) and m["target"] == target]
    return commit


def test_first_version_is_flushed_before_its_one_rename(both: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    calls = publish_traced(both[0].path, repository, tmp_path / "log").calls
    commit = commit_of(calls, str(repository / "linear"))
    match = RENAME.match(calls[commit])
    assert match is not None
    assert_flushed_before(calls, commit, match["source"])
    assert where(calls, SYNC, match["source"])[-1] < commit, "the folder that is renamed is not flushed"
    assert where(calls, SYNC, str(repository))[-1] > commit, "the rename itself is not flushed"
    assert listed(repository, "linear") == (1,)


def test_next_version_is_flushed_before_it_is_listed(both: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_bundle(both[0].path, repository)
    calls = publish_traced(both[1].path, repository, tmp_path / "log").calls
    model_dir = str(repository / "linear")
    commit = commit_of(calls, f"{model_dir}/config.pbtxt")
    assert_flushed_before(calls, commit, f"{model_dir}/2")
    reserve = where(calls, MKDIR, f"{model_dir}/2")
    assert any(reserve[0] < n < commit for n in where(calls, SYNC, model_dir)), (
        "the number itself is not flushed"
    )
    match = RENAME.match(calls[commit])
    assert match is not None
    (dated,) = [n for n, call in enumerate(calls) if call.startswith("utimensat") and match["source"] in call]
    assert dated < where(calls, SYNC, match["source"])[-1] < commit, (
        "the new config is not flushed with its date"
    )
    assert where(calls, SYNC, model_dir)[-1] > commit, "the commit itself is not flushed"
    live = [
        call for call in calls if f"{model_dir}/1/" in call and re.match(r"(write|unlink|rename|mkdir)", call)
    ]
    assert live == [], "a live version was touched"
    changes = re.compile(r"(mkdir|unlink|rename|rmdir|utimensat|chmod)")
    tail = [call for call in calls[commit + 1 :] if changes.match(call) and model_dir in call]
    assert tail == [], "the model's folder was changed after the commit"
