from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from paritygate.mesh import files
from paritygate.mesh.errors import MeshError, StateBusy, StateCorrupt, StateError, StateUnwritable
from paritygate.mesh.state import Acknowledgement, Change, FileStateStore, Phase, RolloutState
from support.rollouts import rollout


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> FileStateStore:
    return FileStateStore(tmp_path / "state", clock=clock)


def log_of(store: FileStateStore) -> Path:
    return store.directory / "log.jsonl"


# --- applying and reading -------------------------------------------------------------------------------


def test_an_empty_store_has_nothing_and_creates_nothing(store: FileStateStore) -> None:
    assert (store.generation(), store.models(), store.read("digits"), store.history("digits")) == (
        0,
        (),
        None,
        (),
    )
    assert not store.directory.exists()


def test_apply_gives_growing_generations_over_all_models(store: FileStateStore) -> None:
    assert store.apply(rollout("{1: 90, 2: 10}"), actor="ann") == 1
    assert store.apply(rollout(model="other"), actor="ann") == 2
    assert store.apply(rollout("{1: 50, 2: 50}"), actor="ann") == 3
    assert (store.generation(), store.models()) == (3, ("digits", "other"))


def test_what_is_applied_is_read_by_another_process_view(store: FileStateStore) -> None:
    store.apply(rollout("{1: 66.67, 2: 33.33}"), actor="ann")
    expected = RolloutState(rollout("{1: 66.67, 2: 33.33}"), 1, Phase.RAMPING, None)
    assert FileStateStore(store.directory).read("digits") == expected


def test_a_reader_sees_what_comes_after_it_looked(store: FileStateStore) -> None:
    reader = FileStateStore(store.directory)
    assert reader.generation() == 0
    store.apply(rollout(), actor="ann")
    assert reader.generation() == 1


def test_applying_what_is_in_force_changes_nothing(store: FileStateStore) -> None:
    assert store.apply(rollout(), actor="ann") == store.apply(rollout(), actor="bob") == 1
    assert len(store.history("digits")) == 1


@pytest.mark.parametrize(
    ("weights", "phase"), [("{1: 100, 2: 0}", Phase.STEADY), ("{1: 99, 2: 1}", Phase.RAMPING)]
)
def test_the_phase_follows_from_the_weights(store: FileStateStore, weights: str, phase: Phase) -> None:
    store.apply(rollout(weights), actor="ann")
    assert (found := store.read("digits"))
    assert found.phase is phase


def test_the_stable_version_before_is_remembered_until_it_changes_again(store: FileStateStore) -> None:
    previous = []
    for weights, stable in (("{1: 100}", 1), ("{2: 100}", 2), ("{2: 90, 3: 10}", 2), ("{3: 100}", 3)):
        store.apply(rollout(weights, stable=stable), actor="ann")
        found = store.read("digits")
        assert found is not None
        previous.append(found.previous)
    assert previous == [None, 1, 1, 2]


def test_history_tells_who_when_from_and_to(store: FileStateStore, clock: Clock) -> None:
    store.apply(rollout("{1: 100}"), actor="ann")
    clock.now = 2000.5
    store.apply(rollout("{1: 90, 2: 10}"), actor="bob")
    store.apply(rollout(model="other"), actor="eve")
    first, second = store.history("digits")
    assert (first.actor, first.at, first.before) == ("ann", 1000.0, None)
    assert (second.action, second.actor, second.at) == ("apply", "bob", 2000.5)
    assert (second.before, second.after) == (first.after, store.read("digits"))


def test_a_refusal_while_deciding_writes_nothing(store: FileStateStore) -> None:
    def refuse(before: RolloutState | None) -> Change:
        raise MeshError("no")

    with pytest.raises(MeshError, match="no"):
        store.update("digits", refuse, actor="ann")
    assert store.generation() == 0
    assert store.apply(rollout(), actor="ann") == 1  # and the lock is free again


def test_a_change_for_another_model_is_refused(store: FileStateStore) -> None:
    change = Change("apply", rollout(model="other"), Phase.RAMPING, None)
    with pytest.raises(ValueError, match="the change is for model 'other', not 'digits'"):
        store.update("digits", lambda before: change, actor="ann")


@pytest.mark.parametrize("actor", ["Zoë", 'quote " and \\', "line\nbreak", "\udcff", "x" * 10_000])
def test_any_actor_can_be_recorded(store: FileStateStore, actor: str) -> None:
    store.apply(rollout(), actor=actor)
    assert FileStateStore(store.directory).history("digits")[0].actor == actor


