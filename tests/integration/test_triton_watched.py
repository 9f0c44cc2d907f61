"""A publisher is killed at every file-system call in turn while real Tritons watch, and restart after each."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.serving.publish import publish_bundle
from paritygate.serving.publish.layout import staging_prefix
from support.bundles import linear_bundle
from support.killed import run_in_child, start_in_child, wait_for
from support.repositories import assert_clean, assert_whole, listed, state_digest
from support.traced import publish_traced, rehearse, require_strace
from support.triton import ONE_INSTANCE, Triton, TritonDied, running_triton

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

MODEL = "linear"
POLL_S = 1
RACED = (12, 30)
"""At these kills a second publisher runs at the same time."""
NO_COMPLETION = ("--disable-auto-complete-config",)
"""Our configs are whole; completing them would start one more process for every load."""


class BundleSource:
    """Gives bundles that were never published, all of one signature."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._current: Bundle | None = None

    def fresh(self) -> Bundle:
        """A bundle that nobody was handed before."""
        self._made += 1
        return linear_bundle(self._folder / f"bundle{self._made}", seed=self._made, batch=2, num_probes=1)

    def same(self) -> Bundle:
        """The bundle of the last call, until `used` is called."""
        if self._current is None:
            self._current = self.fresh()
        return self._current

    def used(self) -> None:
        """The bundle went into a repository; `same` gives another from now on."""
        self._current = None


def state_class(repository: Path, model: str) -> str:
    """States that differ only in the number of a half version, which is another after each kill, count as one."""
    live = listed(repository, model)
    folders = [path for path in (repository / model).glob("[0-9]*") if int(path.name) not in live]
    return " ".join([model, *map(str, live), *sorted(map(state_digest, folders))])


@dataclass
class Watcher:
    """Two Tritons over one repository: one polls it, one is told to load; both are asked throughout."""

    polling: Triton
    explicit: Triton
    repository: Path
    seen: set[str]
    asked: Counter[str]

    def look(self, model: str) -> None:
        """Let both servers see the repository as it is now, if they did not see this very state before."""
        state = state_class(self.repository, model)
        if state in self.seen:
            return
        self.seen.add(state)
        if (self.repository / model).exists():
            with closing(self.explicit.client()) as client:
                client.load_model(model)
        time.sleep(POLL_S + 0.2)
        for name in ("polling", "explicit"):
            self._ask(name)

    def _ask(self, name: str) -> None:
        """The first live version answers; a server that dropped it for a moment would fail here."""
        if listed(self.repository, MODEL):
            with closing(getattr(self, name).client()) as client:
                assert infer(client, MODEL, 1).shape == (2, 3)
            self.asked[name] += 1

    def assert_calm(self, model: str, *, instances: int) -> None:
        """Every listed version is ready, began once and no more, and nothing else was ever begun or unloaded."""
        versions = listed(self.repository, model)
        with closing(self.explicit.client()) as client:
            client.load_model(model)
        for server in (self.polling, self.explicit):
            server.wait_ready(model, versions)
            assert Counter(server.loads(model)) == dict.fromkeys(versions, instances)
            assert server.unloads(model) == []
            assert "failed to" not in server.log().replace("Failed to initialize NVML", "")


def infer(client: Any, model: str, version: int) -> np.ndarray:
    from tritonclient.http import InferInput

    tensor = InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 4), np.float32))
    return np.asarray(client.infer(model, [tensor], model_version=str(version)).as_numpy("y"))


@contextmanager
def watched(repository: Path, workdir: Path, *, load: str | None = None) -> Iterator[Watcher]:
    with ExitStack() as stack:
        polling = stack.enter_context(
            running_triton(repository, workdir / "poll", mode="poll", poll_s=POLL_S, options=NO_COMPLETION)
        )
        explicit = stack.enter_context(
            running_triton(
                repository,
                workdir / "explicit",
                mode="explicit",
                load=[load] if load else [],
                options=NO_COMPLETION,
            )
        )
        yield Watcher(polling, explicit, repository, set(), Counter())


def remove_unlisted(repository: Path, model: str) -> None:
    """Make every kill start from the same calls; that the next publisher sweeps is tested without servers."""
    for number in {path.name for path in (repository / model).glob("[0-9]*")} - set(
        map(str, listed(repository, model))
    ):
        shutil.rmtree(repository / model / number)
    for path in repository.parent.glob(f"{staging_prefix(repository)}*"):
        shutil.rmtree(path)


def one_instance(repository: Path, model: str) -> None:
    """The operator's edit, which every later publish has to keep."""
    path = repository / model / "config.pbtxt"
    path.write_text(path.read_text() + ONE_INSTANCE)


