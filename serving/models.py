"""Which versions of which models are loaded, and how that follows the repository.

The version list is the commit point: a version exists once the config's policy names it. A pass over
a model builds what is new beside what is live, swaps, and lets the old one finish what it is doing. If anything in
a pass fails, nothing that was live goes away, and the index says why.

All state here is touched on the event loop only; what is slow runs on one loader thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from paritygate.serving.config import Settings
from paritygate.serving.errors import LoadFailed, NotFound, Unavailable
from paritygate.serving.execution import Execution, Placing
from paritygate.serving.loading import LoadedVersion, LoadRequest, load_version
from paritygate.serving.overrides import NOTHING, LoadParameters, Override, make_override
from paritygate.serving.placement import Runner
from paritygate.serving.publish.triton_config import ModelConfig
from paritygate.serving.repository_view import RepositoryView, Snapshot
from paritygate.serving.statistics import VersionStatistics
from paritygate.serving.types import IndexEntry
from paritygate.serving.upstreams.backend import Hub, NoUpstreamReady

log = logging.getLogger("paritygate.serving")

T = TypeVar("T")
Load = Callable[[LoadRequest], LoadedVersion]


class Version:
    """One loaded version and everything that is counted about it."""

    def __init__(self, number: int, loaded: LoadedVersion, stamp: object, execution: Execution) -> None:
        self.number = number
        self.backend = loaded.backend
        self.execution = execution
        self.rules = loaded.rules
        self.provenance = loaded.provenance
        self.attestation = loaded.attestation
        self.stamp = stamp
        self.statistics = VersionStatistics()
        self.inflight = 0
        self._idle: asyncio.Event | None = None

    def left(self) -> None:
        """Count one request less; whoever chooses this version counts one more in `inflight`."""
        self.inflight -= 1
        if self.inflight == 0 and self._idle is not None:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in this version; False if there still is one after `timeout_s`."""
        if self.inflight == 0:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True)
class Failure:
    """Why a listed version is not live, and for which bytes that holds."""

    stamp: object
    reason: str


@dataclass
class Model:
    """One model: what the repository lists and what is live.

    Attributes:
        name: The model's name.
        config: The config that the live versions were loaded with; None before the first good pass.
        listed: The versions that the config's policy selects, ascending.
        live: Versions that answer, by number.
        failures: Listed versions that could not be loaded.
        loading: Versions being loaded now.
        leaving: Versions that finish what they are doing.
        unloaded: Set by an unload call; the model then stays away until a load call.
        fault: Why the model's folder or config could not be read at the last pass; empty if it could.
        gone: Versions that were live and are not any more.
    """

    name: str
    config: ModelConfig | None = None
    listed: tuple[int, ...] = ()
    live: dict[int, Version] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    loading: set[int] = field(default_factory=set)
    leaving: dict[int, Version] = field(default_factory=dict)
    unloaded: bool = False
    fault: str = ""
    fault_stamp: object = None
    gone: set[int] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def default_version(self, policy: str) -> int:
        """The version that answers where neither the request nor a rollout names one.

        `routed` is the lowest listed version: the first one published, until it is taken off the list. A version
        published later gets nothing until a rollout names it, and nothing has to be remembered over a restart.
        `latest` is the highest one that is live.

        Raises:
            NotFound: If the model has no version that is or was to be live.
        """
        if policy == "latest":
            if self.live:
                return max(self.live)
        elif self.listed:
            # While a pass fails, what is live may be older than what is listed, and keeps answering.
            return min(self.listed) if not self.live else min(min(self.listed), min(self.live))
        elif self.live:
            return min(self.live)
        raise NotFound(f"Request for unknown model: '{self.name}' has no available versions{self.why()}")

    def why(self) -> str:
        """The reasons for what is missing, to append to a message."""
        reasons = [self.fault] if self.fault else []
        reasons += [failure.reason for failure in self.failures.values()]
        return f": {'; '.join(reasons)}" if reasons else ""

    def version(self, number: int) -> Version:
        """A live version.

        Raises:
            Unavailable: If it is listed, but not live.
            NotFound: If there is no such version.
        """
        version = self.live.get(number)
        if version is not None:
            return version
        if number in self.loading:
            raise Unavailable(
                f"Request for model '{self.name}' version {number}, which is still loading; try again."
            )
        if number in self.failures:
            raise Unavailable(
                f"Request for model '{self.name}' version {number} is not ready: {self.failures[number].reason}"
            )
        if not self.live:
            raise NotFound(f"Request for unknown model: '{self.name}' has no available versions{self.why()}")
        raise NotFound(f"Request for unknown model: '{self.name}' version {number} is not found")


