"""The log under processes that die and processes that race."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paritygate.mesh.state import FileStateStore

WRITER = Path(__file__).resolve().parents[1] / "support" / "state_writer.py"


def start_writer(directory: Path, model: str, count: int, *cut: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(directory), model, str(count), *map(str, cut)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> list[tuple[int, int]]:
    """(generation, weight) of each change that the writer said was in force."""
    output, _ = process.communicate(timeout=60)
    lines = [line for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(generation), int(weight)) for generation, weight in map(str.split, lines)]


def check(store: FileStateStore, model: str, promised: list[tuple[int, int]]) -> None:
    """Everything that a writer promised is there, and the log is whole."""
    weights = {
        t.after.generation: t.after.rollout.routes[0].weights[0].basis_points for t in store.history(model)
    }
    assert [(generation, weights[generation] // 100) for generation, _ in promised] == promised


@pytest.mark.parametrize("cut", [0, 1, 17, 200, 300, 10**6])
def test_a_writer_that_dies_in_its_write_leaves_a_log_that_goes_on(tmp_path: Path, cut: int) -> None:
    first = start_writer(tmp_path, "digits", 3)
    promised = told(first)
    dying = start_writer(tmp_path, "other", 1, cut)
    assert (told(dying), dying.returncode) == ([], -9)
    survived = cut == 10**6
    store = FileStateStore(tmp_path)
    assert store.generation() == 3 + survived
    check(store, "digits", promised)
    again = told(start_writer(tmp_path, "more", 2))
    assert [generation for generation, _ in again] == [4 + survived, 5 + survived]
    check(FileStateStore(tmp_path), "digits", promised)


@pytest.mark.parametrize("rounds", [8, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_random_points_no_promised_change_is_lost(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(7)
    promised: list[tuple[int, int]] = []
    for _ in range(rounds):
        process = start_writer(tmp_path, "digits", 10_000)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        before = FileStateStore(tmp_path).generation()
        rest = told(process)
        promised += [(int(first.split()[0]), int(first.split()[1])), *rest]
        store = FileStateStore(tmp_path)
        assert store.generation() >= max(before, promised[-1][0])
        check(store, "digits", promised)
    # A writer may meet its own first change in force, which gives its generation again; none ever goes back.
    assert promised == sorted(promised)


def test_racing_writers_each_get_their_own_generations(tmp_path: Path) -> None:
    count = 30
    racers = [start_writer(tmp_path, f"model-{number}", count) for number in range(3)]
    store = FileStateStore(tmp_path)
    seen = [store.generation()]
    while any(process.poll() is None for process in racers):
        seen.append(store.generation())  # a reader without the lock never meets a damaged log
        time.sleep(0.005)
    promised = {f"model-{number}": told(process) for number, process in enumerate(racers)}
    generations = sorted(generation for found in promised.values() for generation, _ in found)
    assert generations == list(range(1, 3 * count + 1))
    assert seen == sorted(seen)
    for model, found in promised.items():
        check(store, model, found)


def test_a_dead_writer_frees_its_lock(tmp_path: Path) -> None:
    told(start_writer(tmp_path, "digits", 1, 5))
    start = time.monotonic()
    assert told(start_writer(tmp_path, "digits", 1)) == [(1, 1)]
    assert time.monotonic() - start < 5