def test_a_longer_log_costs_only_its_new_lines(store: FileStateStore) -> None:
    for step in (10, 20, 30):
        store.apply(rollout(f"{{1: {100 - step}, 2: {step}}}"), actor="ann")
    reader = FileStateStore(store.directory)
    before = reader.history("digits")
    store.apply(rollout("{1: 60, 2: 40}"), actor="ann")
    after = reader.history("digits")
    assert len(after) == 4
    assert all(new.after is old.after for new, old in zip(after, before, strict=False))


def test_a_log_that_was_replaced_is_read_from_the_start(store: FileStateStore, tmp_path: Path) -> None:
    reader = FileStateStore(store.directory)
    for weights in ("{1: 90, 2: 10}", "{1: 80, 2: 20}"):
        store.apply(rollout(weights), actor="ann")
    assert reader.generation() == 2
    other = FileStateStore(tmp_path / "other")
    other.apply(rollout("{1: 70, 2: 30}"), actor="ann")
    os.replace(log_of(other), log_of(store))
    found = reader.read("digits")
    assert found is not None
    assert (found.generation, found.rollout) == (1, rollout("{1: 70, 2: 30}"))


def test_a_log_that_was_removed_is_empty_again(store: FileStateStore) -> None:
    store.apply(rollout(), actor="ann")
    assert store.generation() == 1
    log_of(store).unlink()
    assert (store.generation(), store.apply(rollout(), actor="ann")) == (0, 1)


