"""The words of rollout state: phases, states, transitions, and what an operator's change makes of a state."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from paritygate.mesh.types import Rollout


class Phase(enum.Enum):
    """Where the rollout of a model stands."""

    STEADY = "steady"
    """Every request goes to the stable version."""

    RAMPING = "ramping"
    """Some requests go to a candidate."""

    PROMOTED = "promoted"
    """The candidate became the stable version and answers every request; a roll-back returns to the one before."""

    ROLLED_BACK = "rolled_back"
    """Every request was taken back to the stable version, or to the one before it."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """What is in force for one model.

    Attributes:
        rollout: The rollout that gateways follow.
        generation: The number of the transition that made it so; grows over all models of a store.
        phase: Where it stands.
        previous: The stable version before the present one, or None where there was none or it was returned to.
    """

    rollout: Rollout
    generation: int
    phase: Phase
    previous: int | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the history.

    Attributes:
        action: "apply", "promote" or "rollback".
        actor: Who asked for it.
        at: When, in seconds since 1970.
        before: The state before, or None for a model's first rollout.
        after: The state after.
    """

    action: str
    actor: str
    at: float
    before: RolloutState | None
    after: RolloutState


@dataclass(frozen=True, slots=True)
class Change:
    """What a transition makes of a model's state; the store adds generation and time."""

    action: str
    rollout: Rollout
    phase: Phase
    previous: int | None


Decide: TypeAlias = "Callable[[RolloutState | None], Change | None]"
"""Looks at a model's state, under the lock, and says what it becomes; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Which workers follow a generation.

    Attributes:
        ok: Whether all live workers do; true when there are none.
        live: Workers whose lease has not run out, by name.
        missing: Those of them that have not acknowledged the generation.
    """

    ok: bool
    live: tuple[str, ...]
    missing: tuple[str, ...]


def change_to(rollout: Rollout, before: RolloutState | None) -> Change | None:
    """What applying a rollout makes of a state; None when it is in force already.

    The previous stable version is remembered when the stable one changes, so that a roll-back knows where to go.
    """
    if before is not None and before.rollout == rollout:
        return None
    phase = Phase.STEADY if rollout.all_on_stable else Phase.RAMPING
    previous = before.previous if before else None
    if before and before.rollout.stable != rollout.stable:
        previous = before.rollout.stable
    return Change("apply", rollout, phase, previous)
