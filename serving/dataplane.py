"""What every facade calls and nothing else does: health, metadata, statistics, inference, the repository.

Nothing here knows HTTP or protobuf, and no facade decides anything: that is why REST and gRPC cannot disagree.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from paritygate import __version__
from paritygate.converter.types import Array
from paritygate.serving.classification import best_classes
from paritygate.serving.config import Settings
from paritygate.serving.errors import (
    Exhausted,
    InferenceFailed,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from paritygate.serving.log_settings import LogSettings
from paritygate.serving.models import Model, Models, Version
from paritygate.serving.overrides import NOTHING, LoadParameters
from paritygate.serving.placement import Runner, Timed
from paritygate.serving.rollouts import Rollouts
from paritygate.serving.shared_memory import Regions
from paritygate.serving.tracing import Tracer
from paritygate.serving.triton_view import filled_config
from paritygate.serving.types import (
    IndexEntry,
    InferRequest,
    InferResponse,
    InferTensor,
    ModelMetadata,
    Parameter,
    RequestedOutput,
    Route,
    ServerMetadata,
    Timings,
)
from paritygate.serving.validation import CheckedRequest, as_clients_see_it, check_parameters, check_request

PLATFORM = "onnxruntime_onnx"

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
)
"""Only what is always there, beside `system_shared_memory` and `trace` where the operator allows them: clients
decide by this list what to call. Source: kserve/open-inference-protocol."""

LOAD_REFUSED = "explicit model load / unload is not allowed if polling is enabled"
"""Triton's own text, which clients look for. Source: triton-inference-server/core."""

_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_MAX_PINNED_SEQUENCES = 65_536


class Begun:
    """A request on its way: the version that answers it, and what it became when it was checked.

    Attributes:
        version: The version that answers; it stays until the request is answered or given up.
        route: Why this version.
        request: What the client sent.
        checked: What the graph takes.
        began_ns: When it came to the data plane, in nanoseconds of `time.perf_counter_ns`.
        checked_ns: When it was found right; the same clock.
    """

    __slots__ = ("began_ns", "checked", "checked_ns", "request", "route", "version")

    checked: CheckedRequest
    checked_ns: int

    def __init__(self, version: Version, route: Route, request: InferRequest, began_ns: int) -> None:
        self.version = version
        self.route = route
        self.request = request
        self.began_ns = began_ns