def test_threads_of_one_process_share_a_store(store: FileStateStore) -> None:
    def apply(number: int) -> None:
        for step in range(1, 6):
            store.apply(rollout(f"{{1: {100 - step}, 2: {step}}}", model=f"model-{number}"), actor="ann")

    threads = [threading.Thread(target=apply, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FileStateStore(store.directory).generation() == 20
    assert [len(store.history(f"model-{number}")) for number in range(4)] == [5, 5, 5, 5]


# --- damage ---------------------------------------------------------------------------------------------


def test_an_unfinished_last_line_is_passed_over_and_cut_off_by_the_next_writer(store: FileStateStore) -> None:
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")
    store.apply(rollout("{1: 50, 2: 50}"), actor="ann")
    whole = log_of(store).read_bytes()
    first_line = whole.index(b"\n") + 1
    for cut in range(first_line, len(whole)):
        log_of(store).write_bytes(whole[:cut])
        reader = FileStateStore(store.directory)
        assert (found := reader.read("digits"))
        assert (found.generation, found.rollout) == (1, rollout("{1: 90, 2: 10}"))
    assert reader.apply(rollout("{1: 70, 2: 30}"), actor="ann") == 2
    assert [t.after.generation for t in FileStateStore(store.directory).history("digits")] == [1, 2]


def test_blocks_that_never_reached_the_disk_are_an_unfinished_line(store: FileStateStore) -> None:
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")
    with open(log_of(store), "ab") as file:
        file.write(b"\0" * 300 + b"}\n")
    assert store.generation() == 1
    assert store.apply(rollout("{1: 70, 2: 30}"), actor="ann") == 2
    assert b"\0" not in log_of(store).read_bytes()


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_changed_byte_anywhere_in_a_whole_line_is_an_error_that_names_it(
    store: FileStateStore, line: int
) -> None:
    for step in (10, 20, 30):
        store.apply(rollout(f"{{1: {100 - step}, 2: {step}}}"), actor="ann")
    lines = log_of(store).read_bytes().splitlines(keepends=True)
    bad = lines[line - 1]
    for place in range(0, len(bad) - 1, 7):
        changed = bad[:place] + bytes([bad[place] ^ 1]) + bad[place + 1 :]
        log_of(store).write_bytes(b"".join([*lines[: line - 1], changed, *lines[line:]]))
        with pytest.raises(StateCorrupt, match=rf"line {line} of .*log\.jsonl is damaged") as caught:
            FileStateStore(store.directory).read("digits")
        assert caught.value.line == line


def test_a_lost_line_is_an_error(store: FileStateStore) -> None:
    for step in (10, 20, 30):
        store.apply(rollout(f"{{1: {100 - step}, 2: {step}}}"), actor="ann")
    first, _, third = log_of(store).read_bytes().splitlines(keepends=True)
    log_of(store).write_bytes(first + third)
    with pytest.raises(StateCorrupt, match=r"line 2 .* \(its checksum or its number is wrong\)"):
        FileStateStore(store.directory).generation()


@pytest.mark.parametrize(
    "text", [b"[]\n", b"{}\n", b"5\n", b"null\n", b'{"checksum": 1, "record": 2}\n', b"\xff\n", b"\n"]
)
def test_foreign_lines_are_an_error_and_never_a_traceback(store: FileStateStore, text: bytes) -> None:
    store.directory.mkdir()
    log_of(store).write_bytes(text)
    with pytest.raises(
        StateCorrupt, match=r"line 1 .* is damaged .* restore the file from a copy, or remove it"
    ):
        store.read("digits")
    with pytest.raises(StateCorrupt):
        store.apply(rollout(), actor="ann")


# --- writing that fails ---------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_log_as_it_was(store: FileStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")
    before = log_of(store).read_bytes()
    whole, calls = os.write, []

    def write(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(descriptor, data[:20])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StateUnwritable, match="No space left on device; nothing was changed"):
        store.apply(rollout("{1: 50, 2: 50}"), actor="ann")
    assert (len(calls), log_of(store).read_bytes()) == (2, before)


def test_a_failing_flush_says_that_the_change_is_in_force(
    store: FileStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")  # so that only the file is flushed, not the directory

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StateUnwritable, match="is in force but may not survive a power loss"):
        store.apply(rollout("{1: 50, 2: 50}"), actor="ann")
    assert store.generation() == 2


def test_the_first_write_also_flushes_the_name_of_the_log(
    store: FileStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")
    store.apply(rollout("{1: 50, 2: 50}"), actor="ann")
    assert flushed == [str(log_of(store)), str(store.directory), str(log_of(store))]


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnwritable, match=r"cannot be written: .*Not a directory"):
        FileStateStore(tmp_path / "file" / "state").apply(rollout(), actor="ann")


def test_a_lock_that_is_held_too_long_is_one_line(
    store: FileStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply(rollout("{1: 90, 2: 10}"), actor="ann")
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.1)
    with open(store.directory / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateBusy, match=r"lock has been held by another process for 0\.1 s"):
            store.apply(rollout("{1: 50, 2: 50}"), actor="ann")
    assert store.generation() == 1


# --- workers --------------------------------------------------------------------------------------------


def test_without_workers_everything_is_acknowledged(store: FileStateStore) -> None:
    assert store.wait_acknowledged(7, 0) == Acknowledgement(True, (), ())


def test_workers_that_lag_are_named(store: FileStateStore) -> None:
    store.acknowledge("w1", 3, lease_s=5)
    store.acknowledge("w2", 2, lease_s=5)
    found = store.wait_acknowledged(3, 0.05)
    assert (found.ok, found.live, found.missing) == (False, ("w1", "w2"), ("w2",))


def test_waiting_ends_when_the_last_worker_follows(store: FileStateStore) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    timer = threading.Timer(0.1, store.acknowledge, ("w1", 2, 5))
    timer.start()
    assert store.wait_acknowledged(2, 10).ok
    timer.join()


def test_a_worker_whose_lease_ran_out_is_not_waited_for(store: FileStateStore, clock: Clock) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    clock.now += 5.1
    assert store.wait_acknowledged(2, 0).live == ()


def test_a_renewed_lease_counts(store: FileStateStore, clock: Clock) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    clock.now += 4
    store.acknowledge("w1", 1, lease_s=5)
    clock.now += 4
    assert store.wait_acknowledged(2, 0).missing == ("w1",)


def test_a_withdrawn_worker_is_gone_and_may_withdraw_twice(store: FileStateStore) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    store.withdraw("w1")
    store.withdraw("w1")
    assert store.acknowledgement(2).ok


def test_files_of_workers_long_gone_are_removed(store: FileStateStore, clock: Clock) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    clock.now += 100_000
    store.acknowledgement(1)
    assert list((store.directory / "workers").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../w", "a/b", ".hidden", "w" * 129, "a\nb"])
def test_a_worker_name_cannot_leave_its_folder(store: FileStateStore, name: str) -> None:
    with pytest.raises(ValueError, match="worker must be 1 to 128 letters"):
        store.acknowledge(name, 1, 5)


@pytest.mark.parametrize("text", ["", "[]", '{"generation": 1}', "{"])
def test_a_damaged_worker_file_is_one_line(store: FileStateStore, text: str) -> None:
    store.acknowledge("w1", 1, lease_s=5)
    (store.directory / "workers" / "w1.json").write_text(text)
    with pytest.raises(StateError, match=r"w1\.json is not a worker's acknowledgement"):
        store.acknowledgement(1)


def test_a_record_is_readable_json_with_the_rollout_in_the_words_of_its_file(store: FileStateStore) -> None:
    store.apply(rollout("{1: 66.67, 2: 33.33}"), actor="ann")
    record = json.loads(log_of(store).read_text())["record"]
    assert record["rollout"]["routes"] == [{"name": "default", "weights": {"2": 33.33, "1": 66.67}}]