def test_watching_servers_never_load_half_a_version_nor_a_live_one_again(tmp_path: Path) -> None:
    require_strace()
    repository = tmp_path / "repository"
    bundles = BundleSource(tmp_path)
    publish_bundle(bundles.fresh().path, repository, allow_unproven=True)
    one_instance(repository, MODEL)

    with watched(repository, tmp_path / "servers", load=MODEL) as watcher:
        kills = 0
        while True:
            old = listed(repository, MODEL)
            points = rehearse(bundles.same().path, repository, tmp_path, allow_unproven=True)
            if kills == len(points):
                break
            rival = None
            if kills in RACED:
                path = bundles.fresh().path
                rival = start_in_child(
                    lambda path=path: publish_bundle(path, repository, allow_unproven=True)
                )
            publish_traced(
                bundles.same().path, repository, tmp_path / "log", kill_at=points[kills], allow_unproven=True
            )
            kills += 1
            added = 0 if rival is None else 1
            assert rival is None or wait_for(rival)
            assert_whole(repository, MODEL)
            now = listed(repository, MODEL)
            assert now[: len(old)] == old
            assert len(now) - len(old) in (added, added + 1)
            if len(now) - len(old) > added:
                bundles.used()
            watcher.look(MODEL)
            remove_unlisted(repository, MODEL)
        publish_bundle(bundles.fresh().path, repository, allow_unproven=True)
        assert_clean(repository, MODEL)
        watcher.assert_calm(MODEL, instances=1)
        with closing(watcher.polling.client()) as client:
            statistics = client.get_inference_statistics(MODEL, "1")["model_stats"][0]
        assert statistics["inference_count"] == watcher.asked["polling"] > 10, (
            "version 1 began anew, or was not asked"
        )
    assert kills > 30, "the kill points were not reached"
    assert len(watcher.seen) > 10, "the servers did not see the states in between"


def test_watching_servers_see_a_new_model_whole_or_not_at_all(tmp_path: Path) -> None:
    require_strace()
    repository = tmp_path / "repository"
    repository.mkdir()
    bundles = BundleSource(tmp_path)
    models = [f"model{n}" for n in range(20)]
    appeared: list[str] = []

    with watched(repository, tmp_path / "servers") as watcher:
        kills = 0
        while True:
            model = models[len(appeared)]
            options: dict[str, Any] = {"allow_unproven": True, "model_name": model}
            points = rehearse(bundles.same().path, repository, tmp_path, **options)
            if kills == len(points):
                break
            publish_traced(
                bundles.same().path, repository, tmp_path / "log", kill_at=points[kills], **options
            )
            kills += 1
            if (repository / model).exists():
                appeared.append(model)
            assert sorted(path.name for path in repository.iterdir()) == appeared
            watcher.look(model)
        for model in appeared:
            watcher.assert_calm(model, instances=2)
        assert set(watcher.polling.versions()) == set(appeared)
    assert kills > 20, "the kill points were not reached"
    assert 1 <= len(appeared) < 10


def test_control_a_temporary_file_in_the_models_folder_does_load_live_versions_again(tmp_path: Path) -> None:
    """What the publisher avoids: without this, the tests above could not fail."""
    repository = tmp_path / "repository"
    bundles = BundleSource(tmp_path)
    publish_bundle(bundles.fresh().path, repository, allow_unproven=True)
    one_instance(repository, MODEL)
    with running_triton(
        repository, tmp_path / "t", mode="poll", poll_s=POLL_S, options=NO_COMPLETION
    ) as server:
        server.wait_ready(MODEL, [1])
        assert server.loads(MODEL) == [1]
        (repository / MODEL / ".config.pbtxt.partial").write_text("half")
        deadline = time.monotonic() + 30
        while server.loads(MODEL) != [1, 1]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_restart_comes_up_from_every_state_that_a_kill_can_leave(tmp_path: Path) -> None:
    """Every distinct state of the model's folder, each as a model of its own in one repository, in one start.

    Triton looks at each model's folder by itself, and in mode none one that cannot be loaded ends the whole start;
    so one start of all states says what a start of each would say.
    """
    everything = tmp_path / "everything"
    everything.mkdir()
    states = collect_states(tmp_path / "work", everything)
    assert len(states) > 10
    with running_triton(everything, tmp_path / "servers", options=NO_COMPLETION) as server:
        for model, versions in states.items():
            server.wait_ready(model, versions, timeout_s=120.0)
        assert {model: sorted(set(server.loads(model))) for model in states} == states
        with closing(server.client()) as client:
            for model, versions in states.items():
                for version in versions:
                    assert infer(client, model, version).shape == (2, 3)


def collect_states(work: Path, everything: Path) -> dict[str, list[int]]:
    """Kill a publisher of a second version before each of its calls, and keep what differs: {model: versions}."""
    work.mkdir()
    bundles = BundleSource(work)
    first, second = bundles.fresh(), bundles.fresh()
    base = work / "base"
    publish_bundle(first.path, base, allow_unproven=True)
    one_instance(base, MODEL)
    states: dict[str, list[int]] = {}
    seen: set[str] = set()
    for k in range(1, 400):
        repository = work / "now" / "repository"
        shutil.copytree(base, repository)
        finished = run_in_child(
            lambda path=repository: publish_bundle(second.path, path, allow_unproven=True), kill_before=k
        )
        state = state_digest(repository)
        if state not in seen:
            seen.add(state)
            model = f"killed_before_{k}"
            shutil.copytree(repository / MODEL, everything / model)
            config = everything / model / "config.pbtxt"
            config.write_text(config.read_text().replace(f'name: "{MODEL}"', f'name: "{model}"'))
            states[model] = list(listed(repository, MODEL))
        shutil.rmtree(repository.parent)
        if finished:
            return states
    raise AssertionError("the publisher makes more calls than expected")


def test_control_a_folder_at_the_root_ends_a_restart(tmp_path: Path) -> None:
    """Why staging lies outside: even a hidden, empty folder is taken for a model."""
    bundles = BundleSource(tmp_path)
    publish_bundle(bundles.fresh().path, tmp_path / "repository", allow_unproven=True)
    (tmp_path / "repository" / ".staging").mkdir()
    with pytest.raises(TritonDied, match="failed to load all models"):
        with running_triton(tmp_path / "repository", tmp_path / "servers"):
            pass
