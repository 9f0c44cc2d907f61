# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.mesh.actions import apply_rollout, check_signatures, history, promote, rollback, status
from paritygate.mesh.errors import ActionRefused, VersionsDiffer
from paritygate.mesh.state import FileStateStore, Phase
from support.rollouts import rollout

SAME = {1: "a", 2: "a", 3: "a"}


@pytest.fixture
def store(tmp_path: Path) -> FileStateStore:
    return FileStateStore(tmp_path, clock=lambda: 5.0)


def apply(store: FileStateStore, weights: str, stable: int = 1) -> None:
    apply_rollout(store, rollout(weights, stable=stable), signatures=SAME, actor="ann", wait_s=0)


# --- apply ----------------------------------------------------------------------------------------------


def test_apply_says_what_is_in_force(store: FileStateStore) -> None:
    found = apply_rollout(store, rollout(), signatures=SAME, actor="ann", wait_s=0)
    assert (found.changed, found.state.generation, found.acknowledgement.ok) == (True, 1, True)
    again = apply_rollout(store, rollout(), signatures=SAME, actor="ann", wait_s=0)
    assert (again.changed, again.state) == (False, found.state)


def test_apply_names_the_workers_that_do_not_follow(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    store.acknowledge("w1", 0, lease_s=60)
    found = apply_rollout(store, rollout(), signatures=None, actor="ann", wait_s=0.05)
    assert (found.acknowledgement.ok, found.acknowledgement.missing) == (False, ("w1",))


@pytest.mark.parametrize(
    ("weights", "signatures", "message", "versions"),
    [
        ("{1: 90, 5: 10}", {1: "a", 2: "a"}, r"'digits' has no version 5; published are 1, 2\. Publish it first", (5,)),
        ("{1: 90, 5: 5, 6: 5}", {1: "a"}, "'digits' has no versions 5 and 6", (5, 6)),
        ("{2: 100}", {2: "a"}, "'digits' has no version 1", (1,)),
        ("{1: 100}", {}, "'digits' has no version 1; published are none", (1,)),
        ("{1: 90, 2: 10}", {1: "a", 2: "b"}, "version 2 of 'digits' has another signature than stable version 1: b against a", (2,)),
        ("{1: 100, 2: 0}", {1: "a", 2: "b"}, "version 2 of 'digits' has another signature", (2,)),
        ("{1: 90, 2: 5, 3: 5}", {1: "a", 2: "b", 3: "c"}, "versions 2 and 3 of 'digits' have another", (2, 3)),
    ],
)  # fmt: skip
def test_versions_that_do_not_fit_are_refused_by_number(
    store: FileStateStore, weights: str, signatures: dict[int, str], message: str, versions: tuple[int, ...]
) -> None:
    with pytest.raises(VersionsDiffer, match=message) as caught:
        apply_rollout(store, rollout(weights), signatures=signatures, actor="ann", wait_s=0)
    assert caught.value.versions == versions
    assert store.generation() == 0


def test_versions_of_header_routes_are_checked_as_well() -> None:
    found = rollout("{1: 100}", routes="{match: {headers: {a: {exact: b}}}, weights: {4: 100}}, ")
    with pytest.raises(VersionsDiffer, match="no version 4"):
        check_signatures(found, SAME)


# --- promote --------------------------------------------------------------------------------------------


def test_promote_gives_the_candidate_everything_and_makes_it_stable(store: FileStateStore) -> None:
    apply(store, "{1: 90, 2: 10}")
    found = promote(store, "digits", actor="bob", wait_s=0).state
    assert (found.rollout, found.phase, found.previous) == (rollout("{2: 100}", stable=2), Phase.PROMOTED, 1)


def test_promote_drops_header_routes(store: FileStateStore) -> None:
    routes = "{match: {headers: {a: {exact: b}}}, weights: {2: 100}}, "
    apply_rollout(store, rollout("{1: 100}", routes=routes), signatures=SAME, actor="ann", wait_s=0)
    assert promote(store, "digits", wait_s=0).state.rollout == rollout("{2: 100}", stable=2)


def test_promote_with_several_candidates_needs_a_version(store: FileStateStore) -> None:
    apply(store, "{1: 80, 2: 10, 3: 10}")
    with pytest.raises(ActionRefused, match="names versions 2 and 3; say which one to promote"):
        promote(store, "digits", wait_s=0)
    assert promote(store, "digits", version=3, wait_s=0).state.rollout.stable == 3


@pytest.mark.parametrize("version", [1, 9])
def test_promote_of_a_version_that_is_no_candidate_is_refused(store: FileStateStore, version: int) -> None:
    apply(store, "{1: 90, 2: 10}")
    with pytest.raises(
        ActionRefused, match=f"version {version} of 'digits' is not a candidate; .* names version 2"
    ):
        promote(store, "digits", version=version, wait_s=0)


def test_promote_without_a_candidate_is_refused(store: FileStateStore) -> None:
    apply(store, "{1: 100}")
    with pytest.raises(ActionRefused, match="names no version but the stable one; apply one"):
        promote(store, "digits", wait_s=0)


# --- roll back ------------------------------------------------------------------------------------------


def test_rollback_of_a_ramp_takes_everything_to_stable(store: FileStateStore) -> None:
    apply(store, "{1: 50, 2: 50}")
    found = rollback(store, "digits", wait_s=0).state
    assert (found.rollout, found.phase) == (rollout("{1: 100}"), Phase.ROLLED_BACK)


def test_rollback_after_promote_goes_to_the_stable_version_before(store: FileStateStore) -> None:
    apply(store, "{1: 50, 2: 50}")
    promote(store, "digits", wait_s=0)
    found = rollback(store, "digits", wait_s=0).state
    assert (found.rollout, found.phase, found.previous) == (rollout("{1: 100}"), Phase.ROLLED_BACK, None)


def test_rollback_after_the_promoted_file_was_applied_still_goes_back(store: FileStateStore) -> None:
    apply(store, "{1: 50, 2: 50}")
    promote(store, "digits", wait_s=0)
    apply(store, "{2: 100}", stable=2)
    assert rollback(store, "digits", wait_s=0).state.rollout.stable == 1


def test_rollback_of_the_next_ramp_stops_at_the_promoted_version(store: FileStateStore) -> None:
    apply(store, "{1: 50, 2: 50}")
    promote(store, "digits", wait_s=0)
    apply(store, "{2: 90, 3: 10}", stable=2)
    assert rollback(store, "digits", wait_s=0).state.rollout == rollout("{2: 100}", stable=2)


def test_a_second_rollback_in_a_row_is_refused(store: FileStateStore) -> None:
    apply(store, "{1: 50, 2: 50}")
    promote(store, "digits", wait_s=0)
    apply(store, "{2: 90, 3: 10}", stable=2)
    rollback(store, "digits", wait_s=0)
    with pytest.raises(
        ActionRefused, match="is rolled back already: version 2 answers every request since generation 4"
    ):
        rollback(store, "digits", wait_s=0)


def test_rollback_with_nothing_before_is_refused(store: FileStateStore) -> None:
    apply(store, "{1: 100}")
    with pytest.raises(
        ActionRefused, match="has nothing to go back to: stable version 1 answers every request"
    ):
        rollback(store, "digits", wait_s=0)


# --- looking --------------------------------------------------------------------------------------------


def test_history_records_every_transition(store: FileStateStore) -> None:
    apply(store, "{1: 90, 2: 10}")
    promote(store, "digits", actor="bob", wait_s=0)
    rollback(store, "digits", actor="eve", wait_s=0)
    found = [(t.action, t.actor, t.at, t.after.phase) for t in history(store, "digits")]
    assert found == [
        ("apply", "ann", 5.0, Phase.RAMPING),
        ("promote", "bob", 5.0, Phase.PROMOTED),
        ("rollback", "eve", 5.0, Phase.ROLLED_BACK),
    ]


def test_status_tells_state_last_transition_and_workers(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    apply(store, "{1: 90, 2: 10}")
    store.acknowledge("w1", 1, lease_s=60)
    found = status(store, "digits")
    assert (found.state, found.last.actor, found.acknowledgement.live) == (
        store.read("digits"),
        "ann",
        ("w1",),
    )


@pytest.mark.parametrize("action", [status, history, promote, rollback], ids=lambda a: a.__name__)
def test_a_model_without_a_rollout_is_one_line(store: FileStateStore, action) -> None:  # type: ignore[no-untyped-def]
    apply(store, "{1: 100}")
    with pytest.raises(ActionRefused, match="'nothing' has no rollout to"):
        action(store, "nothing")
