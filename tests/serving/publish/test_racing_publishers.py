"""Publishers that run at the same time get distinct numbers, and none is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.serving.publish import Published, publish_bundle
from support.bundles import BundleSet, linear_bundle
from support.killed import start_in_child, wait_for
from support.repositories import assert_clean, assert_whole, listed

NUM_RIVALS = 4


@pytest.mark.parametrize("known", [False, True], ids=["first version", "known model"])
def test_racing_processes_get_distinct_numbers(
    known: bool, bundles: BundleSet, repository: Path, tmp_path: Path
) -> None:
    if known:
        publish_bundle(bundles.proven.path, repository)
    rivals = [linear_bundle(tmp_path / f"rival{n}", seed=10 + n, num_probes=1) for n in range(NUM_RIVALS)]

    def publish(path: Path) -> Callable[[], Published]:
        return lambda: publish_bundle(path, repository, allow_unproven=True)

    assert all(map(wait_for, [start_in_child(publish(bundle.path)) for bundle in rivals]))

    before = 1 if known else 0
    assert listed(repository, "linear") == tuple(range(1, NUM_RIVALS + before + 1))
    digests = {publish_bundle(bundle.path, repository, allow_unproven=True).version for bundle in rivals}
    assert digests == set(range(before + 1, NUM_RIVALS + before + 1)), "a rival's bundle was lost"
    assert_whole(repository, "linear")
    assert_clean(repository, "linear")


def test_racing_processes_with_one_bundle_publish_it_once(bundles: BundleSet, repository: Path) -> None:
    pids = [
        start_in_child(lambda: publish_bundle(bundles.proven.path, repository)) for _ in range(NUM_RIVALS)
    ]
    assert all(map(wait_for, pids))
    assert listed(repository, "linear") == (1,)
    assert_clean(repository, "linear")


def test_racing_threads_get_distinct_numbers(bundles: BundleSet, repository: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        published: list[Published] = []
        threads = [
            threading.Thread(target=lambda b=bundle: published.append(publish_bundle(b.path, repository)))
            for bundle in (bundles.proven, bundles.other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(p.version for p in published) == [1, 2]
    assert listed(repository, "linear") == (1, 2)


def test_models_do_not_wait_for_each_other(bundles: BundleSet, repository: Path) -> None:
    from paritygate.serving.publish.files import locked_directory

    publish_bundle(bundles.proven.path, repository)
    with locked_directory(repository / "linear", timeout_s=1.0):
        other = publish_bundle(bundles.other.path, repository, model_name="other", lock_timeout_s=0.1)
    assert other.version == 1