class Models:
    """All models of one repository."""

    def __init__(
        self,
        settings: Settings,
        view: RepositoryView,
        runner: Runner,
        *,
        load: Load = load_version,
        hub: Hub | None = None,
    ) -> None:
        self._settings = settings
        self._view = view
        self._runner = runner
        self._load = load
        self._hub = hub
        self._models: dict[str, Model] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="paritygate-load")
        self._retiring: set[asyncio.Task[None]] = set()
        self._named_by_rollout: Callable[[str], frozenset[int]] = lambda _: frozenset()
        self.started = False

    def keep_what_rollouts_name(self, named: Callable[[str], frozenset[int]]) -> None:
        """Have versions that `named` gives for a model stay live even after they left the version list."""
        self._named_by_rollout = named

    def get(self, name: str) -> Model:
        """The model of this name.

        Raises:
            NotFound: If there is none.
            Unavailable: If the gateway is still starting: a model that is half loaded would answer with the wrong
                version.
        """
        if not self.started:
            raise Unavailable(f"Request for model '{name}' while the gateway is still starting; try again.")
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return model

    def find(self, name: str) -> Model | None:
        """The model of this name, if there is one by now."""
        return self._models.get(name)

    def all(self) -> list[Model]:
        """Every known model, by name."""
        return [self._models[name] for name in sorted(self._models)]

    @property
    def explicit(self) -> bool:
        """Whether only load calls load models."""
        return self._settings.model_control_mode == "explicit"

    async def start(self) -> None:
        """Load what is to be served from the start; failures are logged and shown in the index."""
        names = await self._in_loader(self._view.models)
        wanted = set(names)
        if self.explicit:
            asked = set(self._settings.load_models)
            wanted = wanted if "*" in asked else asked
            for name in sorted(wanted - set(names)):
                log.warning("model '%s' was asked for at start but is not in the repository", name)
        for name in sorted(wanted & set(names)):
            await self._refresh(name)
        self.started = True

    async def poll(self) -> None:
        """Look at every model once."""
        try:
            names = await self._in_loader(self._view.models)
        except OSError as error:
            log.warning("the repository cannot be read, what is live stays live: %s", error)
            return
        for name in sorted(set(names) | set(self._models)):
            model = self._models.get(name)
            if model is None or not model.unloaded:
                await self._refresh(name)

    async def load(self, name: str, parameters: LoadParameters = NOTHING) -> None:
        """Load a model as the repository has it now, or as the call says; what is unchanged stays as it is.

        Raises:
            LoadFailed: If the model is not there or one of its listed versions cannot be loaded.
        """
        known = name in self._models or name in await self._in_loader(self._view.models)
        if not known and not parameters.files:
            raise LoadFailed(f"failed to load '{name}', no such model in the repository")
        override = (
            await self._in_loader(partial(make_override, name, parameters)) if parameters.config else None
        )
        async with self._held(name) as model:
            before = self._view.override(name, override)
            model.unloaded = False
            await self._guarded_pass(model, retry=True)
            failed, why = bool(model.fault or model.failures), model.why()
            if failed and override is not None:
                # What is live came of the one before, which therefore stays the one to look at.
                self._view.override(name, before)
                before = override
            await self._in_loader(partial(_drop, before))
        if failed:
            raise LoadFailed(f"failed to load '{name}'{why}")

    async def unload(self, name: str) -> None:
        """Take a model out of service; requests in flight finish. An unknown name is fine, as it is for Triton."""
        if name not in self._models:
            return
        async with self._held(name) as model:
            model.unloaded = True
            await self._in_loader(partial(_drop, self._view.override(name, None)))
            model.failures.clear()
            model.fault = ""
            model.listed = ()
            for number in list(model.live):
                self._retire(model, number)

    async def _refresh(self, name: str) -> None:
        async with self._held(name) as model:
            if not model.unloaded:
                await self._guarded_pass(model, retry=False)

    @contextlib.asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[Model]:
        """The model of this name with its lock held; it is forgotten afterwards if nothing is left of it.

        Whoever held the lock before may have forgotten the model that was waited for, so it is looked up again.
        """
        while True:
            model = self._models.setdefault(name, Model(name))
            async with model.lock:
                if self._models.get(name) is model:
                    try:
                        yield model
                    finally:
                        self._forget_if_empty(model)
                    return

    async def _guarded_pass(self, model: Model, *, retry: bool) -> None:
        """A pass in which no error of one model keeps the others from being looked at."""
        try:
            await self._pass(model, retry=retry)
        except Exception as error:
            log.exception("a pass over model '%s' failed, what is live stays live", model.name)
            model.fault = f"a pass over model '{model.name}' failed: {type(error).__name__}: {error}"

    def _forget_if_empty(self, model: Model) -> None:
        """Forget a model of which nothing is left; the caller holds its lock, or nobody does."""
        empty = not (model.live or model.listed or model.failures or model.leaving or model.fault)
        if empty and not model.unloaded:
            self._models.pop(model.name, None)

    async def _pass(self, model: Model, *, retry: bool) -> None:
        """Bring one model to what the repository says; the caller holds its lock."""
        snapshot = await self._snapshot(model)
        if snapshot is None:
            return
        model.config = model.config or snapshot.config
        model.listed = tuple(sorted({*snapshot.versions, *snapshot.missing}))
        model.failures = {v: f for v, f in model.failures.items() if v in snapshot.versions}
        for number in snapshot.missing:
            model.failures[number] = Failure(None, _missing(model.name, number))
        if snapshot.config is not None:
            for number in snapshot.versions:
                await self._bring_up(model, number, snapshot, snapshot.config, retry=retry)
        if not model.failures:
            model.config = snapshot.config
            self._retire_unlisted(model)

    async def _snapshot(self, model: Model) -> Snapshot | None:
        """What the repository lists, or None where it cannot be told; the model then stays as it is."""
        try:
            snapshot = await self._in_loader(lambda: self._view.snapshot(model.name))
        except Exception as error:  # noqa: BLE001 - any fault of a foreign folder must leave what is live alone
            if str(error) != model.fault:
                log.warning("model '%s' cannot be read, what is live stays live: %s", model.name, error)
            model.fault = str(error)
            return None
        model.fault = ""
        return snapshot

    async def _bring_up(
        self, model: Model, number: int, snapshot: Snapshot, config: ModelConfig, *, retry: bool
    ) -> None:
        stamp = snapshot.stamps[number]
        live = model.live.get(number)
        if live is not None and live.stamp == stamp:
            model.failures.pop(number, None)
            return
        failure = model.failures.get(number)
        if failure is not None and failure.stamp == stamp and not retry:
            return
        if failure is None or failure.stamp is not None:
            # What is tried again at every look, for an upstream may come back, keeps its reason meanwhile.
            model.loading.add(number)
        try:
            loaded = await self._load_version(model, number, config)
        except LoadFailed as error:
            # What an upstream does not show now it may show at the next look, with the same bytes here.
            passing = isinstance(error, NoUpstreamReady)
            if not passing or failure is None or failure.reason != str(error):
                log.warning("%s", error)
            model.failures[number] = Failure(None if passing else stamp, str(error))
            return
        except Exception as error:
            # A runtime may raise anything for a file that it does not like; the other models are to live on.
            reason = f"failed to load '{model.name}' version {number}: {type(error).__name__}: {error}"
            log.exception("%s", reason)
            model.failures[number] = Failure(stamp, reason)
            return
        finally:
            model.loading.discard(number)
        model.failures.pop(number, None)
        name = f"version {number} of model '{model.name}'"
        execution = loaded.backend.execution(
            Placing(config, self._runner, self._settings.inline_below_us, name)
        )
        self._put_live(model, Version(number, loaded, stamp, execution))

    async def _load_version(self, model: Model, number: int, config: ModelConfig) -> LoadedVersion:
        request = LoadRequest(
            self._view.directory(model.name),
            model.name,
            number,
            config,
            self._settings.allow_unproven,
            self._settings.intra_op_threads,
            self._hub.of(model.name, number) if self._hub is not None else None,
        )
        began = time.perf_counter()
        # A server elsewhere that does not answer must not keep the loader from other models.
        load: Callable[[], LoadedVersion] = partial(self._load, request)
        loaded = await (self._in_loader(load) if request.site is None else asyncio.to_thread(load))
        log.info(
            "version %d of model '%s' is ready (%s, %s) after %.3f s",
            number, model.name, loaded.provenance.proof, loaded.backend.runtime, time.perf_counter() - began,
        )  # fmt: skip
        return loaded

    def _put_live(self, model: Model, version: Version) -> None:
        if version.number in model.live:
            self._retire(model, version.number)
        model.gone.discard(version.number)
        model.live[version.number] = version

    def _retire_unlisted(self, model: Model) -> None:
        kept = self._named_by_rollout(model.name)
        for number in set(model.live) - set(model.listed):
            if number not in kept:
                self._retire(model, number)

    def _retire(self, model: Model, number: int) -> None:
        """Give a version no further request, and close it once it has none left."""
        version = model.live.pop(number)
        model.leaving[number] = version
        model.gone.add(number)
        task = asyncio.get_running_loop().create_task(self._close(model, version))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _close(self, model: Model, version: Version) -> None:
        if not await version.wait_idle(self._settings.drain_timeout_s):
            log.warning(
                "version %d of model '%s' still has %d requests after %s s",
                version.number, model.name, version.inflight, self._settings.drain_timeout_s,
            )  # fmt: skip
        if model.leaving.get(version.number) is version:
            del model.leaving[version.number]
        if version.inflight == 0:
            await version.execution.close()
            await self._in_loader(version.backend.close)
        if not model.lock.locked():
            self._forget_if_empty(model)

    def index(self) -> list[IndexEntry]:
        """Every known version and its state, and each model without versions by its name alone."""
        return [entry for model in self.all() for entry in _index_of(model)]

    async def unregistered(self) -> list[str]:
        """Models of the repository that nothing was ever loaded of (mode explicit)."""
        names = await self._in_loader(self._view.models)
        return sorted(set(names) - set(self._models))

    async def close(self) -> None:
        """Close every version, waiting for none."""
        for model in self.all():
            for number in list(model.live):
                self._retire(model, number)
        if self._retiring:
            await asyncio.wait(set(self._retiring), timeout=self._settings.drain_timeout_s)
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _in_loader(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._loader, work)