class DataPlane:
    """The one inference path, and everything a client may ask beside it."""

    def __init__(
        self,
        settings: Settings,
        models: Models,
        rollouts: Rollouts,
        runner: Runner,
        *,
        up_to_date: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        self.models = models
        self.rollouts = rollouts
        self.runner = runner
        self.regions = Regions(settings.shared_memory, max_part_bytes=settings.max_body_bytes)
        self.tracer = Tracer(settings.trace_file)
        self.log_settings = LogSettings(settings.log_level)
        self._up_to_date = up_to_date
        self._refusing = False
        self._exiting = False
        self._inflight = 0
        self._sequences: OrderedDict[tuple[str, Parameter], Route] = OrderedDict()
        self._on_idle: list[asyncio.Event] = []
        self.unroutable: Counter[str] = Counter()

    # --- health -------------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether the process answers; stays true while models load, false once it is told to stop."""
        return not self._exiting

    def ready(self) -> bool:
        """Whether every known model answers a request that names no version.

        A version that could not be loaded does not count as long as its model answers: a bad publish must not take
        a good gateway out of the load balancer.
        """
        if self._exiting or not self.models.started or not self._up_to_date() or not self.rollouts.known:
            return False
        return all(self._answers(model) for model in self.models.all() if not model.unloaded)

    def _answers(self, model: Model) -> bool:
        if not self.rollouts.known:
            return False
        named = self.rollouts.named(model.name)
        if named:
            return all(self._version_answers(model, number) for number in named)
        try:
            return self._version_answers(model, model.default_version(self.settings.default_version))
        except NotFound:
            return False

    @staticmethod
    def _version_answers(model: Model, number: int) -> bool:
        version = model.live.get(number)
        return version is not None and not version.execution.fault

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model, or one version of it, answers; an unknown one does not."""
        if self._exiting:
            return False
        try:
            model = self.models.get(name)
            if version:
                return self._version_answers(model, int(check_version(version)))
            return self._answers(model)
        except (NotFound, Unavailable):
            return False

    # --- draining -----------------------------------------------------------------------------------------------

    @property
    def exiting(self) -> bool:
        """Whether the process was told to stop."""
        return self._exiting

    @property
    def inflight(self) -> int:
        """Inference requests that are not answered yet."""
        return self._inflight

    def begin_exit(self) -> None:
        """Be neither live nor ready any more; requests are still answered."""
        self._exiting = True

    def refuse_new(self) -> None:
        """Refuse new requests from now on; those in flight finish."""
        self._refusing = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False if there still is one after `timeout_s`."""
        if self._inflight == 0:
            return True
        idle = asyncio.Event()
        self._on_idle.append(idle)
        try:
            await asyncio.wait_for(idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    # --- metadata -----------------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        """Name, version and extensions."""
        shared_memory = ("system_shared_memory",) if self.regions.enabled else ()
        trace = ("trace",) if self.tracer.enabled else ()
        extensions = (*EXTENSIONS, *shared_memory, *trace)
        return ServerMetadata("paritygate", __version__, extensions)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Inputs, outputs and versions of a model.

        Raises:
            NotFound: If there is no such model or version.
            Unavailable: If it does not answer now.
        """
        model, chosen = self._look_up(name, version)
        rules = chosen.rules
        return ModelMetadata(
            model.name,
            tuple(sorted(model.live)),
            PLATFORM,
            tuple(rule.metadata() for rule in rules.inputs.values()),
            tuple(rule.metadata() for rule in rules.outputs.values()),
        )

    def max_batch_size(self, name: str, version: str = "") -> int:
        """The model's largest batch; 0 where shapes have no batch dimension of their own.

        Raises:
            NotFound: If there is no such model or version.
        """
        return self._look_up(name, version)[1].rules.max_batch_size

    def model_config(self, name: str, version: str = "") -> Any:
        """The model's config as an `inference.ModelConfig` message, filled in as Triton fills it.

        Raises:
            NotFound: If there is no such model or version.
            Unavailable: If it does not answer now.
        """
        model, chosen = self._look_up(name, version)
        assert model.config is not None  # a live version was loaded with one
        return filled_config(model.config, chosen.rules)

    def statistics(self, name: str = "", version: str = "") -> list[tuple[Model, Version]]:
        """The versions whose counters are asked for: one, those of a model, or all.

        Raises:
            NotFound: If there is no such model or version.
        """
        if not name:
            return [(m, m.live[v]) for m in self.models.all() for v in sorted(m.live)]
        model = self.models.get(name)
        if version:
            return [(model, model.version(int(check_version(version))))]
        if not model.live:
            raise NotFound(f"Request for unknown model: '{name}' has no available versions{model.why()}")
        return [(model, model.live[v]) for v in sorted(model.live)]

    def _look_up(self, name: str, version: str) -> tuple[Model, Version]:
        """The version that stands for a model in metadata and configuration calls."""
        if self._exiting:
            raise Unavailable("the gateway is shutting down; ask another one.")
        model = self.models.get(name)
        if version:
            return model, model.version(int(check_version(version)))
        stable = self.rollouts.stable(name)
        number = stable if stable is not None else model.default_version(self.settings.default_version)
        return model, model.version(number)

    # --- inference ----------------------------------------------------------------------------------------------

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer one request.

        Raises:
            InvalidArgument: If the request does not fit the model.
            NotFound: If there is no such model or version.
            Unavailable: If it does not answer now.
            InferenceFailed: If the runtime fails.
        """
        begun = self.begin(request)
        response = self.answer_at_once(begun)
        return response if response is not None else await self.answer(begun)

    def begin(self, request: InferRequest) -> Begun:
        """Choose the version that answers, and check the request against it.

        What was begun counts as in flight, and its version stays, until it is answered or given up.

        Raises:
            InvalidArgument: If the request does not fit the model.
            NotFound: If there is no such model or version.
            Unavailable: If it does not answer now.
        """
        began_ns = time.perf_counter_ns()
        try:
            if self._refusing:
                raise Unavailable(
                    "the gateway is shutting down and takes no new requests; send it to another one."
                )
            if request.parameters:
                check_parameters(request.parameters)
            version, route = self._choose(request)
        except ServingError as error:
            self.unroutable[error.kind.value] += 1
            raise
        begun = Begun(version, route, request, began_ns)
        # Nothing was awaited since the version was chosen, so it cannot have gone away.
        self._inflight += 1
        version.inflight += 1
        version.statistics.routed(route.rule)
        try:
            begun.checked = check_request(version.rules, request)
        except BaseException as error:
            self._failed(begun, error)
            raise
        begun.checked_ns = time.perf_counter_ns()
        return begun

    def answer_at_once(self, begun: Begun) -> InferResponse | None:
        """The answer of a request that has not to wait for anything; None where it has, and nothing was done yet.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs, or the answer is too large.
            InferenceFailed: If the runtime fails.
        """
        try:
            checked = begun.checked
            timed = begun.version.execution.run_at_once(checked, [output.name for output in checked.outputs])
            if timed is None:
                return None
            response = self._response(begun, timed)
        except BaseException as error:
            self._failed(begun, error)
            raise
        self._leave(begun.version)
        return response

    async def answer(self, begun: Begun) -> InferResponse:
        """The answer of a request that may have to wait for its turn or for another server.

        Raises:
            InvalidArgument: If the runtime blames the values of the inputs, or the answer is too large.
            Exhausted: If too many wait already.
            InferenceFailed: If the runtime fails.
        """
        try:
            checked = begun.checked
            names = [output.name for output in checked.outputs]
            timed = await begun.version.execution.run(checked, names, begun.request)
            response = self._response(begun, timed)
        except BaseException as error:
            self._failed(begun, error)
            raise
        self._leave(begun.version)
        return response

    def give_up(self, begun: Begun, error: BaseException) -> None:
        """Let go of a request that was begun and that nobody will answer, and count why."""
        self._failed(begun, error)

    def _leave(self, version: Version) -> None:
        version.left()
        self._inflight -= 1
        if not self._inflight:
            while self._on_idle:
                self._on_idle.pop().set()

    def _failed(self, begun: Begun, error: BaseException) -> None:
        duration_ns = time.perf_counter_ns() - begun.began_ns
        if isinstance(error, ServingError):
            begun.version.statistics.failed(_failure_reason(error), duration_ns)
            error.answered_by = (begun.route, begun.version.provenance)
        elif isinstance(error, asyncio.CancelledError):
            begun.version.statistics.failed("CANCELED", duration_ns)
        self._leave(begun.version)

    def _response(self, begun: Begun, timed: Timed[list[Array]]) -> InferResponse:
        version, checked, request = begun.version, begun.checked, begun.request
        size_bytes = sum([array.nbytes for array in timed.result])
        if size_bytes > self.settings.max_response_bytes:
            timed.result.clear()  # the error's traceback would keep it
            raise self._too_large(size_bytes)
        outputs = []
        for wanted, array in zip(checked.outputs, timed.result, strict=True):
            rule = version.rules.outputs[wanted.name]
            if rule.model_shape is None and not wanted.classification:
                outputs.append(InferTensor(rule.name, rule.datatype, array))
            else:
                outputs.append(_output(version, wanted, array))
        timings = Timings(
            timed.started_ns - begun.checked_ns,
            begun.checked_ns - begun.began_ns,
            timed.ended_ns - timed.started_ns,
            time.perf_counter_ns() - timed.ended_ns,
        )
        version.statistics.succeeded(checked.batch_size, timings, timed.run_items)
        if self.tracer.on:
            self._trace(begun, timed, outputs)
        return InferResponse(
            request.model_name, version.number, outputs, begun.route, version.provenance, request.id, timings
        )

    def _trace(self, begun: Begun, timed: Timed[list[Array]], outputs: list[InferTensor]) -> None:
        """Under Triton's names: input and output are made outside the run, so they take no time in it."""
        now_ns = time.perf_counter_ns()
        timestamps = (
            ("REQUEST_START", begun.began_ns),
            ("QUEUE_START", begun.checked_ns),
            ("COMPUTE_START", timed.started_ns),
            ("COMPUTE_INPUT_END", timed.started_ns),
            ("COMPUTE_OUTPUT_START", timed.ended_ns),
            ("COMPUTE_END", timed.ended_ns),
            ("REQUEST_END", now_ns),
        )
        request = begun.request
        self.tracer.note(
            request.model_name, begun.version.number, request.id, timestamps, begun.checked.feeds, outputs
        )

    def _too_large(self, size_bytes: int) -> InvalidArgument:
        return InvalidArgument(
            f"the answer has {size_bytes} bytes, more than the {self.settings.max_response_bytes} that one answer "
            "may have; ask for fewer outputs or send a smaller batch."
        )

    def _choose(self, request: InferRequest) -> tuple[Version, Route]:
        """The version that answers, and why."""
        if not request.parameters:
            return self._decide(request)
        try:
            return self._decide(request)
        finally:
            if request.parameters.get("sequence_end"):
                self._sequences.pop((request.model_name, request.parameters.get("sequence_id", 0)), None)

    def _decide(self, request: InferRequest) -> tuple[Version, Route]:
        model = self.models.get(request.model_name)
        if request.model_version:
            number = int(check_version(request.model_version))
            return model.version(number), _named(number)
        # Most requests belong to no stream and no sequence.
        keeps_its_version = bool(request.parameters) or request.stream is not None
        route = (self._pinned(request) if keeps_its_version else None) or self._route(model, request)
        try:
            return model.version(route.version), route
        except NotFound as error:
            # The client named no version: that one is missing is ours to mend, and passes.
            raise Unavailable(f"{error}; rule '{route.rule}' gives it this request. Try again.") from error

    def _route(self, model: Model, request: InferRequest) -> Route:
        route = self.rollouts.route(request)
        if route is None:
            policy = self.settings.default_version
            route = _unrouted(model.default_version(policy), policy)
        if request.parameters or request.stream is not None:
            self._pin(request, route)
        return route

    def _pinned(self, request: InferRequest) -> Route | None:
        """The version that a stream or sequence was given, unless it is gone."""
        route = request.stream.routes.get(request.model_name) if request.stream is not None else None
        sequence = request.parameters.get("sequence_id")
        if route is None and sequence and not request.parameters.get("sequence_start"):
            route = self._sequences.get((request.model_name, sequence))
            if route is not None:
                self._sequences.move_to_end((request.model_name, sequence))
        if route is None or route.version not in self.models.get(request.model_name).live:
            return None
        return route

    def _pin(self, request: InferRequest, route: Route) -> None:
        """Have a stream or sequence keep its version; of very many the least used is forgotten."""
        if request.stream is not None:
            request.stream.routes[request.model_name] = route
        sequence = request.parameters.get("sequence_id")
        if sequence and not request.parameters.get("sequence_end"):
            self._sequences[request.model_name, sequence] = route
            self._sequences.move_to_end((request.model_name, sequence))
            if len(self._sequences) > _MAX_PINNED_SEQUENCES:
                self._sequences.popitem(last=False)

    # --- settings -----------------------------------------------------------------------------------------------

    def trace_settings(self, model: str = "") -> dict[str, Any]:
        """What is traced of a model, or of all that have no settings of their own.

        Raises:
            NotFound: If there is no such model.
        """
        if model:
            self.models.get(model)
        return self.tracer.settings(model)

    def change_trace_settings(
        self, changes: Mapping[str, Any], model: str = "", *, admin: bool = False
    ) -> dict[str, Any]:
        """Change some of them, and give all.

        Raises:
            Unavailable: If this is not the admin port and the mode is not explicit.
            NotFound: If there is no such model.
            Unsupported: If tracing is off, or one of them cannot be changed.
            InvalidArgument: If one is not known, or its value is none for it.
        """
        if changes:
            self._check_settings_open(admin=admin)
            self.trace_settings(model)
            self.tracer.update(changes, model)
        return self.trace_settings(model)

    def change_log_settings(self, changes: Mapping[str, Any], *, admin: bool = False) -> dict[str, Any]:
        """Change some of what is logged, and give all.

        Raises:
            Unavailable: If this is not the admin port and the mode is not explicit.
            Unsupported: If one of them cannot be changed.
            InvalidArgument: If one is not known, or its value is none for it.
        """
        if changes:
            self._check_settings_open(admin=admin)
            self.log_settings.update(changes)
        return self.log_settings.settings()

    def _check_settings_open(self, *, admin: bool) -> None:
        """A client must not be able to silence the log or to fill the disk of its server."""
        if not admin and not self.models.explicit:
            raise Unavailable(
                "settings are changed on the admin port, or on this one in model control mode explicit."
            )

    # --- repository ---------------------------------------------------------------------------------------------

    async def repository_index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """Every known model and version, and why it is in its state."""
        entries = self.models.index()
        if self.models.explicit:
            entries += [IndexEntry(name, "", "", "") for name in await self.models.unregistered()]
            entries.sort(key=lambda entry: entry.name)
        return [entry for entry in entries if entry.state == "READY"] if ready_only else entries

    async def load(self, name: str, parameters: LoadParameters = NOTHING, *, admin: bool = False) -> None:
        """Load a model as the repository has it now, or as the call says; returns when it is ready.

        Raises:
            Unavailable: If this is not the admin port and the mode is not explicit.
            LoadFailed: If it cannot be loaded; what was live stays live.
        """
        self._check_control(admin=admin)
        await self.models.load(name, parameters)
        await self.rollouts.look()

    async def unload(self, name: str, *, admin: bool = False) -> None:
        """Take a model out of service; returns once it gets no further request.

        Raises:
            Unavailable: If this is not the admin port and the mode is not explicit.
        """
        self._check_control(admin=admin)
        await self.models.unload(name)

    def _check_control(self, *, admin: bool) -> None:
        if self._exiting:
            raise Unavailable("the gateway is shutting down; nothing is loaded or unloaded any more.")
        if not admin and not self.models.explicit:
            raise Unavailable(LOAD_REFUSED)


@lru_cache(maxsize=1024)
def _unrouted(version: int, policy: str) -> Route:
    return Route(version, "latest" if policy == "latest" else "default")


@lru_cache(maxsize=1024)
def _named(version: int) -> Route:
    return Route(version, "named")


def check_version(text: str) -> str:
    """The version in a request, if it can be one.

    Raises:
        InvalidArgument: If it is not a whole number without sign or leading zeros.
    """
    if not _VERSION.fullmatch(text):
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text[:40]}'; expected a whole number."
        )
    return text


def _output(version: Version, wanted: RequestedOutput, array: Array) -> InferTensor:
    rules = version.rules
    rule = rules.outputs[wanted.name]
    try:
        array = as_clients_see_it(rule, array)
    except ValueError as error:
        raise InferenceFailed(
            f"output '{rule.name}' has shape {list(array.shape)}, not what its config says."
        ) from error
    tensor = InferTensor(rule.name, rule.datatype, array)
    if wanted.classification:
        batched = rules.max_batch_size > 0
        return best_classes(tensor, wanted.classification, labels=rule.labels, batched=batched)
    return tensor


def _failure_reason(error: ServingError) -> str:
    """The label of Triton's failure metric."""
    if isinstance(error, (Unavailable, Exhausted)):
        return "REJECTED"
    return "BACKEND" if isinstance(error, InferenceFailed) else "OTHER"
