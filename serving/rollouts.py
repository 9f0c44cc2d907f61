"""Follows the rollout state: compiles what is in force into tables, and says so under a lease.

A generation is acknowledged only when every version it names is live here. Until then the table before it stays in
force, so that a rollout never sends a request to a version that is not there yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from paritygate.mesh.errors import MeshError
from paritygate.mesh.routing import Facts, RouteTable, choose, compile_table
from paritygate.mesh.state import RolloutState, StateStore
from paritygate.mesh.types import Rollout
from paritygate.serving.config import Settings
from paritygate.serving.errors import Unavailable
from paritygate.serving.models import Models
from paritygate.serving.types import InferRequest, Route

log = logging.getLogger("paritygate.serving")


@dataclass(frozen=True)
class Table:
    """What is in force for one model here.

    Attributes:
        generation: The state that it was compiled from.
        routes: The compiled rollout.
        versions: Every version that it gives weight.
    """

    generation: int
    routes: RouteTable
    versions: frozenset[int]


class Rollouts:
    """The tables of all models that have a rollout."""

    def __init__(self, store: StateStore | None, models: Models, settings: Settings) -> None:
        self._store = store
        self._models = models
        self._settings = settings
        self._tables: dict[str, Table] = {}
        self._states: dict[str, RolloutState] = {}
        self._seen_generation = -1
        self._first_look = True
        self._in_force = 0
        self._fault = ""
        self._next_beat = 0.0
        self._looking = asyncio.Lock()
        self._acknowledging: asyncio.Future[None] | None = None
        self._random = random.Random()  # noqa: S311 - spreads load, guards nothing
        # Letters, digits and ._- only: the name becomes a file's.
        host = (
            "".join(char if char.isalnum() else "-" for char in socket.gethostname())[:64].strip("-")
            or "host"
        )
        self.worker = f"{host}-{os.getpid()}"

    @property
    def known(self) -> bool:
        """Whether it is known what is in force: there is no store, or it was read well once."""
        return self._store is None or self._seen_generation >= 0

    def named(self, model: str) -> frozenset[int]:
        """The versions that the rollout of a model gives weight; empty without one."""
        table = self._tables.get(model)
        return table.versions if table else frozenset()

    def stable(self, model: str) -> int | None:
        """The stable version of a model's rollout; None without one.

        Raises:
            Unavailable: If the rollout state was never read well.
        """
        self._check_known()
        table = self._tables.get(model)
        return table.routes.rollout.stable if table else None

    @property
    def generation(self) -> int:
        """The newest generation that is wholly in force here."""
        return self._in_force

    def route(self, request: InferRequest) -> Route | None:
        """Where the rollout sends a request; None where the model has none.

        Raises:
            Unavailable: If the rollout state was never read well.
        """
        if self._store is None:
            return None
        self._check_known()
        table = self._tables.get(request.model_name)
        if table is None:
            return None
        facts = Facts(request.headers(), request.parameters, self._random.randrange(10_000))
        decision = choose(table.routes, facts)
        return Route(decision.version, decision.rule, decision.bucket)

    def _check_known(self) -> None:
        """Without the state nobody can say which version answers; the default one may be just the wrong one."""
        if not self.known:
            raise Unavailable(
                "the rollout state could not be read yet, so it is not known which version answers; "
                "try again, or name a version."
            )

    async def follow(self) -> None:
        """Look once, and say in time that this worker follows."""
        changed = await self.look()
        now = asyncio.get_running_loop().time()
        if self.known and (changed or now >= self._next_beat):
            await self._acknowledge()
            self._next_beat = now + self._settings.rollout_lease_s / 3

    async def look(self) -> bool:
        """Take up what has changed in the store; True if what is wholly in force changed."""
        if self._store is None:
            return False
        # Two at once could finish in the wrong order and put an older table back.
        async with self._looking:
            return await self._look(self._store)

    async def _look(self, store: StateStore) -> bool:
        try:
            states = await asyncio.to_thread(self._read, store)
        except (MeshError, OSError) as error:
            stays = "what is in force stays so" if self.known else "requests that name no version are refused"
            self._report(f"the rollout state cannot be read, {stays}: {error}")
            return False
        if states is not None and states[1] < self._seen_generation:
            return self._went_back(states[1])
        if states is not None:
            self._states, self._seen_generation = states
        return self._put_in_force()

    def _went_back(self, generation: int) -> bool:
        """Keep what is in force, but acknowledge nothing: the numbers of that store are not those known here."""
        self._report(
            f"the rollout state went back from generation {self._seen_generation} to {generation}, what is in "
            "force stays so; restore the state, or restart this gateway to take up the older one"
        )
        changed, self._in_force = self._in_force != 0, 0
        return changed

    def _put_in_force(self) -> bool:
        waiting = [model for model, state in self._states.items() if not self._take_up(model, state)]
        self._first_look = False
        self._tables = {model: table for model, table in self._tables.items() if model in self._states}
        before, in_force = self._in_force, self._seen_generation
        if waiting:
            if self._models.started:
                self._report(self._why_waiting(waiting))
            in_force = min(self._in_force, self._seen_generation)
        else:
            self._fault = ""
        self._in_force = in_force
        return in_force != before

    def _read(self, store: StateStore) -> tuple[dict[str, RolloutState], int] | None:
        """Every state and the generation they were read at; None if nothing has changed."""
        generation = store.generation()
        if generation == self._seen_generation:
            return None
        read = {model: store.read(model) for model in store.models()}
        return {model: state for model, state in read.items() if state is not None}, generation

    def _take_up(self, model: str, state: RolloutState) -> bool:
        """Put a state in force if its versions are live.

        At the first look it is put in force anyhow: what was in force before this process began is not known, and
        a split that the rollout forbids would be worse than an error for the version that is missing.
        """
        table = self._tables.get(model)
        if table is not None and table.generation == state.generation:
            return self._all_live(model, table.versions)
        versions = _versions_with_weight(state.rollout)
        live = self._all_live(model, versions)
        if live or self._first_look:
            self._tables[model] = Table(state.generation, compile_table(state.rollout), versions)
        return live

    def _all_live(self, model: str, versions: frozenset[int]) -> bool:
        if not self._models.started:
            return False
        known = self._models.find(model)
        # A model of somebody else's gateway gets no request here, so there is nothing to wait for.
        return known is None or versions <= known.live.keys()

    def _why_waiting(self, waiting: list[str]) -> str:
        model = waiting[0]
        wanted = _versions_with_weight(self._states[model].rollout)
        return (
            f"the rollout of model '{model}' (generation {self._states[model].generation}) names versions "
            f"{sorted(wanted)}, of which not all are live here; it is not acknowledged"
        )

    def _report(self, fault: str) -> None:
        """Log a fault once, not at every look."""
        if fault != self._fault:
            log.warning("%s", fault)
        self._fault = fault

    async def _acknowledge(self) -> None:
        if self._store is None:
            return
        lease_s = self._settings.rollout_lease_s
        self._acknowledging = asyncio.ensure_future(
            asyncio.to_thread(self._store.acknowledge, self.worker, self._in_force, lease_s)
        )
        try:
            # A thread cannot be cancelled; `withdraw` waits for it.
            await asyncio.shield(self._acknowledging)
        except (MeshError, OSError) as error:
            self._report(f"the rollout generation cannot be acknowledged: {error}")

    async def withdraw(self) -> None:
        """Stop counting as a live worker; waits for an acknowledgement that is still being written."""
        if self._store is None:
            return
        if self._acknowledging is not None:
            await asyncio.wait((self._acknowledging,), timeout=self._settings.rollout_lease_s)
        try:
            await asyncio.to_thread(self._store.withdraw, self.worker)
        except (MeshError, OSError) as error:
            log.warning("this worker could not withdraw from the rollout state: %s", error)

    def status(self) -> Mapping[str, int]:
        """The generation in force here by model."""
        return {model: table.generation for model, table in self._tables.items()}


def _versions_with_weight(rollout: Rollout) -> frozenset[int]:
    return frozenset(w.version for route in rollout.routes for w in route.weights if w.basis_points)