def _drop(override: Override | None) -> None:
    if override is not None:
        override.drop()


def _missing(model: str, number: int) -> str:
    return f"version {number} of model '{model}' is named by the version_policy, but there is no such folder"


def _state_of(version: Version, reason: str) -> tuple[str, str]:
    """A live version answers unless what computes it does not."""
    fault = version.execution.fault
    return ("UNAVAILABLE", fault) if fault else ("READY", reason)


def _index_of(model: Model) -> list[IndexEntry]:
    states: dict[int, tuple[str, str]] = {}
    for number in model.gone:
        states[number] = ("UNAVAILABLE", "unloaded")
    for number in model.leaving:
        states[number] = ("UNLOADING", "")
    for number, failure in model.failures.items():
        states[number] = ("UNAVAILABLE", failure.reason)
    for number in model.live:
        # A version that could not be replaced answers on; the index tells why it is still the old one.
        kept = "" if number in model.listed else "not in the version list any more, but still in use"
        reason = model.failures[number].reason if number in model.failures else kept
        states[number] = _state_of(model.live[number], reason)
    for number in model.loading - set(model.live):
        states[number] = ("LOADING", "")
    entries = [IndexEntry(model.name, str(n), *states[n]) for n in sorted(states)]
    if model.fault:
        entries.append(IndexEntry(model.name, "", "READY" if model.live else "UNAVAILABLE", model.fault))
    return entries or [IndexEntry(model.name, "", "", "")]
