"""What an operator does with a rollout: apply, promote, roll back, look.

Each action reads and writes under the store's lock, so two operators cannot undo each other unseen, and answers
when every live gateway worker follows it or with the names of those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from paritygate.mesh.errors import ActionRefused, VersionsDiffer
from paritygate.mesh.state import StateStore
from paritygate.mesh.transitions import Acknowledgement, Change, Phase, RolloutState, Transition, change_to
from paritygate.mesh.types import Rollout

DEFAULT_WAIT_S = 10.0
"""How long an action waits for the workers; they look for changes several times a second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action did.

    Attributes:
        state: What is in force now.
        changed: Whether this call made it so; False where it was in force already.
        acknowledgement: Which live workers follow it.
    """

    state: RolloutState
    changed: bool
    acknowledgement: Acknowledgement


@dataclass(frozen=True, slots=True)
class Status:
    """What is in force for a model, and who follows it.

    Attributes:
        state: What is in force.
        last: The transition that made it so.
        acknowledgement: Which live workers follow it.
    """

    state: RolloutState
    last: Transition
    acknowledgement: Acknowledgement


def apply_rollout(
    store: StateStore,
    rollout: Rollout,
    *,
    signatures: Mapping[int, Hashable] | None,
    actor: str,
    wait_s: float = DEFAULT_WAIT_S,
) -> Outcome:
    """Put a rollout in force.

    Args:
        store: Where rollouts are kept.
        rollout: The new rollout.
        signatures: What each published version takes and gives, as values that are equal when clients cannot tell
            the versions apart; None skips the check, for stores without a model repository.
        actor: Who asks.
        wait_s: How long to wait for the workers.

    Raises:
        VersionsDiffer: If a version of the rollout is not published, or two of them differ.
        StateError: If the state cannot be read or written.
    """
    if signatures is not None:
        check_signatures(rollout, signatures)
    return _act(store, rollout.model, _Decider(lambda before: change_to(rollout, before)), actor, wait_s)


def promote(
    store: StateStore,
    model: str,
    *,
    version: int | None = None,
    actor: str = "unknown",
    wait_s: float = DEFAULT_WAIT_S,
) -> Outcome:
    """Give the candidate every request and make it the stable version.

    Args:
        store: Where rollouts are kept.
        model: Whose rollout.
        version: Which candidate; may be left out where there is one.
        actor: Who asks.
        wait_s: How long to wait for the workers.

    Raises:
        ActionRefused: If the model has no rollout, or it does not say which version is meant.
        StateError: If the state cannot be read or written.
    """

    def decide(before: RolloutState | None) -> Change:
        rollout = _existing(before, model, "promote").rollout
        candidate = _candidate(rollout, version)
        return Change("promote", rollout.all_to(candidate), Phase.PROMOTED, rollout.stable)

    return _act(store, model, _Decider(decide), actor, wait_s)


def rollback(
    store: StateStore, model: str, *, actor: str = "unknown", wait_s: float = DEFAULT_WAIT_S
) -> Outcome:
    """Take every request back to the stable version; once promoted, to the stable version before.

    A second roll-back in a row is refused, so that nobody in a hurry lands two versions back.

    Raises:
        ActionRefused: If the model has no rollout, or there is nothing to go back to.
        StateError: If the state cannot be read or written.
    """

    def decide(before: RolloutState | None) -> Change:
        state = _existing(before, model, "roll back")
        if state.phase is Phase.ROLLED_BACK:
            raise ActionRefused(
                f"'{model}' is rolled back already: version {state.rollout.stable} answers every request since "
                f"generation {state.generation}. Apply a rollout to go elsewhere"
            )
        return _way_back(state)

    return _act(store, model, _Decider(decide), actor, wait_s)


def status(store: StateStore, model: str) -> Status:
    """What is in force for a model, and which live workers follow it.

    Raises:
        ActionRefused: If the model has no rollout.
        StateError: If the state cannot be read.
    """
    transitions = history(store, model)
    last = transitions[-1]
    return Status(last.after, last, store.acknowledgement(last.after.generation))


def history(store: StateStore, model: str) -> tuple[Transition, ...]:
    """Every transition of a model, oldest first.

    Raises:
        ActionRefused: If the model has no rollout.
        StateError: If the state cannot be read.
    """
    transitions = store.history(model)
    if not transitions:
        raise ActionRefused(_no_rollout(store, model, "show"))
    return transitions


def check_signatures(rollout: Rollout, signatures: Mapping[int, Hashable]) -> None:
    """Refuse a rollout whose versions a client could tell apart, or that names one that is not there.

    Raises:
        VersionsDiffer: Names the versions.
    """
    absent = [version for version in rollout.versions if version not in signatures]
    if absent:
        known = ", ".join(map(str, sorted(signatures))) or "none"
        raise VersionsDiffer(
            f"'{rollout.model}' has no {_versions(absent)}; published are {known}. Publish it first, or correct "
            "the rollout",
            versions=absent,
        )
    wanted = signatures[rollout.stable]
    others = [version for version in rollout.versions if signatures[version] != wanted]
    if others:
        first, verb = others[0], "has" if len(others) == 1 else "have"
        raise VersionsDiffer(
            f"{_versions(others)} of '{rollout.model}' {verb} another signature than stable version "
            f"{rollout.stable}: {signatures[first]} against {wanted}. Clients would see the change; publish it "
            "under a new model name",
            versions=others,
        )


class _Decider:
    """A decision that remembers whether it changed anything."""

    def __init__(self, decide: Callable[[RolloutState | None], Change | None]) -> None:
        self._decide = decide
        self.changed = False

    def __call__(self, before: RolloutState | None) -> Change | None:
        change = self._decide(before)
        self.changed = change is not None
        return change


def _act(store: StateStore, model: str, decide: _Decider, actor: str, wait_s: float) -> Outcome:
    state = store.update(model, decide, actor=actor)
    assert state is not None  # every action leaves a state or raises
    return Outcome(state, decide.changed, store.wait_acknowledged(state.generation, wait_s))


def _existing(state: RolloutState | None, model: str, verb: str) -> RolloutState:
    if state is None:
        raise ActionRefused(f"'{model}' has no rollout to {verb}; apply one first")
    return state


def _no_rollout(store: StateStore, model: str, verb: str) -> str:
    known = ", ".join(store.models()) or "none"
    return f"'{model}' has no rollout to {verb}; models with a rollout: {known}"


def _candidate(rollout: Rollout, version: int | None) -> int:
    candidates = rollout.candidates
    if version is not None and version in candidates:
        return version
    named = _versions(candidates) if candidates else "no version but the stable one"
    if version is not None:
        raise ActionRefused(
            f"version {version} of '{rollout.model}' is not a candidate; the rollout names {named}"
        )
    if len(candidates) == 1:
        return candidates[0]
    advice = "say which one to promote" if candidates else "apply one that gives a candidate some weight"
    raise ActionRefused(f"the rollout of '{rollout.model}' names {named}; {advice}")


def _way_back(state: RolloutState) -> Change:
    rollout = state.rollout
    if not rollout.all_on_stable:
        return Change("rollback", rollout.all_to(rollout.stable), Phase.ROLLED_BACK, state.previous)
    if state.previous is None:
        raise ActionRefused(
            f"'{rollout.model}' has nothing to go back to: stable version {rollout.stable} answers every request "
            "and no version was stable before it"
        )
    return Change("rollback", rollout.all_to(state.previous), Phase.ROLLED_BACK, None)


def _versions(versions: Sequence[int]) -> str:
    numbers = [str(version) for version in versions]
    if len(numbers) == 1:
        return f"version {numbers[0]}"
    return f"versions {', '.join(numbers[:-1])} and {numbers[-1]}"
