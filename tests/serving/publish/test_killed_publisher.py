"""A publisher dies before each of its file-system calls in turn; what is left must be the old state or the new."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle
from paritygate.serving.publish import publish_bundle
from paritygate.serving.publish.layout import UNFINISHED_MARKER, staging_prefix
from support.bundles import linear_bundle
from support.killed import run_in_child, start_in_child, wait_for
from support.repositories import assert_clean, assert_whole, fingerprint, listed

MODEL = "linear"
MOST_CALLS = 400


@dataclass(frozen=True)
class Bundles:
    first: Bundle
    second: Bundle
    third: Bundle


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("bundles")
    return Bundles(*(linear_bundle(folder / str(seed), seed=seed, num_probes=1) for seed in range(3)))


def publish(bundle: Bundle, repository: Path) -> None:
    publish_bundle(bundle.path, repository, allow_unproven=True)


def empty_repository(bundles: Bundles, folder: Path) -> Path:
    (folder / "repository").mkdir(parents=True)
    return folder / "repository"


def repository_with_one_version(bundles: Bundles, folder: Path) -> Path:
    repository = empty_repository(bundles, folder)
    publish(bundles.first, repository)
    return repository


def repository_with_leftovers(bundles: Bundles, folder: Path) -> Path:
    """One live version, a half one, an empty one and a staging folder of publishers that died."""
    repository = repository_with_one_version(bundles, folder)
    half = repository / MODEL / "2"
    shutil.copytree(bundles.second.path, half)
    (half / "model.onnx").write_bytes(b"half")
    (half / UNFINISHED_MARKER).touch()
    (repository / MODEL / "3").mkdir()
    (folder / f"{staging_prefix(repository)}abandoned" / "1").mkdir(parents=True)
    return repository


SCENES = pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(empty_repository, id="first version"),
        pytest.param(repository_with_one_version, id="second version"),
        pytest.param(repository_with_leftovers, id="after earlier kills"),
    ],
)


@SCENES
def test_killed_before_any_call_leaves_the_old_state_or_the_new(
    prepare: Callable[[Bundles, Path], Path], bundles: Bundles, tmp_path: Path
) -> None:
    new_states = 0
    for k in range(1, MOST_CALLS):
        folder = tmp_path / str(k)
        repository = prepare(bundles, folder)
        old = listed(repository, MODEL)
        live = {version: fingerprint(repository / MODEL / str(version)) for version in old}

        finished = run_in_child(lambda path=repository: publish(bundles.second, path), kill_before=k)

        now = listed(repository, MODEL)
        assert now == old or now[:-1] == old, f"killed before call {k}: {old} became {now}"
        assert_whole(repository, MODEL)
        for version, before in live.items():
            assert fingerprint(repository / MODEL / str(version)) == before, f"killed before call {k}"
        new_states += now != old

        publish(bundles.second, repository)
        after = listed(repository, MODEL)
        assert len(after) == len(old) + 1, f"killed before call {k}: published twice or not at all: {after}"
        assert_whole(repository, MODEL)
        publish(bundles.third, repository)
        assert_clean(repository, MODEL)
        shutil.rmtree(folder)
        if finished:
            break
    else:
        pytest.fail(f"the publisher made more than {MOST_CALLS} calls")
    assert k > 20, "the kill points were not reached"
    assert new_states >= 2, "no kill came after the commit point"


@SCENES
def test_killed_publisher_does_not_harm_one_that_races_it(
    prepare: Callable[[Bundles, Path], Path], bundles: Bundles, tmp_path: Path
) -> None:
    for k in range(1, MOST_CALLS, 3):
        folder = tmp_path / str(k)
        repository = prepare(bundles, folder)
        old = listed(repository, MODEL)

        rival = start_in_child(lambda path=repository: publish(bundles.third, path))
        finished = run_in_child(lambda path=repository: publish(bundles.second, path), kill_before=k)
        assert wait_for(rival), "the rival failed"

        now = listed(repository, MODEL)
        assert now[: len(old)] == old
        assert len(now) - len(old) in ((2,) if finished else (1, 2)), (
            f"killed before call {k}: {old} became {now}"
        )
        assert_whole(repository, MODEL)
        publish(bundles.second, repository)
        assert len(listed(repository, MODEL)) == len(old) + 2
        shutil.rmtree(folder)
        if finished:
            break
    else:
        pytest.fail(f"the publisher made more than {MOST_CALLS} calls")


def test_number_that_half_existed_is_never_used_again(bundles: Bundles, tmp_path: Path) -> None:
    repository = repository_with_one_version(bundles, tmp_path)
    half_numbers = []
    for _ in range(3):
        run_in_child(lambda: publish(bundles.second, repository), kill_before=12)
        half_numbers.append(max(int(p.name) for p in (repository / MODEL).iterdir() if p.name.isdigit()))
    publish(bundles.second, repository)
    assert half_numbers == [2, 3, 4]
    assert listed(repository, MODEL) == (1, 5)
